"""The board's model: its query, and its rows, filtered and sorted. Only members see live data."""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import urlencode

from pydantic import Field
from starlette.requests import Request

from mcp_server.tools.get_catalog import get_catalog
from mcp_server.tools.get_state import get_state
from schemas.catalog import CatalogAsset, CatalogQuery
from schemas.query import Query
from schemas.state import AssetState, StateQuery, StateResponse
from schemas.vocabulary import (
    DAY_MS,
    INDICATOR_IDS,
    READING_NAMES,
    TIMEFRAME_DURATIONS_S,
    TIMEFRAMES,
    AssetClass,
    IndicatorId,
    Reading,
    Timeframe,
)
from serving.arguments import parse_arguments, parse_query_string
from serving.context import Context
from serving.freshness import find_next_run
from serving.prices import PriceSummary

BoardTimeframe = Literal[Timeframe, "all"]
SortColumn = Literal["asset", "score", "changed", "price", "change", "week", IndicatorId]  # type: ignore[valid-type]
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
    changed: Literal["last", "24h"] | None = Field(
        default=None,
        description="Only assets with a shown reading that changed at the last candle, or in 24 h.",
    )
    show: Literal["all", "first", "watched", "removed"] = Field(
        default="all",
        description="watched: only the watchlist; first: the watchlist above the others; removed: "
        "assets that are no longer covered.",
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
    def indicators(self) -> tuple[IndicatorId, ...]:
        """The indicators that the board shows."""
        return INDICATOR_IDS if self.indicator is None else (self.indicator,)

    @property
    def sort_order(self) -> SortOrder:
        """The order of the sorted column."""
        return self.order or ("asc" if self.sort == "asset" else "desc")

    @property
    def is_unfiltered(self) -> bool:
        """Whether all assets are shown."""
        filters = (self.asset_class, self.indicator, self.direction, self.text, self.changed)
        return not any(filters) and self.show == "all"

    def change(self, **changes: Any) -> str:
        """Return the query string of this view with some parameters changed, None removes one."""
        kept = self.model_dump(exclude_defaults=True, exclude={"timeframe"})
        fields = {"timeframe": self.timeframe, **kept, **changes}
        return urlencode({n: value for n, value in fields.items() if value is not None})

    def sort_by(self, column: SortColumn) -> str:
        """Return the query string of the link in a column's heading: sort, or reverse."""
        reverse: SortOrder = "asc" if self.sort_order == "desc" else "desc"
        return self.change(sort=column, order=reverse if column == self.sort else None)


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

    `since` has the times (epoch ms) when these were published, `changed_at` the newest of them.
    `is_watched`: the viewer watches the asset.
    """

    ticker: str
    name: str
    asset_class: AssetClass
    readings: Mapping[IndicatorId, tuple[Reading | None, ...]]
    since: Mapping[IndicatorId, tuple[int, ...]]
    changed_at: int | None
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
    """The rows that are left of `total` assets, and the shown indicators.

    Of all assets, filtered or not: `turned` counts the changes at the last candle of each shown
    timeframe, by the reading after it. `leanings` has the numbers of assets with a score above and
    below 0, by class.
    """

    columns: tuple[IndicatorId, ...]
    rows: Sequence[Row]
    total: int
    turned: Counter[Reading]
    leanings: Mapping[AssetClass, tuple[int, int]]


def sum_readings(readings: Iterable[Reading | None]) -> int | None:
    """Return bullish minus bearish readings, None if there is no reading."""
    values = [VALUES[reading] for reading in readings if reading is not None]
    return sum(values) if values else None


def find_last_run(timeframe: Timeframe, at: int) -> int:
    """Return the run (epoch ms) that computed the last candle of a timeframe at a time."""
    return find_next_run(timeframe, at) - TIMEFRAME_DURATIONS_S[timeframe] * 1000


def build_heat_map(
    tracked: Sequence[CatalogAsset],
    states: Sequence[AssetState],
    prices: Mapping[str, PriceSummary],
    query: BoardQuery,
    watched: Collection[str] = (),
    changed_at: Mapping[tuple[str, str, str], int] = MappingProxyType({}),
    as_of: int = 0,
) -> HeatMap:
    """Return the view of all tracked assets, or of removed ones with readings.

    `watched` are the tickers of the viewer's watchlist.
    `changed_at` has the time of the last change of a ticker's indicator on a timeframe.
    """
    by_ticker = {state.ticker: state for state in states}
    assets: dict[str, Asset] = {asset.ticker: asset for asset in tracked}
    if query.show == "removed":
        assets = {ticker: state for ticker, state in by_ticker.items() if ticker not in assets}
    columns, timeframes = query.indicators, query.timeframes
    last_runs = [find_last_run(timeframe, as_of) for timeframe in timeframes]
    since_by_filter = {"last": last_runs, "24h": [as_of - DAY_MS] * len(timeframes)}
    oldest = since_by_filter.get(query.changed or "", [0] * len(timeframes))
    turned, leanings = Counter[Reading](), {kind: [0, 0] for kind in CLASS_NAMES}
    rows = []
    for ticker, asset in sorted(assets.items()):
        signals = by_ticker[ticker].signals if ticker in by_ticker else {}
        readings = {
            column: tuple(signals.get(column, {}).get(timeframe) for timeframe in timeframes)
            for column in INDICATOR_IDS
        }
        since = {
            column: tuple(changed_at.get((ticker, column, each), 0) for each in timeframes)
            for column in INDICATOR_IDS
        }
        cells = [
            *chain.from_iterable(zip(readings[c], since[c], oldest, strict=True) for c in columns)
        ]
        row = Row(
            *(ticker, asset.name, asset.asset_class, readings, since),
            changed_at=max(chain.from_iterable(since.values())) or None,
            # A removed asset has no change of the last 24 hours.
            price=None if query.show == "removed" else prices.get(ticker),
            is_watched=ticker in watched,
        )
        for column in INDICATOR_IDS:
            for reading, at, last_run in zip(
                readings[column], since[column], last_runs, strict=True
            ):
                if reading is not None and at >= last_run:
                    turned[reading] += 1
        if row.score:
            leanings[row.asset_class][row.score < 0] += 1
        is_match = any(
            query.direction in (None, reading) and at >= after for reading, at, after in cells
        )
        if (
            is_match
            and query.asset_class in (None, row.asset_class)
            and (query.text or "").casefold() in f"{row.ticker} {row.name}".casefold()
            and (row.is_watched or query.show != "watched")
        ):
            rows.append(row)
    counts = {kind: (up, down) for kind, (up, down) in leanings.items() if up or down}
    return HeatMap(columns, _sort_rows(rows, query), len(assets), turned, counts)


def _sort_rows(rows: list[Row], query: BoardQuery) -> list[Row]:
    """Return rows, given by ticker, in the order of the query; rows without a value come last.

    Of equal rows, the one that changed last comes first, then the one that rose most in 24 hours.
    """
    sign = -1 if query.sort_order == "desc" else 1
    if query.sort == "asset":
        rows = rows[::sign]
    else:
        order = {}
        for row in rows:
            moved = row.price.day_change if row.price else None
            values = {
                "score": row.score,
                "changed": row.changed_at,
                "price": row.price.last_close if row.price else None,
                "change": moved,
                "week": row.week_change,
                **{id_: sum_readings(cells) for id_, cells in row.readings.items()},
            }
            value = values[query.sort]
            moves = moved is None, -(moved or 0)
            rank = value is None, sign * (value or 0), -(row.changed_at or 0), *moves
            order[row.ticker] = rank
        rows = sorted(rows, key=lambda row: order[row.ticker])
    return sorted(rows, key=lambda row: not row.is_watched) if query.show == "first" else rows


ModelT = TypeVar("ModelT")


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


@dataclass(frozen=True, slots=True)
class Board:
    """A view of the latest data; `names` are the indicators' display names, `as_of` is epoch ms."""

    query: BoardQuery
    state: StateResponse
    names: Mapping[IndicatorId, str]
    as_of: int
    has_prices: bool
    heat: HeatMap


async def load_board(query: BoardQuery, watched: Collection[str], context: Context) -> Board:
    """Return a view of the board; `watched` is the viewer's watchlist.

    ApiError `unavailable` before the first run.
    """

    async def read() -> Board:
        wanted = None if query.timeframe == "all" else query.timeframe
        state = await get_state(StateQuery(timeframe=wanted), context)
        catalog, snapshot = await get_catalog(CatalogQuery(), context), await context.snapshot()
        ledger, until = await context.snapshots.ledger(snapshot), snapshot.stored.last_created_at
        tickers = [asset.ticker for asset in state.assets]
        changed_at: dict[tuple[str, str, str], int] = {
            (change.ticker, change.indicator, change.timeframe): change.created_at
            for change in ledger.find_last_changes(until, tickers, wanted)
        }
        prices = {} if context.prices is None else await context.prices.load_summaries()
        as_of, tracked = snapshot.market_time, catalog.assets.list
        heat = build_heat_map(tracked, state.assets, prices, query, watched, changed_at, as_of)
        names = {indicator.id: indicator.name for indicator in catalog.indicators}
        return Board(query, state, names, as_of, context.prices is not None, heat)

    return await read_one_version(context, read)
