"""The data of the board, from the handlers of the tools. Only members see it."""

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

MAX_CHANGES = 20
MAX_GROUPS = 8
MIN_AGREEING = 4

ModelT = TypeVar("ModelT")


@dataclass(frozen=True, slots=True)
class BoardModel:
    """The latest data of one timeframe; `names` are the indicators' display names.

    `flips` covers the `hours` before `flips_until`.
    """

    tracked: Sequence[CatalogAsset]
    names: Mapping[IndicatorId, str]
    state: StateResponse
    changes: Sequence[Signal]
    flips: Sequence[FlipGroup]
    flips_until: Instant
    hours: int
    agreeing: Mapping[Side, Sequence[ConfluenceResult]]


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


async def load_board_model(timeframe: Timeframe, context: Context) -> BoardModel:
    """Return the data of the board; ApiError `unavailable` before the first run."""
    state = await get_state(StateQuery(timeframe=timeframe), context)
    catalog = await get_catalog(CatalogQuery(), context)
    feed_query = SignalsQuery(tier="all", timeframe=timeframe, limit=MAX_CHANGES)
    flips = await get_flips(FlipsQuery(timeframe=timeframe), context)
    return BoardModel(
        tracked=catalog.assets.list,
        names={indicator.id: indicator.name for indicator in catalog.indicators},
        state=state,
        changes=(await get_signals(feed_query, context)).signals,
        flips=flips.groups[:MAX_GROUPS],
        flips_until=flips.as_of,
        hours=flips.query.hours,
        agreeing={
            "bullish": await _load_agreeing(timeframe, "bullish", context),
            "bearish": await _load_agreeing(timeframe, "bearish", context),
        },
    )


async def _load_agreeing(
    timeframe: Timeframe, side: Side, context: Context
) -> Sequence[ConfluenceResult]:
    query = ConfluenceQuery(timeframe=timeframe, direction=side, min_agree=MIN_AGREEING)
    return (await get_confluence(query, context)).results[:MAX_GROUPS]
