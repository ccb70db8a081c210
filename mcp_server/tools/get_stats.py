"""signals_get_stats: the number of rows published in 30 days; no win rates, accuracy or returns."""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import NamedTuple

from schemas.coverage import Coverage, merge_timeframes
from schemas.query import NoArguments
from schemas.stats import (
    DirectionCount,
    IndicatorCount,
    StatsMeta,
    StatsResponse,
    StatsWindow,
    TierStats,
    TimeframeCount,
)
from schemas.vocabulary import (
    DAY_MS,
    INDICATOR_IDS,
    RETENTION_MS,
    TIMEFRAMES,
    Direction,
    Tier,
    Timeframe,
    format_instant,
)
from serving.context import Context
from serving.freshness import build_freshness
from serving.tool import Tool

STATISTICS_DAYS = 30
Row = tuple[str, Timeframe, Direction]


class Statistics(NamedTuple):
    """The rows of a tier in the window, and when the oldest row was published that is kept."""

    counts: Mapping[Row, int]
    oldest: int | None


DESCRIPTION = (
    "Counts the signals of the last 30 days: total and average per day, by indicator, timeframe "
    "and direction. Use it for how busy the feed is or which indicator changes most; it has counts "
    "only. About 2,100 characters; needs no key."
)
NOT_COVERED = TierStats(
    total_signals=None,
    signals_per_day=None,
    by_indicator=[],
    by_timeframe=[],
    by_direction=[],
    history_starts_at=None,
)


async def get_stats(query: NoArguments, context: Context) -> StatsResponse:
    """Return the counts of the 30 days that end with the latest snapshot."""
    snapshot = await context.snapshot()
    ledger = await context.snapshots.ledger(snapshot)
    since, until = snapshot.newest_at - STATISTICS_DAYS * DAY_MS, snapshot.stored.last_created_at
    statistics = {
        tier: Statistics(
            ledger.count_kinds(tier, since, until),
            ledger.find_oldest(tier, snapshot.market_time - kept_ms, until),
        )
        for tier, kept_ms in RETENTION_MS.items()
    }
    return StatsResponse(
        window=StatsWindow(
            days=STATISTICS_DAYS,
            since=format_instant(since),
            until=format_instant(snapshot.newest_at),
        ),
        universe_tier=_build_universe_tier(statistics["universe"], snapshot.coverage),
        alerts_tier=_build_alerts_tier(statistics["alerts"], snapshot.coverage),
        meta=StatsMeta(
            **build_freshness(
                snapshot, context.clock(), *_list_notes(statistics, snapshot.coverage, since)
            )
        ),
    )


def _build_universe_tier(statistics: Statistics, coverage: Coverage) -> TierStats:
    if statistics.oldest is None and not any(asset.timeframes for asset in coverage.tracked):
        return NOT_COVERED
    logged = [indicator.id for indicator in coverage.logged]
    directions: tuple[Direction, ...] = ("bullish", "bearish", "neutral")
    return _build_tier(statistics, coverage, logged, TIMEFRAMES, directions)


def _build_alerts_tier(statistics: Statistics, coverage: Coverage) -> TierStats:
    followed = merge_timeframes(asset.alerts for asset in coverage.tracked)
    if not followed and statistics.oldest is None:
        return NOT_COVERED
    covered = [indicator.id for indicator in coverage.indicators]
    # Rows of a timeframe that is no longer followed still count, so that the lists add up.
    counted_timeframes = {timeframe for _, timeframe, _ in statistics.counts}
    timeframes = merge_timeframes([followed, [*counted_timeframes]])
    return _build_tier(statistics, coverage, covered, timeframes, ("bullish", "bearish", "exit"))


def _build_tier(
    statistics: Statistics,
    coverage: Coverage,
    indicators: Container[str],
    timeframes: Iterable[Timeframe],
    directions: Iterable[Direction],
) -> TierStats:
    """Return the totals of a tier, by indicator, timeframe and direction.

    An indicator that the tier does not cover is listed only if it has rows.
    """
    names = {indicator.id: indicator.name for indicator in coverage.indicators}
    counts = statistics.counts
    total = sum(counts.values())
    sums = [Counter[str](), Counter[str](), Counter[str]()]
    for row, count in counts.items():
        for column, value in zip(sums, row, strict=True):
            column[value] += count
    by_indicator, by_timeframe, by_direction = sums
    return TierStats(
        total_signals=total,
        signals_per_day=total / STATISTICS_DAYS,
        by_indicator=[
            IndicatorCount(
                indicator=id_, indicator_name=names.get(id_, id_), signals=by_indicator[id_]
            )
            for id_ in INDICATOR_IDS
            if id_ in indicators or by_indicator[id_]
        ],
        by_timeframe=[TimeframeCount(timeframe=t, signals=by_timeframe[t]) for t in timeframes],
        by_direction=[DirectionCount(direction=d, signals=by_direction[d]) for d in directions],
        history_starts_at=None if statistics.oldest is None else format_instant(statistics.oldest),
    )


def _list_notes(
    statistics: Mapping[Tier, Statistics], coverage: Coverage, since: int
) -> Iterator[str]:
    if not any(asset.timeframes for asset in coverage.tracked):
        yield "The source has no data for any tracked asset."
    elif statistics["universe"].oldest is None:
        yield "No change has been published yet."
    if not any(asset.alerts for asset in coverage.tracked):
        yield "The alert engines follow no asset of this source."
    elif statistics["alerts"].oldest is None:
        yield "No alert has been published yet."
    rows: dict[Tier, str] = {"universe": "changes", "alerts": "alerts"}
    for tier, name in rows.items():
        oldest = statistics[tier].oldest
        if oldest is not None and oldest > since:
            yield f"The {name} begin inside the window, which has less than 30 days of them."


GET_STATS = Tool(
    name="signals_get_stats",
    title="Volume of the last 30 days",
    description=DESCRIPTION,
    query=NoArguments,
    result=StatsResponse,
    handler=get_stats,
    requires_key=False,
)
