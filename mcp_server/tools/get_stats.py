"""How much the feed published in the last 30 days, and nothing about how right it was."""

from collections import Counter
from collections.abc import Iterator

from mcp_server.context import STATISTICS_DAYS, Context
from mcp_server.freshness import freshness
from mcp_server.tools.tool import Tool
from schemas.coverage import Coverage
from schemas.facts import (
    DirectionCount,
    IndicatorCount,
    StatsResponse,
    StatsWindow,
    TierStats,
    TimeframeCount,
)
from schemas.meta import StatsMeta
from schemas.queries import NoArguments
from schemas.vocabulary import DAY_MS, INDICATOR_IDS, READING_NAMES, TIMEFRAMES, instant
from store.rows import Statistics

DESCRIPTION = (
    "Returns how many changes were published in the last 30 days: the total, the mean a day, and "
    "counts by indicator, timeframe and direction that each add up to the total. "
    "Use it to judge how busy the feed is; it holds volume alone, and signals_get_signals has the "
    "changes themselves. "
    "It is about 1,400 characters and needs neither key nor arguments. "
    "Zero means that nothing was published, null that a tier is not published by this release."
)
NOT_PUBLISHED = TierStats(
    total_signals=None,
    signals_per_day=None,
    by_indicator=[],
    by_timeframe=[],
    by_direction=[],
    history_starts_at=None,
)


async def get_stats(query: NoArguments, context: Context) -> StatsResponse:
    """Return the volume of the 30 days that the latest board ends."""
    board = await context.board()
    statistics = await context.boards.statistics(board)
    since = board.newest - STATISTICS_DAYS * DAY_MS
    return StatsResponse(
        window=StatsWindow(days=STATISTICS_DAYS, since=instant(since), until=instant(board.newest)),
        universe_tier=_universe_tier(statistics, board.coverage),
        alerts_tier=NOT_PUBLISHED,
        meta=StatsMeta(**freshness(board, context.clock(), *_notes(statistics, since))),
    )


def _universe_tier(statistics: Statistics, coverage: Coverage) -> TierStats:
    indicators, timeframes, readings = Counter[str](), Counter[str](), Counter[int]()
    for (indicator, timeframe, reading), count in statistics.counts.items():
        indicators[indicator] += count
        timeframes[timeframe] += count
        readings[reading] += count
    total = sum(statistics.counts.values())
    return TierStats(
        total_signals=total,
        signals_per_day=total / STATISTICS_DAYS,
        by_indicator=list(_by_indicator(indicators, coverage)),
        by_timeframe=[TimeframeCount(timeframe=t, signals=timeframes[t]) for t in TIMEFRAMES],
        by_direction=[
            DirectionCount(direction=READING_NAMES[reading], signals=readings[reading])
            for reading in (1, -1, 0)
        ],
        history_starts_at=None if statistics.oldest is None else instant(statistics.oldest),
    )


def _by_indicator(counts: Counter[str], coverage: Coverage) -> Iterator[IndicatorCount]:
    """Yield the logged indicators, and whichever other one has rows."""
    names = {indicator.id: indicator.name for indicator in coverage.indicators}
    logged = {indicator.id for indicator in coverage.logged}
    for id_ in INDICATOR_IDS:
        if id_ in logged or counts[id_]:
            yield IndicatorCount(
                indicator=id_, indicator_name=names.get(id_, id_), signals=counts[id_]
            )


def _notes(statistics: Statistics, since: int) -> Iterator[str]:
    if statistics.oldest is None:
        yield "No change has been published yet."
    elif statistics.oldest > since:
        yield "History starts inside the window, so it holds less than 30 days of changes."
    yield "The alerts tier is not published by this release, so its figures are null."


GET_STATS = Tool(
    name="signals_get_stats",
    title="Volume of the last 30 days",
    description=DESCRIPTION,
    query=NoArguments,
    result=StatsResponse,
    handler=get_stats,
    keyed=False,
)
