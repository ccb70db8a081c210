"""The query parameters of the board and asset pages; the filter form sends the same ones."""

from typing import Any, Literal, TypeVar
from urllib.parse import urlencode

from pydantic import Field
from starlette.requests import Request

from schemas.query import Query, TickerList
from schemas.vocabulary import TIMEFRAMES, AssetClass, IndicatorId, Reading, Timeframe
from serving.arguments import parse_arguments
from serving.query_string import parse_query_string

BoardTimeframe = Literal[Timeframe, "all"]
SortColumn = Literal["asset", "score", "price", "change", "week", IndicatorId]
SortOrder = Literal["asc", "desc"]


class AssetPageQuery(Query):
    """The timeframe that an asset's page shows."""

    timeframe: Timeframe = Field(default="4h", description="Timeframe of the readings.")


class BoardQuery(Query):
    """The view of the board: an asset must match all filters."""

    timeframe: BoardTimeframe = Field(
        default="4h", description="Timeframe of the readings; all shows the three side by side."
    )
    asset_class: AssetClass | None = Field(default=None, description="Only assets of this class.")
    indicator: IndicatorId | None = Field(default=None, description="Only this indicator.")
    direction: Reading | None = Field(
        default=None, description="Only assets with a shown reading in this state."
    )
    text: str | None = Field(
        default=None, max_length=60, description="Part of a ticker or name, at most 60 characters."
    )
    watch: TickerList = None
    show: Literal["all", "watched"] | None = Field(
        default=None, description="watched: only the watchlist. Default watched if watch is given."
    )
    sort: SortColumn = Field(default="score", description="Column that sorts the rows.")
    order: SortOrder | None = Field(
        default=None, description="Default asc for asset, desc for the others."
    )

    @property
    def timeframes(self) -> tuple[Timeframe, ...]:
        """The timeframes that the board shows."""
        return TIMEFRAMES if self.timeframe == "all" else (self.timeframe,)

    @property
    def sort_order(self) -> SortOrder:
        """The order of the sorted column."""
        return self.order or ("asc" if self.sort == "asset" else "desc")

    @property
    def watched(self) -> tuple[str, ...] | None:
        """The tickers of the watchlist in the URL, each once; None if there is none."""
        if self.watch is None:
            return None
        tickers = (ticker.strip().upper() for ticker in self.watch.split(","))
        return tuple(dict.fromkeys(filter(None, tickers)))

    @property
    def shows_watched(self) -> bool:
        """Whether only assets of the watchlist are shown."""
        return self.show == "watched" or (self.show is None and self.watch is not None)

    @property
    def is_unfiltered(self) -> bool:
        """Whether all assets are shown, and the URL holds no watchlist."""
        filters = (self.asset_class, self.indicator, self.direction, self.text, self.watch)
        return filters == (None,) * len(filters) and not self.shows_watched

    def change(self, **changes: Any) -> str:
        """Return the query string of this view with some parameters changed, None removes one."""
        kept = self.model_dump(exclude_defaults=True, exclude={"timeframe"})
        fields = {"timeframe": self.timeframe, **kept, **changes}
        return urlencode({n: value for n, value in fields.items() if value is not None}, safe=",")

    def sort_by(self, column: SortColumn) -> str:
        """Return the query string of the link in a column's heading: sort, or reverse."""
        reverse: SortOrder = "asc" if self.sort_order == "desc" else "desc"
        return self.change(sort=column, order=reverse if column == self.sort else None)

    def toggle(self, ticker: str) -> str:
        """Return the query string of the same view with an asset added to its list or removed."""
        held = self.watched or ()
        left = [each for each in held if each != ticker.upper()]
        watch = ",".join(left if ticker.upper() in held else [*held, ticker])
        # Without `show`, a list in the URL would hide all other assets.
        return self.change(watch=watch or None, show=None if self.shows_watched else "all")


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
