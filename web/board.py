"""The board at `/`. Members see live data; visitors see a labelled sample and public counts."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar, get_args

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mcp_server.tools.get_catalog import get_catalog
from mcp_server.tools.get_stats import get_stats
from schemas.catalog import CatalogQuery, CatalogResponse
from schemas.errors import ApiError
from schemas.query import NoArguments
from schemas.stats import StatsResponse
from schemas.vocabulary import TIMEFRAMES, Reading
from serving.context import Context
from serving.response_cache import ResponseBody
from serving.tool_runner import ToolRunner, get_or_render
from web.board_model import MIN_AGREEING, load_board_model, read_one_version
from web.board_query import BoardQuery, parse_page_query
from web.heat_map import CLASS_NAMES, build_heat_map
from web.pages import build_page_route, compress_page, render_page, render_template
from web.sample_board import build_sample_model
from web.sessions import FindViewer

BADGES = {
    "simulated": "Simulated market",
    "recorded": "Recorded data",
    "live": "Live data",
    "sample": "Sample, not live data",
}
# Cached HTML cannot depend on the request, so its links start from the one path of this page.
ROOT = "./"

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class PublicFacts:
    """The results of the open tools; None before the first run."""

    catalog: CatalogResponse | None
    stats: StatsResponse | None


class BoardPage:
    """Renders the board for members and visitors."""

    def __init__(self, context: Context, find_viewer: FindViewer) -> None:
        self._context = context
        self._find_viewer = find_viewer
        self._lock = asyncio.Lock()

    async def respond(self, request: Request) -> Response:
        """Return the page; ApiError if a filter is invalid or there is no snapshot yet."""
        query = parse_page_query(request, BoardQuery)
        viewer = await self._find_viewer(request)
        is_member = viewer is not None and viewer.is_member
        cached = await self._get_cached(query, is_member) if query.is_unfiltered else None
        text = await self._draw_main(query, is_member) if cached is None else cached.text.decode()
        response = render_page(
            request,
            "board.html",
            title="Board of readings",
            here="",
            badge=BADGES[
                (await self._context.snapshot()).coverage.source if is_member else "sample"
            ],
            is_wide=True,
            is_public=not is_member,
            viewer=viewer,
            board=Markup(text),
        )
        # A filtered page repeats its URL's text next to the form token: see `compress_page`.
        return response if cached is None else compress_page(request, response)

    async def _get_cached(self, query: BoardQuery, is_member: bool) -> ResponseBody:
        """Return the unfiltered board of the current snapshot, rendering it if needed."""
        # Rendering 252 rows takes 10 to 20 ms, a cached page less than 2. The lock lets requests
        # that arrive together wait for one rendering. Filtered boards are rendered each time.

        async def draw() -> ResponseBody:
            return ResponseBody((await self._draw_main(query, is_member)).encode())

        key = f"board page {query.timeframe} {is_member}"
        async with self._lock:
            return await get_or_render(self._context, key, draw)

    async def _draw_main(self, query: BoardQuery, is_member: bool) -> str:
        """Return the HTML below the page's header."""
        # The result is cached for all members: nothing of one member may get into it.
        context, timeframe = self._context, query.timeframe
        if is_member:
            model = await read_one_version(context, lambda: load_board_model(timeframe, context))
            public_facts = None
        else:
            model, public_facts = build_sample_model(timeframe), await self._load_public_facts()
        return render_template(
            "board_main.html",
            ROOT,
            base_url=context.base_url,
            sells_keys=context.sells_keys,
            public_facts=public_facts,
            model=model,
            meta=model.state.meta,
            query=query,
            heat=build_heat_map(model.tracked, model.state.assets, query),
            addresses=[(each, query.to_query_string(each)) for each in TIMEFRAMES],
            classes=CLASS_NAMES,
            directions=get_args(Reading),
            min_agreeing=MIN_AGREEING,
        )

    async def _load_public_facts(self) -> PublicFacts:
        catalog = await _get_or_none(get_catalog(CatalogQuery(), self._context))
        return PublicFacts(catalog, await _get_or_none(get_stats(NoArguments(), self._context)))


async def _get_or_none(result: Awaitable[ResultT]) -> ResultT | None:
    """Return a handler's result, or None if it is unavailable before the first run."""
    try:
        return await result
    except ApiError:
        return None


def build_board_routes(runner: ToolRunner, find_viewer: FindViewer) -> list[Route]:
    """Return the route of the board."""
    return [build_page_route("/", runner, BoardPage(runner.context, find_viewer).respond)]
