"""The data of the board, from the handlers of the tools. Only members see it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mcp_server.tools.get_catalog import get_catalog
from mcp_server.tools.get_state import get_state
from schemas.catalog import CatalogAsset, CatalogQuery
from schemas.state import StateQuery, StateResponse
from schemas.vocabulary import IndicatorId
from serving.context import Context
from serving.prices import PriceSummary
from web.board_query import BoardTimeframe

ModelT = TypeVar("ModelT")


@dataclass(frozen=True, slots=True)
class BoardModel:
    """The latest data of one timeframe or all; `names` are the indicators' display names.

    `prices` are by ticker, None if the operator shows no prices.
    """

    tracked: Sequence[CatalogAsset]
    names: Mapping[IndicatorId, str]
    state: StateResponse
    prices: Mapping[str, PriceSummary] | None


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


async def load_board_model(timeframe: BoardTimeframe, context: Context) -> BoardModel:
    """Return the data of the board; ApiError `unavailable` before the first run."""
    state = await get_state(
        StateQuery(timeframe=None if timeframe == "all" else timeframe), context
    )
    catalog = await get_catalog(CatalogQuery(), context)
    return BoardModel(
        tracked=catalog.assets.list,
        names={indicator.id: indicator.name for indicator in catalog.indicators},
        state=state,
        prices=None if context.prices is None else await context.prices.load_summaries(),
    )
