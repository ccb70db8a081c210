"""signals_get_stats: the number of rows published in 30 days; no win rates, accuracy or returns."""

from collections import Counter
from collections.abc import Container, Iterable, Mapping

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
DIRECTIONS: dict[Tier, tuple[Direction, ...]] = {
    "universe": ("bullish", "bearish", "neutral"),
    "alerts": ("bullish", "bearish", "exit"),
}
UNCOVERED_NOTES: dict[Tier, str] = {
    "universe": "The source has no data for any tracked asset.",
    "alerts": "The alert engines follow no asset of this source.",
}


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
    ledger, coverage = await context.snapshots.ledger(snapshot), snapshot.coverage
    since, until = snapshot.newest_at - STATISTICS_DAYS * DAY_MS, snapshot.stored.last_created_at
    tiers, notes, later_notes = dict[Tier, TierStats](), list[str](), list[str]()
    for tier, kept_ms in RETENTION_MS.items():
        counts = ledger.count_kinds(tier, since, until)
        oldest = ledger.find_oldest(tier, snapshot.market_time - kept_ms, until)
        is_universe = tier == "universe"
        covered = merge_timeframes(
            asset.timeframes if is_universe else asset.alerts for asset in coverage.tracked
        )
        row = "change" if is_universe else "alert"
        if not covered:
            notes.append(UNCOVERED_NOTES[tier])
        elif oldest is None:
            notes.append(f"No {row} has been published yet.")
        if oldest is not None and oldest > since:
            later_notes.append(
                f"The {row}s begin inside the window, which has less than 30 days of them."
            )
        # Rows of a timeframe that is no longer followed still count, so that the lists add up.
        timeframes = merge_timeframes([covered, [timeframe for _, timeframe, _ in counts]])
        tiers[tier] = NOT_COVERED
        if covered or oldest is not None:
            tiers[tier] = _build_tier(
                counts,
                oldest,
                coverage,
                {each.id for each in (coverage.logged if is_universe else coverage.indicators)},
                TIMEFRAMES if is_universe else timeframes,
                DIRECTIONS[tier],
            )
    return StatsResponse(
        window=StatsWindow(
            days=STATISTICS_DAYS,
            since=format_instant(since),
            until=format_instant(snapshot.newest_at),
        ),
        universe_tier=tiers["universe"],
        alerts_tier=tiers["alerts"],
        meta=StatsMeta(**build_freshness(snapshot, context.clock(), *notes, *later_notes)),
    )


def _build_tier(
    counts: Mapping[tuple[str, Timeframe, Direction], int],
    oldest: int | None,
    coverage: Coverage,
    indicators: Container[str],
    timeframes: Iterable[Timeframe],
    directions: Iterable[Direction],
) -> TierStats:
    """Return the totals of a tier, by indicator, timeframe and direction.

    An indicator that the tier does not cover is listed only if it has rows. `oldest` is when the
    oldest row was published that is kept.
    """
    names = {indicator.id: indicator.name for indicator in coverage.indicators}
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
        history_starts_at=None if oldest is None else format_instant(oldest),
    )


GET_STATS = Tool(
    name="signals_get_stats",
    title="Volume of the last 30 days",
    description=DESCRIPTION,
    query=NoArguments,
    result=StatsResponse,
    handler=get_stats,
    requires_key=False,
)
