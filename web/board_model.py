"""What the board is drawn from: the answers of the tools' handlers, for members alone."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mcp_server.tools.get_catalog import get_catalog
from mcp_server.tools.get_confluence import get_confluence
from mcp_server.tools.get_flips import get_flips
from mcp_server.tools.get_signals import get_signals
from mcp_server.tools.get_state import get_state
from schemas.catalog import CatalogAsset, CatalogQuery
from schemas.confluence import ConfluenceQuery, ConfluenceResult
from schemas.flips import FlipGroup, FlipsQuery
from schemas.signals import Signal, SignalsQuery
from schemas.state import StateQuery, StateResponse
from schemas.vocabulary import IndicatorId, Instant, Side, Timeframe
from serving.context import Context

MOST_CHANGES = 20
MOST_GROUPS = 8
LEAST_AGREEING = 4

ViewsT = TypeVar("ViewsT")


@dataclass(frozen=True, slots=True)
class Views:
    """One timeframe of everything latest; `names` are those of indicators.

    `flips` are of the `hours` up to `flips_until`.
    """

    tracked: Sequence[CatalogAsset]
    names: Mapping[IndicatorId, str]
    state: StateResponse
    changes: Sequence[Signal]
    flips: Sequence[FlipGroup]
    flips_until: Instant
    hours: int
    agreeing: Mapping[Side, Sequence[ConfluenceResult]]


async def of_one_version(context: Context, read: Callable[[], Awaitable[ViewsT]]) -> ViewsT:
    """Return several answers of one version: read anew where a run was committed meanwhile.

    ApiError `unavailable` before the first compute.
    """
    while True:
        board = await context.board()
        views = await read()
        if await context.board() is board:
            return views


async def live_views(timeframe: Timeframe, context: Context) -> Views:
    """Return what is so now; ApiError `unavailable` before the first compute."""
    state = await get_state(StateQuery(timeframe=timeframe), context)
    catalog = await get_catalog(CatalogQuery(), context)
    feed = SignalsQuery(tier="all", timeframe=timeframe, limit=MOST_CHANGES)
    flips = await get_flips(FlipsQuery(timeframe=timeframe), context)
    return Views(
        tracked=catalog.assets.list,
        names={indicator.id: indicator.name for indicator in catalog.indicators},
        state=state,
        changes=(await get_signals(feed, context)).signals,
        flips=flips.groups[:MOST_GROUPS],
        flips_until=flips.as_of,
        hours=flips.query.hours,
        agreeing={
            "bullish": await _agreeing(timeframe, "bullish", context),
            "bearish": await _agreeing(timeframe, "bearish", context),
        },
    )


async def _agreeing(
    timeframe: Timeframe, side: Side, context: Context
) -> Sequence[ConfluenceResult]:
    query = ConfluenceQuery(timeframe=timeframe, direction=side, min_agree=LEAST_AGREEING)
    return (await get_confluence(query, context)).results[:MOST_GROUPS]
