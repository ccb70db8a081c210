"""The routes of the board: its page and files, the stars of its rows, and the time of its data."""

from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from access.members import Watchlists
from rest_shim.content_negotiation import is_not_modified
from schemas.errors import ApiError
from schemas.query import MAX_LIST_CHARS, MAX_NAME_CHARS
from serving.argument_values import find_asset
from serving.context import Context
from serving.error_responses import guard_route
from serving.freshness import build_freshness
from serving.http import CACHE_NO_STORE, CACHE_PRIVATE, JSON, read_headers
from serving.json_text import to_json, to_utf8
from serving.response_cache import ResponseBody
from serving.tool_runner import ToolRunner
from web.board import BoardPage
from web.board_files import build_csv, build_json
from web.board_query import BoardQuery, parse_page_query
from web.pages import SECURITY_HEADERS, build_page_route, redirect_to
from web.sessions import Sessions, Viewer

CSV = "text/csv; charset=utf-8"
# `back` is the query string of a view, which may hold a watchlist of encoded tickers.
WATCHLIST_FIELDS = {"add": MAX_NAME_CHARS, "remove": MAX_NAME_CHARS, "back": 3 * MAX_LIST_CHARS}


class BoardFiles:
    """Responds with the view of a board's URL as a file; visitors get the sample."""

    def __init__(self, page: BoardPage) -> None:
        self._page = page

    async def respond_csv(self, request: Request) -> Response:
        """Return the view as CSV, for spreadsheets."""
        view = await self._page.find_view(request)
        model, heat = await self._page.load_map(view)
        stamp = model.state.as_of[:16].replace(":", "")
        sample = "" if view.is_member else "-sample"
        name = f"signals-board{sample}-{view.query.timeframe}-{stamp}Z.csv"
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return _send(build_csv(model, heat, view.query), CSV, headers)

    async def respond_json(self, request: Request) -> Response:
        """Return the view as JSON."""
        view = await self._page.find_view(request)
        model, heat = await self._page.load_map(view)
        return _send(to_utf8(to_json(build_json(model, heat, view.query))), JSON)


class WatchlistForm:
    """Stars and unstars assets: the forms of the board's rows."""

    def __init__(self, context: Context, watchlists: Watchlists) -> None:
        self._context = context
        self._watchlists = watchlists

    async def respond(self, request: Request, viewer: Viewer, form: dict[str, str]) -> Response:
        """Change the viewer's watchlist and return to the row; ApiError 404 for unknown assets."""
        if not viewer.is_member:
            return redirect_to(request, "")
        ticker = form.get("remove", "")
        if ticker:
            # Also an asset that is no longer covered.
            await self._watchlists.remove(viewer.email, ticker)
        else:
            ticker = await self._find_ticker(form.get("add", ""))
            await self._watchlists.add(viewer.email, ticker)
        return redirect_to(request, f"?{_read_view(form.get('back', ''))}#{quote(ticker)}")

    async def _find_ticker(self, text: str) -> str:
        try:
            return find_asset(text, (await self._context.snapshot()).assets).ticker
        except ApiError as unknown:
            raise ApiError(unknown.code, unknown.message, 404) from None


def _read_view(query_string: str) -> str:
    """Return the query string of a view of the board, that of the default one if it is not one."""
    scope = {"type": "http", "query_string": query_string.encode()}
    try:
        return parse_page_query(Request(scope), BoardQuery).change()
    except ApiError:
        return BoardQuery().change()


def _send(body: bytes, media_type: str, headers: dict[str, str] | None = None) -> Response:
    shared = {**SECURITY_HEADERS, "Cache-Control": CACHE_NO_STORE}
    return Response(body, headers=shared | (headers or {}), media_type=media_type)


def build_board_routes(
    runner: ToolRunner, sessions: Sessions, watchlists: Watchlists
) -> list[Route]:
    """Return the routes of the board."""
    context = runner.context
    page = BoardPage(context, sessions, watchlists)
    files, form = BoardFiles(page), WatchlistForm(context, watchlists)

    async def respond_latest(request: Request) -> Response:
        """Return the time of the data, which the catalog publishes too, and of the next run."""
        snapshot = await context.snapshot()
        meta = build_freshness(snapshot, context.clock())
        update = meta["next_update"].model_dump(by_alias=True)["1h"]
        body = ResponseBody(to_utf8(to_json({"as_of": meta["as_of"], "next_update": update})))
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
            sessions.require_form(form.respond, WATCHLIST_FIELDS),
            "GET",
            "POST",
        ),
        *(
            Route(path, guard_route(path, runner, respond), methods=["GET"])
            for path, respond in (
                ("/board.csv", files.respond_csv),
                ("/board.json", files.respond_json),
                ("/board/latest.json", respond_latest),
            )
        ),
    ]
