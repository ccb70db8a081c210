"""What a visitor of the board asks for: the fields of its form, which are those of its address."""

from typing import TypeVar
from urllib.parse import urlencode

from pydantic import Field
from starlette.requests import Request

from schemas.query import Query
from schemas.vocabulary import AssetClass, IndicatorId, Reading, Timeframe
from serving.arguments import parse_arguments
from serving.query_string import parse_query_string


class AssetPageQuery(Query):
    """Which timeframe an asset's page shows."""

    timeframe: Timeframe = Field(default="4h", description="Timeframe of the readings.")


class BoardQuery(AssetPageQuery):
    """Which rows and columns of the heat map to show; together the filters narrow it."""

    asset_class: AssetClass | None = Field(default=None, description="Only this kind of asset.")
    indicator: IndicatorId | None = Field(default=None, description="Only this indicator.")
    direction: Reading | None = Field(
        default=None, description="Only assets with a shown reading in this state."
    )
    text: str | None = Field(
        default=None, max_length=60, description="Part of a ticker or name, at most 60 characters."
    )

    @property
    def is_unfiltered(self) -> bool:
        """Whether the whole heat map is asked for."""
        return self == BoardQuery(timeframe=self.timeframe)

    def to_query_string(self, timeframe: Timeframe) -> str:
        """Return the query string of the same view of a timeframe."""
        fields = self.model_dump(exclude_none=True) | {"timeframe": timeframe}
        return urlencode(fields)


QueryT = TypeVar("QueryT", bound=Query)


def parse_page_query(request: Request, query: type[QueryT]) -> QueryT:
    """Return what a page's address asks for; ApiError `invalid_parameter` for a bad value.

    A form sends its empty fields too. Fields that nobody knows are not ours: links come with them.
    """
    raw = parse_query_string(request.scope["query_string"], query, ignore_unknown=True)
    values = {name: value.strip() for name, value in raw.items() if value.strip()}
    return parse_arguments(query, values)
