"""The board at `/`. Members see live data; visitors see a labelled sample and public counts."""

import asyncio
import re
from collections.abc import Awaitable, Collection
from dataclasses import dataclass
from typing import TypeVar, get_args

from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response

from access.members import Watchlists
from mcp_server.tools.get_catalog import get_catalog
from mcp_server.tools.get_stats import get_stats
from schemas.catalog import CatalogQuery, CatalogResponse
from schemas.errors import ApiError
from schemas.query import NoArguments
from schemas.stats import StatsResponse
from schemas.vocabulary import TIMEFRAMES, Reading
from serving.context import Context
from serving.response_cache import ResponseBody
from serving.tool_runner import get_or_render
from web.board_model import BoardModel, load_board_model, read_one_version
from web.board_query import BoardQuery, parse_page_query
from web.heat_map import CLASS_NAMES, HeatMap, build_heat_map
from web.pages import compress_page, get_site, render_page, render_template
from web.sample_board import build_sample_model
from web.sessions import Sessions, Viewer
from web.sparkline import build_path, format_percent, format_signed

BADGES = {
    "simulated": "Simulated market",
    "recorded": "Recorded data",
    "live": "Live data",
    "sample": "Sample, not live data",
}
TITLE = "Board of readings"
# Cached HTML cannot depend on the request, so its links start from the one path of this page.
ROOT = "./"
TABS = [(timeframe, timeframe) for timeframe in TIMEFRAMES] + [("all", "All")]
# The star of a row, as board_rows.html writes it.
STAR_PATTERN = re.compile(r'name="add" value="([^"]*)" aria-label="Watch ')

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class PublicFacts:
    """The results of the open tools; None before the first run."""

    catalog: CatalogResponse | None
    stats: StatsResponse | None


@dataclass(frozen=True, slots=True)
class BoardView:
    """What a viewer gets: `watched` is their stored watchlist, empty for visitors."""

    query: BoardQuery
    viewer: Viewer | None
    is_member: bool
    watched: Collection[str]


class BoardPage:
    """Renders the board for members and visitors."""

    def __init__(self, context: Context, sessions: Sessions, watchlists: Watchlists) -> None:
        self._context = context
        self._sessions = sessions
        self._watchlists = watchlists
        self._lock = asyncio.Lock()

    async def respond(self, request: Request) -> Response:
        """Return the page; ApiError if a filter is invalid or there is no snapshot yet."""
        view = await self.find_view(request)
        if view.viewer is None and view.query.is_unfiltered:
            return await get_site(request).visitor_pages.respond(
                request, self._context, f"?{view.query.change()}", lambda: self._draw(request, view)
            )
        return await self._draw(request, view)

    async def _draw(self, request: Request, view: BoardView) -> Response:
        query = view.query
        cached = await self._get_cached(view) if view.viewer and query.is_unfiltered else None
        text = await self._draw_main(view) if cached is None else cached.text.decode()
        response = render_page(
            request,
            "board.html",
            title=TITLE,
            here="",
            badge=BADGES[
                (await self._context.snapshot()).coverage.source if view.is_member else "sample"
            ],
            is_wide=True,
            is_public=not view.is_member,
            viewer=view.viewer,
            is_member=view.is_member,
            back=query.change(),
            board=Markup(mark_watched(text, view.watched)),
        )
        # A filtered page repeats its URL's text next to the form token: see `compress_page`.
        return response if cached is None else compress_page(request, response)

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
        timeframe, context = view.query.timeframe, self._context
        model = (
            await read_one_version(context, lambda: load_board_model(timeframe, context))
            if view.is_member
            else build_sample_model(timeframe, with_prices=context.prices is not None)
        )
        prices = model.prices or {}
        rows = build_heat_map(model.tracked, model.state.assets, prices, view.query, view.watched)
        return model, rows

    async def _get_cached(self, view: BoardView) -> ResponseBody:
        """Return the unfiltered board of the current snapshot, rendering it if needed."""
        # Rendering 252 rows takes 10 to 20 ms, a cached page less than 2. The lock lets requests
        # that arrive together wait for one rendering. Filtered boards are rendered each time.

        async def draw() -> ResponseBody:
            return ResponseBody((await self._draw_main(view)).encode())

        query = view.query
        key = f"board page {query.timeframe} {query.sort} {query.sort_order} {view.is_member}"
        async with self._lock:
            return await get_or_render(self._context, key, draw)

    async def _draw_main(self, view: BoardView) -> str:
        """Return the HTML below the page's header."""
        # The result is cached for all members: nothing of one member may get into it. An unfiltered
        # board does not depend on the watchlist; `mark_watched` adds its stars to the cached text.
        context, query = self._context, view.query
        model, heat = await self.load_map(view)
        meta = model.state.meta
        return render_template(
            "board_main.html",
            ROOT,
            title=TITLE,
            is_member=view.is_member,
            sells_keys=context.sells_keys,
            public_facts=None
            if view.is_member or not query.is_unfiltered
            else await self._load_public_facts(),
            model=model,
            meta=meta,
            next_updates=meta.next_update.model_dump(by_alias=True),
            query=query,
            heat=heat,
            # The shortest of the shown timeframes changes first.
            next_timeframe=query.timeframes[0],
            tabs=[(name, query.change(timeframe=each)) for each, name in TABS],
            tab=dict(TABS)[query.timeframe],
            classes=CLASS_NAMES,
            directions=get_args(Reading),
            build_path=build_path,
            percent=format_percent,
            signed=format_signed,
        )

    async def _load_public_facts(self) -> PublicFacts:
        catalog = await _get_or_none(get_catalog(CatalogQuery(), self._context))
        return PublicFacts(catalog, await _get_or_none(get_stats(NoArguments(), self._context)))


def mark_watched(text: str, watched: Collection[str]) -> str:
    """Return the board's HTML with filled stars at the assets of a stored watchlist."""
    if not watched:
        return text
    values = {str(escape(ticker)) for ticker in watched}

    def fill(star: re.Match[str]) -> str:
        value = star[1]
        if value not in values:
            return star[0]
        return f'name="remove" value="{value}" aria-label="Stop watching '

    return STAR_PATTERN.sub(fill, text)


async def _get_or_none(result: Awaitable[ResultT]) -> ResultT | None:
    """Return a handler's result, or None if it is unavailable before the first run."""
    try:
        return await result
    except ApiError:
        return None
