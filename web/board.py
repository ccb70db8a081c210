"""The board at `/`, as page, CSV and JSON: of live data for members, else of the sample."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, get_args
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from access.billing.provider import PRICES_USD
from access.members import watch
from mcp_server.tools.get_catalog import get_catalog
from mcp_server.tools.get_stats import get_stats
from rest_shim.endpoints import is_not_modified
from schemas.catalog import CatalogQuery
from schemas.errors import ApiError, NotBuiltError
from schemas.query import MAX_LIST_CHARS, MAX_NAME_CHARS, NoArguments
from schemas.vocabulary import TIMEFRAMES, Reading, find_latest_run, format_instant
from serving.argument_values import find_asset
from serving.context import Context
from serving.error_responses import guard_route
from serving.freshness import build_freshness
from serving.http import CACHE_NO_STORE, CACHE_PRIVATE, JSON, read_headers
from serving.json_text import to_json, to_utf8
from serving.response_cache import ResponseBody
from serving.tool_runner import ToolRunner
from store.access_rows import normalize_email
from store.sql.access_store import AccessStore
from web.board_model import (
    CLASS_NAMES,
    Board,
    BoardQuery,
    Row,
    find_last_run,
    load_board,
    parse_page_query,
)
from web.csv_text import render_csv
from web.pages import (
    SECURITY_HEADERS,
    build_page_route,
    redirect_to,
    render_page,
    respond_with_page,
)
from web.price_texts import build_path, format_age, format_percent, format_signed
from web.sessions import Sessions, Viewer, refuse_key

# As the headers of the columns; the packaged universe is quoted in US dollars or their tokens.
PRICE_FIELDS = ("last_close_usd", "change_24h_percent", "change_7d_percent", "last_close_at")
SCORE_NOTE = "bullish minus bearish readings of all indicators on the shown timeframes"
BADGES = {
    "simulated": "Simulated market",
    "recorded": "Recorded data",
    "live": "Live data",
    "sample": "Sample, not live data",
}
TITLE = "Board of readings"
# The headline of the page that a new visitor sees.
WELCOME = "Readings that never repaint"
TABS = [(timeframe, timeframe) for timeframe in TIMEFRAMES] + [("all", "All")]
CSV = "text/csv; charset=utf-8"
FILE_HEADERS = {**SECURITY_HEADERS, "Cache-Control": CACHE_NO_STORE}
# `back` is the query string of a view.
WATCHLIST_FIELDS = {"add": MAX_NAME_CHARS, "remove": MAX_NAME_CHARS, "back": MAX_LIST_CHARS}


@dataclass(frozen=True, slots=True)
class BoardPages:
    """The board and its files; visitors see the `sample`."""

    context: Context
    sample: Context
    sessions: Sessions
    access: AccessStore

    def build_routes(self, runner: ToolRunner) -> list[Route]:
        """Return the routes."""
        change_star = self.sessions.require_form(self.change_star, WATCHLIST_FIELDS)
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
                title=WELCOME if has_facts else TITLE,
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
        headers = {**FILE_HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
        return Response(render_csv(header, rows), headers=headers, media_type=CSV)

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
            "net_score": SCORE_NOTE,
            "total_assets": board.heat.total,
            "assets": assets,
        }
        return Response(to_utf8(to_json(document)), headers=FILE_HEADERS, media_type=JSON)

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
        if ticker:
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
