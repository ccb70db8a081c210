"""The board at `/`, as page, CSV and JSON: of live data for members, else of the sample.

A view is a query of the rows, filtered and sorted.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar, get_args
from urllib.parse import quote, urlencode

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from access.billing.provider import PRICES_USD
from access.members import watch
from mcp_server.tools.get_catalog import get_catalog
from mcp_server.tools.get_state import get_state
from mcp_server.tools.get_stats import get_stats
from rest_shim.endpoints import is_not_modified
from schemas.catalog import CatalogAsset, CatalogQuery
from schemas.errors import ApiError, NotBuiltError
from schemas.query import MAX_LIST_CHARS, MAX_NAME_CHARS, NoArguments, Query
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
    find_latest_run,
    format_instant,
)
from serving.argument_values import find_asset
from serving.arguments import parse_arguments, parse_query_string
from serving.context import Context
from serving.error_responses import guard_route
from serving.freshness import build_freshness, find_next_run
from serving.http import CACHE_PRIVATE, JSON, read_headers
from serving.json_text import to_json, to_utf8
from serving.prices import PriceSummary
from serving.response_cache import ResponseBody
from serving.tool_runner import ToolRunner
from store.access_rows import normalize_email
from store.sql.access_store import AccessStore
from web.pages import (
    PRIVATE_HEADERS,
    build_page_route,
    redirect_to,
    render_page,
    respond_with_page,
)
from web.sessions import Sessions, Viewer, refuse_key
from web.value_texts import build_path, format_age, format_percent, format_signed, render_csv

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
    assets: dict[str, CatalogAsset | AssetState] = {asset.ticker: asset for asset in tracked}
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


# As the headers of the columns; the packaged universe is quoted in US dollars or their tokens.
PRICE_FIELDS = ("last_close_usd", "change_24h_percent", "change_7d_percent", "last_close_at")
BADGES = {
    "simulated": "Simulated market",
    "recorded": "Recorded data",
    "live": "Live data",
    "sample": "Sample, not live data",
}
TITLE = "Board of readings"
TABS = [(timeframe, timeframe) for timeframe in TIMEFRAMES] + [("all", "All")]


@dataclass(frozen=True, slots=True)
class BoardPages:
    """The board and its files; visitors see the `sample`."""

    context: Context
    sample: Context
    sessions: Sessions
    access: AccessStore

    def build_routes(self, runner: ToolRunner) -> list[Route]:
        """Return the routes."""
        # `back` is the query string of a view.
        fields = {"add": MAX_NAME_CHARS, "remove": MAX_NAME_CHARS, "back": MAX_LIST_CHARS}
        change_star = self.sessions.require_form(self.change_star, fields)
        files = {
            "/board.csv": self.send_csv,
            "/board.json": self.send_json,
            "/board/latest.json": self.send_latest,
        }
        return [
            build_page_route("/", runner, self.show),
            build_page_route("/watchlist", runner, change_star, "GET", "POST"),
            *(
                Route(path, guard_route(path, runner, respond), methods=["GET"])
                for path, respond in files.items()
            ),
        ]

    async def show(self, request: Request) -> Response:
        """Return the page; ApiError if a filter is invalid or there is no snapshot yet."""
        query, viewer, watched, shown = await self._read(request)
        is_member, context, missing = shown is not self.sample, self.context, None
        has_facts = not is_member and query == BoardQuery()
        if has_facts:
            try:
                await context.snapshot()
            except NotBuiltError as error:
                missing = error.reason

        async def draw() -> Response:
            board = await load_board(query, watched, shown)
            is_built = has_facts and missing is None
            return render_page(
                request,
                "board.html",
                # A new visitor sees this headline.
                title="Readings that never repaint" if has_facts else TITLE,
                board_title=TITLE,
                here="",
                badge=BADGES[board.state.meta.source],
                is_wide=True,
                is_public=not is_member,
                viewer=viewer,
                is_member=is_member,
                back=query.change(),
                has_facts=has_facts,
                missing=missing,
                prices_usd=PRICES_USD,
                catalog=await get_catalog(CatalogQuery(), context) if is_built else None,
                stats=await get_stats(NoArguments(), context) if is_built else None,
                # The shortest of the shown timeframes changes first.
                last_run=find_last_run(query.timeframes[0], board.as_of),
                classes=CLASS_NAMES,
                directions=get_args(Reading),
                **list_row_values(board),
            )

        # A filtered page repeats its URL's text next to the form token: see `respond_with_page`.
        # Why there are no data may change before the next version, so that page is not kept.
        key = f"?{query.change()}" if query.is_unfiltered and missing is None else None
        return await respond_with_page(request, context, viewer, key, draw)

    async def send_csv(self, request: Request) -> Response:
        """Return the view of the URL as CSV, for spreadsheets; visitors get the sample."""
        board, is_member = await self._load_file(request)
        query, heat, state = board.query, board.heat, board.state
        cells = [
            (column, place, timeframe)
            for column in heat.columns
            for place, timeframe in enumerate(query.timeframes)
        ]
        header = [
            *("ticker", "name", "asset_class", "net_score", "changed_at"),
            *(f"{column}_{timeframe}" for column, _, timeframe in cells),
            *(PRICE_FIELDS if board.has_prices else ()),
            *("as_of", "source"),
        ]
        rows = [
            [
                *(row.ticker, row.name, row.asset_class, row.score, format_change(row)),
                *(row.readings[column][place] for column, place, _ in cells),
                *name_prices(board, row).values(),
                *(state.as_of, state.meta.source),
            ]
            for row in heat.rows  # in the order of the page
        ]
        stamp = state.as_of[:16].replace(":", "")
        name = f"signals-board{'' if is_member else '-sample'}-{query.timeframe}-{stamp}Z.csv"
        headers = {**PRIVATE_HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
        return Response(render_csv(header, rows), 200, headers, "text/csv; charset=utf-8")

    async def send_json(self, request: Request) -> Response:
        """Return the view of the URL as JSON; visitors get the sample."""
        board, _ = await self._load_file(request)
        query, state = board.query, board.state
        assets = [
            {
                "ticker": row.ticker,
                "name": row.name,
                "asset_class": row.asset_class,
                "net_score": row.score,
                "changed_at": format_change(row),
                "readings": {
                    column: dict(zip(query.timeframes, row.readings[column], strict=True))
                    for column in board.heat.columns
                },
                **name_prices(board, row),
            }
            for row in board.heat.rows
        ]
        document = {
            "as_of": state.as_of,
            "source": state.meta.source,
            "note": state.meta.page_note,
            "query": query.model_dump(exclude_none=True),
            "net_score": "bullish minus bearish readings of all indicators on the shown timeframes",
            "total_assets": board.heat.total,
            "assets": assets,
        }
        return Response(to_utf8(to_json(document)), headers=PRIVATE_HEADERS, media_type=JSON)

    async def send_latest(self, request: Request) -> Response:
        """Return the time of the data, which the catalog publishes too, and of the next run.

        `changes` counts the rows that its run published.
        """
        snapshot = await self.context.snapshot()
        meta = build_freshness(snapshot, self.context.clock())
        ledger, until = (
            await self.context.snapshots.ledger(snapshot),
            snapshot.stored.last_created_at,
        )
        began = find_latest_run(snapshot.market_time) - 1
        latest = {
            "as_of": meta["as_of"],
            "next_update": meta["next_update"].get("1h"),
            "changes": ledger.count_kinds("universe", began, until).total(),
        }
        body = ResponseBody(to_utf8(to_json(latest)))
        headers = {"ETag": body.etag.decode(), "Cache-Control": CACHE_PRIVATE}
        if is_not_modified(read_headers(request.scope), body.etag):
            return Response(status_code=304, headers=headers)
        return Response(body.text, headers=headers, media_type=JSON)

    async def change_star(self, request: Request, viewer: Viewer, form: dict[str, str]) -> Response:
        """Star or unstar an asset and return to its row; ApiError 404 for unknown assets."""
        if not viewer.is_member:
            return redirect_to(request, "")
        ticker = form.get("remove", "")
        # PostgreSQL refuses a text with a NUL.
        if ticker and ticker.isprintable():
            # Also an asset that is no longer covered.
            await self.access.unwatch(normalize_email(viewer.email), ticker)
        else:
            assets = (await self.context.snapshot()).assets
            try:
                ticker = find_asset(form.get("add", ""), assets).ticker
            except ApiError as unknown:
                raise ApiError(unknown.code, unknown.message, 404) from None
            await watch(self.access, viewer.email, ticker, self.context.clock())
        scope = {"type": "http", "query_string": form.get("back", "").encode()}
        try:
            query = parse_page_query(Request(scope), BoardQuery)
        except ApiError:
            query = BoardQuery()
        return redirect_to(request, f"?{query.change()}#{quote(ticker)}")

    async def _read(
        self, request: Request
    ) -> tuple[BoardQuery, Viewer | None, Collection[str], Context]:
        """Return the view of a request, its viewer, what they watch, and what they may see."""
        query = parse_page_query(request, BoardQuery)
        viewer = await self.sessions.find_viewer(request)
        if viewer is None or not viewer.is_member:
            if query.show in ("first", "watched"):
                query = query.model_copy(update={"show": "all"})
            return query, viewer, (), self.sample
        watched = await self.access.list_watched(normalize_email(viewer.email))
        return query, viewer, watched, self.context

    async def _load_file(self, request: Request) -> tuple[Board, bool]:
        """Return the view of a file's URL, and whether a member sees it."""
        refuse_key(request, f"{self.context.docs_url}/state")
        query, _, watched, shown = await self._read(request)
        return await load_board(query, watched, shown), shown is not self.sample


def name_prices(board: Board, row: Row) -> dict[str, str | float | None]:
    """Return the prices of a row by their names, None for each that is unknown."""
    if not board.has_prices:
        return {}
    if (price := row.price) is None:
        return dict.fromkeys(PRICE_FIELDS)
    changes = (price.day_change, row.week_change)
    percents = [None if change is None else 100 * change for change in changes]
    values = (price.last_close, *percents, format_instant(price.closed_at))
    return dict(zip(PRICE_FIELDS, values, strict=True))


def format_change(row: Row) -> str | None:
    """Return when a reading of a row changed last."""
    return format_instant(row.changed_at) if row.changed_at else None


def list_row_values(board: Board) -> dict[str, Any]:
    """Return the values with which a template renders the rows and their tabs."""
    query = board.query
    return {
        "model": board,
        "meta": board.state.meta,
        "query": query,
        "heat": board.heat,
        "last_runs": [find_last_run(timeframe, board.as_of) for timeframe in query.timeframes],
        "age": format_age,
        "tabs": [(name, query.change(timeframe=each)) for each, name in TABS],
        "tab": dict(TABS)[query.timeframe],
        "build_path": build_path,
        "percent": format_percent,
        "signed": format_signed,
    }
