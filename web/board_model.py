"""The board's model: its query, and its rows, filtered and sorted. Only members see live data."""

import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import urlencode

from pydantic import Field
from starlette.requests import Request

from mcp_server.tools.get_catalog import get_catalog
from mcp_server.tools.get_state import get_state
from schemas.catalog import CatalogAsset, CatalogQuery
from schemas.query import Query, TickerList
from schemas.state import AssetState, StateQuery, StateResponse
from schemas.vocabulary import (
    INDICATOR_IDS,
    READING_NAMES,
    TIMEFRAMES,
    AssetClass,
    IndicatorId,
    Reading,
    Timeframe,
)
from serving.arguments import parse_arguments, parse_query_string
from serving.context import Context
from serving.prices import PriceSummary

BoardTimeframe = Literal[Timeframe, "all"]
SortColumn = Literal["asset", "score", "price", "change", "week", IndicatorId]
SortOrder = Literal["asc", "desc"]
# As a universe file defines it.
TICKER_PATTERN = re.compile("[A-Z0-9]{1,12}")


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
        # Every link of the page repeats the list, so what cannot be a ticker is left out.
        return tuple(dict.fromkeys(filter(TICKER_PATTERN.fullmatch, tickers)))

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
        if self.watched is not None:
            kept["watch"] = ",".join(self.watched)
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


CLASS_NAMES: dict[AssetClass, str] = {"crypto": "Crypto", "stock": "Stocks", "metal": "Metals"}
VALUES: dict[Reading | None, int] = {name: value for value, name in READING_NAMES.items()}

Asset = CatalogAsset | AssetState


class Row(NamedTuple):
    """One asset: its reading on each shown timeframe by indicator, None if it has none.

    `is_watched`: the asset is in the watchlist of the URL.
    """

    ticker: str
    name: str
    asset_class: AssetClass
    readings: Mapping[IndicatorId, tuple[Reading | None, ...]]
    price: PriceSummary | None
    is_watched: bool

    @property
    def score(self) -> int | None:
        """Bullish minus bearish readings of all indicators, None if there is no reading."""
        # The votes of signals_get_confluence, which never count the outdated dexter either.
        return sum_readings(cell for cells in self.readings.values() for cell in cells)

    @property
    def week_change(self) -> float | None:
        """The change of the price over the week, as a fraction; None if there is no older one."""
        closes = () if self.price is None else self.price.closes
        return closes[-1] / closes[0] - 1 if len(closes) > 1 and closes[0] else None


class HeatMap(NamedTuple):
    """The rows that are left of `total` assets, and the shown indicators."""

    columns: tuple[IndicatorId, ...]
    rows: Sequence[Row]
    total: int


def sum_readings(readings: Iterable[Reading | None]) -> int | None:
    """Return bullish minus bearish readings, None if there is no reading."""
    values = [VALUES[reading] for reading in readings if reading is not None]
    return sum(values) if values else None


def build_heat_map(
    tracked: Sequence[CatalogAsset],
    states: Sequence[AssetState],
    prices: Mapping[str, PriceSummary],
    query: BoardQuery,
    watched: Collection[str] = (),
) -> HeatMap:
    """Return the view of all tracked assets and of removed ones with readings.

    `watched` are the tickers of the viewer's stored watchlist; a list in the URL precedes it.
    """
    by_ticker = {state.ticker: state for state in states}
    assets: dict[str, Asset] = {**by_ticker, **{asset.ticker: asset for asset in tracked}}
    columns = INDICATOR_IDS if query.indicator is None else (query.indicator,)
    wanted = {each.upper() for each in (watched if query.watched is None else query.watched)}
    rows = []
    for ticker, asset in sorted(assets.items()):
        signals = by_ticker[ticker].signals if ticker in by_ticker else {}
        readings = {
            column: tuple(signals.get(column, {}).get(timeframe) for timeframe in query.timeframes)
            for column in INDICATOR_IDS
        }
        is_watched = ticker.upper() in wanted
        row = Row(ticker, asset.name, asset.asset_class, readings, prices.get(ticker), is_watched)
        shown = (cell for column in columns for cell in row.readings[column])
        if (
            query.asset_class in (None, row.asset_class)
            and (query.direction is None or query.direction in shown)
            and (query.text or "").casefold() in f"{row.ticker} {row.name}".casefold()
            and (row.is_watched or not query.shows_watched)
        ):
            rows.append(row)
    return HeatMap(columns, _sort_rows(rows, query), len(assets))


def _sort_rows(rows: list[Row], query: BoardQuery) -> list[Row]:
    """Return rows, given by ticker, in the order of the query; rows without a value come last."""
    is_descending = query.sort_order == "desc"
    if query.sort == "asset":
        return rows[::-1] if is_descending else rows
    values = {row.ticker: _get_value(row, query) for row in rows}
    known = [(values[row.ticker], row) for row in rows if values[row.ticker] is not None]
    # The sort is stable in both directions, so equal rows stay sorted by ticker.
    known.sort(key=lambda pair: pair[0] or 0, reverse=is_descending)
    return [row for _, row in known] + [row for row in rows if values[row.ticker] is None]


def _get_value(row: Row, query: BoardQuery) -> float | None:
    """Return the value of a row in the sorted column."""
    match query.sort:
        case "asset" | "score":
            return row.score
        case "price":
            return None if row.price is None else row.price.last_close
        case "change":
            return None if row.price is None else row.price.day_change
        case "week":
            return row.week_change
        case indicator:
            return sum_readings(row.readings[indicator])


ModelT = TypeVar("ModelT")


@dataclass(frozen=True, slots=True)
class BoardModel:
    """The latest data of one timeframe or all; `names` are the indicators' display names.

    `prices` are by ticker, None if the operator shows no prices.
    """

    tracked: Sequence[CatalogAsset]
    names: Mapping[IndicatorId, str]
    state: StateResponse
    prices: Mapping[str, PriceSummary] | None


async def read_one_version(context: Context, read: Callable[[], Awaitable[ModelT]]) -> ModelT:
    """Return what `read` returns, with all its handlers on one snapshot.

    ApiError `unavailable` before the first run.
    """
    # Each handler takes the newest snapshot by itself. If a run committed in between, the results
    # would mix two hours, so read again. Commits are rare, so the second try usually succeeds.
    while True:
        snapshot = await context.snapshot()
        model = await read()
        if await context.snapshot() is snapshot:
            return model


async def load_board_model(timeframe: BoardTimeframe, context: Context) -> BoardModel:
    """Return the data of the board; ApiError `unavailable` before the first run."""
    state = await get_state(
        StateQuery(timeframe=None if timeframe == "all" else timeframe), context
    )
    catalog = await get_catalog(CatalogQuery(), context)
    return BoardModel(
        tracked=catalog.assets.list,
        names={indicator.id: indicator.name for indicator in catalog.indicators},
        state=state,
        prices=None if context.prices is None else await context.prices.load_summaries(),
    )
