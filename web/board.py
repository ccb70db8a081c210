"""The board at `/`: for members what is so now, for visitors the sample and what is open.

The whole board of a timeframe is drawn once a version; what a filter leaves of it, at each request.
"""

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
from serving.response_cache import Answer
from serving.tool_runner import Calls, kept_with_board
from web.board_model import LEAST_AGREEING, live_views, of_one_version
from web.board_query import BoardQuery, asked
from web.heat_map import CLASS_NAMES, heat_map
from web.pages import compressed, page, page_route, rendered
from web.sample_board import sample_views
from web.sessions import ViewerOf

BADGES = {
    "simulated": "Simulated market",
    "recorded": "Recorded data",
    "live": "Live data",
    "sample": "Sample, not live data",
}
# What links of the page at `/` begin with, whoever asks for it.
ROOT = "./"

AnswerT = TypeVar("AnswerT")


@dataclass(frozen=True, slots=True)
class Open:
    """What needs no key; None before there is any."""

    catalog: CatalogResponse | None
    stats: StatsResponse | None


class BoardPage:
    """Draws the board on one context for whoever looks at it."""

    def __init__(self, context: Context, viewer_of: ViewerOf) -> None:
        self._context = context
        self._viewer_of = viewer_of
        self._lock = asyncio.Lock()

    async def respond(self, request: Request) -> Response:
        """Answer one request; ApiError where a filter is not accepted or nothing is there yet."""
        query = asked(request, BoardQuery)
        viewer = await self._viewer_of(request)
        is_member = viewer is not None and viewer.is_member
        kept = await self._kept(query, is_member) if query.is_unfiltered else None
        text = await self._drawn(query, is_member) if kept is None else kept.text.decode()
        response = page(
            request,
            "board.html",
            title="Board of readings",
            here="",
            badge=BADGES[(await self._context.board()).coverage.source if is_member else "sample"],
            is_wide=True,
            is_public=not is_member,
            viewer=viewer,
            board=Markup(text),
        )
        return response if kept is None else compressed(request, response)

    async def _kept(self, query: BoardQuery, is_member: bool) -> Answer:
        """Return the board of a version; one drawing serves all who wait for it."""

        async def draw() -> Answer:
            return Answer((await self._drawn(query, is_member)).encode())

        place = f"board page {query.timeframe} {is_member}"
        async with self._lock:
            return await kept_with_board(self._context, place, draw)

    async def _drawn(self, query: BoardQuery, is_member: bool) -> str:
        """Return what a page shows below its header; nothing tells one member from another."""
        context, timeframe = self._context, query.timeframe
        if is_member:
            views = await of_one_version(context, lambda: live_views(timeframe, context))
            opened = None
        else:
            views, opened = sample_views(timeframe), await self._open()
        return rendered(
            "board_main.html",
            ROOT,
            base_url=context.base_url,
            opened=opened,
            views=views,
            meta=views.state.meta,
            query=query,
            heat=heat_map(views.tracked, views.state.assets, query),
            addresses=[(each, query.address(each)) for each in TIMEFRAMES],
            classes=CLASS_NAMES,
            directions=get_args(Reading),
            least_agreeing=LEAST_AGREEING,
        )

    async def _open(self) -> Open:
        catalog = await _or_none(get_catalog(CatalogQuery(), self._context))
        return Open(catalog, await _or_none(get_stats(NoArguments(), self._context)))


async def _or_none(answer: Awaitable[AnswerT]) -> AnswerT | None:
    """Wait for an answer that is not there before the first compute."""
    try:
        return await answer
    except ApiError:
        return None


def board_routes(calls: Calls, viewer_of: ViewerOf) -> list[Route]:
    """Return the route of the board."""
    return [page_route("/", calls, BoardPage(calls.context, viewer_of).respond)]
