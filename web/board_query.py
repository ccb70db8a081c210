"""The query parameters of the board and asset pages; the filter form sends the same ones."""

from typing import Any, TypeVar
from urllib.parse import urlencode

from pydantic import Field
from starlette.requests import Request

from schemas.query import Query
from schemas.vocabulary import AssetClass, IndicatorId, Reading, Timeframe
from serving.arguments import parse_arguments
from serving.query_string import parse_query_string


class AssetPageQuery(Query):
    """The timeframe that an asset's page shows."""

    timeframe: Timeframe = Field(default="4h", description="Timeframe of the readings.")


class BoardQuery(AssetPageQuery):
    """The filters of the heat map; an asset must match all of them."""

    asset_class: AssetClass | None = Field(default=None, description="Only assets of this class.")
    indicator: IndicatorId | None = Field(default=None, description="Only this indicator.")
    direction: Reading | None = Field(
        default=None, description="Only assets with a shown reading in this state."
    )
    text: str | None = Field(
        default=None, max_length=60, description="Part of a ticker or name, at most 60 characters."
    )

    @property
    def is_unfiltered(self) -> bool:
        """Whether no filter is set."""
        return self == BoardQuery(timeframe=self.timeframe)

    def to_query_string(self, timeframe: Timeframe) -> str:
        """Return the query string for the same filters on another timeframe."""
        fields = self.model_dump(exclude_none=True) | {"timeframe": timeframe}
        return urlencode(fields)


QueryT = TypeVar("QueryT", bound=Query)


def parse_page_query(request: Request, query: type[QueryT]) -> QueryT:
    """Return the parsed query of a page; ApiError `invalid_parameter` for a bad value."""
    return parse_arguments(query, read_page_arguments(request, query))


def read_page_arguments(request: Request, query: type[Query]) -> dict[str, Any]:
    """Return the arguments of a page as sent, without empty ones."""
    # Links from other sites carry tracking parameters, so unknown fields are ignored. A form also
    # sends its empty fields, which count as absent.
    raw = parse_query_string(request.scope["query_string"], query, ignore_unknown=True)
    texts = {n: value.strip() if isinstance(value, str) else value for n, value in raw.items()}
    return {n: value for n, value in texts.items() if value != ""}
