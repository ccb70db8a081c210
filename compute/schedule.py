"""When runs are due: at minute :03 of each hour, by the market clock. Pure."""

from typing import NamedTuple, TypeVar

from compute.bars import HOUR_S, Times
from schemas.clock import Clock
from schemas.vocabulary import RUN_DELAY_MS

RUN_DELAY_S = RUN_DELAY_MS // 1000
Seconds = TypeVar("Seconds", int, Times)


class HistoryBounds(NamedTuple):
    """The bounds of the history that a first start builds.

    The feed shows rows of bars that close at or after `feed_from_ms` (epoch ms). Rows of runs up to
    the hour `backfilled_until` get their nominal time. The latest state is served from the market
    time `served_from` (epoch ms) on.
    """

    feed_from_ms: int
    backfilled_until: int
    served_from: int


def to_market_ms(run: Seconds) -> Seconds:
    """Return the nominal market time (epoch ms) of the run at an hour."""
    return (run + RUN_DELAY_S) * 1000


def find_last_run(now_ms: int) -> int:
    """Return the hour of the newest run whose market time has come."""
    return (now_ms // 1000 - RUN_DELAY_S) // HOUR_S * HOUR_S


def limit_clock(wall_clock: Clock, ends_at: int | None) -> Clock:
    """Return the market clock: the wall clock, which a recording stops at its last bar's run."""
    return wall_clock if ends_at is None else lambda: min(wall_clock(), to_market_ms(ends_at))
