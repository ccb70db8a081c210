"""The board at `/`, as page, CSV and JSON: of live data for members, else of the sample."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, get_args
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from access.billing.provider import PRICES_USD
from access.members import Watchlists
from mcp_server.tools.get_catalog import get_catalog
from mcp_server.tools.get_stats import get_stats
from rest_shim.endpoints import is_not_modified
from schemas.catalog import CatalogQuery
from schemas.errors import ApiError
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
from web.board_model import (
    CLASS_NAMES,
    BoardModel,
    BoardQuery,
    HeatMap,
    Row,
    build_heat_map,
    find_last_run,
    load_board_model,
    parse_page_query,
    read_one_version,
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


def _name_values(model: BoardModel, row: Row) -> dict[str, str | float | None]:
    """Return the prices of a row by their names, None for each that is unknown."""
    if model.prices is None:
        return {}
    if (price := row.price) is None:
        return dict.fromkeys(PRICE_FIELDS)
    changes = (price.day_change, row.week_change)
    percents = [None if change is None else 100 * change for change in changes]
    values = (price.last_close, *percents, format_instant(price.closed_at))
    return dict(zip(PRICE_FIELDS, values, strict=True))


def _format_change(row: Row) -> str | None:
    return format_instant(row.changed_at) if row.changed_at else None


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


@dataclass(frozen=True, slots=True)
class BoardView:
    """What a viewer gets: `watched` is their stored watchlist, empty for visitors."""

    query: BoardQuery
    viewer: Viewer | None
    is_member: bool
    watched: Collection[str]


class BoardPage:
    """Renders the board for members and visitors."""

    def __init__(
        self, context: Context, sample: Context, sessions: Sessions, watchlists: Watchlists
    ) -> None:
        self._context = context
        self._sample = sample
        self._sessions = sessions
        self._watchlists = watchlists

    async def respond(self, request: Request) -> Response:
        """Return the page; ApiError if a filter is invalid or there is no snapshot yet."""
        view = await self.find_view(request)
        # A filtered page repeats its URL's text next to the form token: see `respond_with_page`.
        key = f"?{view.query.change()}" if view.query.is_unfiltered else None
        return await respond_with_page(
            request, self._context, view.viewer, key, lambda: self._draw(request, view)
        )

    async def _draw(self, request: Request, view: BoardView) -> Response:
        query = view.query
        model, heat = await self.load_map(view)
        meta, is_member, context = model.state.meta, view.is_member, self._context
        has_facts = not is_member and query == BoardQuery()
        is_built = has_facts and await context.snapshots.snapshot() is not None
        return render_page(
            request,
            "board.html",
            title=WELCOME if has_facts else TITLE,
            board_title=TITLE,
            here="",
            badge=BADGES[meta.source],
            is_wide=True,
            is_public=not is_member,
            viewer=view.viewer,
            is_member=is_member,
            back=query.change(),
            has_facts=has_facts,
            prices_usd=PRICES_USD,
            catalog=await get_catalog(CatalogQuery(), context) if is_built else None,
            stats=await get_stats(NoArguments(), context) if is_built else None,
            watched=frozenset(view.watched),
            # The shortest of the shown timeframes changes first.
            last_run=find_last_run(query.timeframes[0], model.as_of),
            classes=CLASS_NAMES,
            directions=get_args(Reading),
            **list_row_values(query, model, heat),
        )

    async def find_view(self, request: Request) -> BoardView:
        """Return the view of a request; ApiError if a parameter is invalid."""
        query = parse_page_query(request, BoardQuery)
        viewer = await self._sessions.find_viewer(request)
        if viewer is None or not viewer.is_member:
            return BoardView(query, viewer, is_member=False, watched=())
        watched = await self._watchlists.list_tickers(viewer.email)
        return BoardView(query, viewer, is_member=True, watched=watched)

    async def load_map(self, view: BoardView) -> tuple[BoardModel, HeatMap]:
        """Return the data of a view and its rows."""
        context = self._context if view.is_member else self._sample
        return await load_map(view.query, view.watched, context)


async def load_map(
    query: BoardQuery, watched: Collection[str], context: Context
) -> tuple[BoardModel, HeatMap]:
    """Return the data of a board and its rows; `watched` is the viewer's stored watchlist."""
    model = await read_one_version(context, lambda: load_board_model(query.timeframe, context))
    heat = build_heat_map(
        *(model.tracked, model.state.assets, model.prices or {}, query, watched),
        changed_at=model.changed_at,
        as_of=model.as_of,
    )
    return model, heat


def list_row_values(query: BoardQuery, model: BoardModel, heat: HeatMap) -> dict[str, Any]:
    """Return the values with which a template renders the rows and their tabs."""
    return {
        "model": model,
        "meta": model.state.meta,
        "query": query,
        "heat": heat,
        "last_runs": [find_last_run(timeframe, model.as_of) for timeframe in query.timeframes],
        "age": format_age,
        "tabs": [(name, query.change(timeframe=each)) for each, name in TABS],
        "tab": dict(TABS)[query.timeframe],
        "build_path": build_path,
        "percent": format_percent,
        "signed": format_signed,
    }


CSV = "text/csv; charset=utf-8"
# `back` is the query string of a view, which may hold a watchlist of encoded tickers.
WATCHLIST_FIELDS = {"add": MAX_NAME_CHARS, "remove": MAX_NAME_CHARS, "back": 3 * MAX_LIST_CHARS}


def _send(body: bytes, media_type: str, headers: dict[str, str] | None = None) -> Response:
    shared = {**SECURITY_HEADERS, "Cache-Control": CACHE_NO_STORE}
    return Response(body, headers=shared | (headers or {}), media_type=media_type)


def build_board_routes(
    runner: ToolRunner, sample: ToolRunner, sessions: Sessions, watchlists: Watchlists
) -> list[Route]:
    """Return the routes of the board; visitors see the `sample`."""
    context = runner.context
    page = BoardPage(context, sample.context, sessions, watchlists)

    async def respond_csv(request: Request) -> Response:
        """Return the view of the URL as CSV, for spreadsheets; visitors get the sample."""
        refuse_key(request, f"{context.docs_url}/state")
        view = await page.find_view(request)
        model, heat = await page.load_map(view)
        timeframes, ends = view.query.timeframes, (model.state.as_of, model.state.meta.source)
        cells = [(column, place) for column in heat.columns for place in range(len(timeframes))]
        header = [
            *("ticker", "name", "asset_class", "net_score", "changed_at"),
            *(f"{column}_{timeframes[place]}" for column, place in cells),
            *(() if model.prices is None else PRICE_FIELDS),
            *("as_of", "source"),
        ]
        rows = [
            [
                *(row.ticker, row.name, row.asset_class, row.score, _format_change(row)),
                *(row.readings[column][place] for column, place in cells),
                *_name_values(model, row).values(),
                *ends,
            ]
            for row in heat.rows  # in the order of the page
        ]
        stamp = model.state.as_of[:16].replace(":", "")
        sample = "" if view.is_member else "-sample"
        name = f"signals-board{sample}-{view.query.timeframe}-{stamp}Z.csv"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return _send(render_csv(header, rows), CSV, headers)

    async def respond_json(request: Request) -> Response:
        """Return the view of the URL as JSON; visitors get the sample."""
        refuse_key(request, f"{context.docs_url}/state")
        view = await page.find_view(request)
        model, heat = await page.load_map(view)
        assets = [
            {
                "ticker": row.ticker,
                "name": row.name,
                "asset_class": row.asset_class,
                "net_score": row.score,
                "changed_at": _format_change(row),
                "readings": {
                    column: dict(zip(view.query.timeframes, row.readings[column], strict=True))
                    for column in heat.columns
                },
                **_name_values(model, row),
            }
            for row in heat.rows
        ]
        document = {
            "as_of": model.state.as_of,
            "source": model.state.meta.source,
            "note": model.state.meta.page_note,
            "query": view.query.model_dump(exclude_none=True),
            "net_score": SCORE_NOTE,
            "total_assets": heat.total,
            "assets": assets,
        }
        return _send(to_utf8(to_json(document)), JSON)

    async def change_star(request: Request, viewer: Viewer, form: dict[str, str]) -> Response:
        """Star or unstar an asset and return to its row; ApiError 404 for unknown assets."""
        if not viewer.is_member:
            return redirect_to(request, "")
        ticker = form.get("remove", "")
        if ticker:
            # Also an asset that is no longer covered.
            await watchlists.remove(viewer.email, ticker)
        else:
            try:
                ticker = find_asset(form.get("add", ""), (await context.snapshot()).assets).ticker
            except ApiError as unknown:
                raise ApiError(unknown.code, unknown.message, 404) from None
            await watchlists.add(viewer.email, ticker)
        scope = {"type": "http", "query_string": form.get("back", "").encode()}
        try:
            query = parse_page_query(Request(scope), BoardQuery)
        except ApiError:
            query = BoardQuery()
        return redirect_to(request, f"?{query.change()}#{quote(ticker)}")

    async def respond_latest(request: Request) -> Response:
        """Return the time of the data, which the catalog publishes too, and of the next run.

        `changes` counts the rows that its run published.
        """
        snapshot = await context.snapshot()
        meta = build_freshness(snapshot, context.clock())
        update = meta["next_update"].get("1h")
        ledger, until = await context.snapshots.ledger(snapshot), snapshot.stored.last_created_at
        began = find_latest_run(snapshot.market_time) - 1
        latest = {
            "as_of": meta["as_of"],
            "next_update": update,
            "changes": ledger.count_kinds("universe", began, until).total(),
        }
        body = ResponseBody(to_utf8(to_json(latest)))
        etag = body.etag.decode()
        headers = {"ETag": etag, "Cache-Control": CACHE_PRIVATE}
        if is_not_modified(read_headers(request.scope), body.etag):
            return Response(status_code=304, headers=headers)
        return Response(body.text, headers=headers, media_type=JSON)

    return [
        build_page_route("/", runner, page.respond),
        build_page_route(
            "/watchlist",
            runner,
            sessions.require_form(change_star, WATCHLIST_FIELDS),
            "GET",
            "POST",
        ),
        *(
            Route(path, guard_route(path, runner, respond), methods=["GET"])
            for path, respond in (
                ("/board.csv", respond_csv),
                ("/board.json", respond_json),
                ("/board/latest.json", respond_latest),
            )
        ),
    ]
