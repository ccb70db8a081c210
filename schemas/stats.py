"""Result of signals_get_stats: the number of rows published in 30 days."""

from pydantic import Field

from schemas.result import Count, Freshness, Result
from schemas.vocabulary import Direction, IndicatorId, Instant, Timeframe


class StatsWindow(Result):
    """The time range of the counted rows: created_at in (since, until]."""

    days: Count
    since: Instant
    until: Instant


class IndicatorCount(Result):
    """Rows of one indicator."""

    indicator: IndicatorId
    indicator_name: str
    signals: Count


class TimeframeCount(Result):
    """Rows of one timeframe."""

    timeframe: Timeframe
    signals: Count


class DirectionCount(Result):
    """Rows of one direction."""

    direction: Direction
    signals: Count


class TierStats(Result):
    """Rows of one tier in the window; each by_* list adds up to the total.

    The totals are null if the tier covers nothing.
    """

    total_signals: Count | None
    signals_per_day: float | None = Field(description="total_signals / days, unrounded.")
    by_indicator: list[IndicatorCount]
    by_timeframe: list[TimeframeCount]
    by_direction: list[DirectionCount]
    history_starts_at: Instant | None = Field(
        description="created_at of the oldest row in the feed; null if there is none."
    )


class StatsMeta(Freshness):
    """`meta` of stats."""


class StatsResponse(Result):
    """The number of rows published in the last 30 days."""

    window: StatsWindow
    universe_tier: TierStats
    alerts_tier: TierStats
    meta: StatsMeta
