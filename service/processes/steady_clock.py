"""A clock for what cannot be undone: it ignores the wall clock while that is set wrong for a while.

Rows are dated and deleted by it. It cannot detect a clock that was wrong from the start.
"""

import time

import structlog

from schemas.vocabulary import HOUR_MS, Clock

# Smaller steps are those of time synchronisation, and do little harm.
MAX_STEP_MS = HOUR_MS
# A jump that lasts this long is a correction. Computing waits only briefly, because the clock of a
# virtual machine that was paused jumps too. Deleting has time.
COMPUTE_HOLD_MS = HOUR_MS // 6
DELETE_HOLD_MS = 24 * HOUR_MS
# On macOS, which lacks the first, the second includes the time in suspend.
BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

log = structlog.get_logger("clock")


def read_boot_time_ms() -> int:
    """Return the milliseconds since the machine was booted, including those in suspend."""
    return time.clock_gettime_ns(BOOT_CLOCK) // 1_000_000


class SteadyClock:
    """Follows a wall clock, but a jump of more than an hour only after it has lasted `hold_ms`.

    Until then it continues from the time before the jump, by `elapsed`, a clock in ms that cannot
    be set. A jump is noticed at the next call.
    """

    def __init__(self, wall_clock: Clock, elapsed: Clock, hold_ms: int) -> None:
        self._wall_clock = wall_clock
        self._elapsed = elapsed
        self._hold_ms = hold_ms
        # Offsets of the wall clock from `elapsed`: the one followed, and one that may replace it.
        self._offset = self._new_offset = wall_clock() - elapsed()
        self._jumped_at = 0

    def __call__(self) -> int:
        """Return the time in epoch ms."""
        elapsed = self._elapsed()
        offset = self._wall_clock() - elapsed
        if abs(offset - self._offset) <= MAX_STEP_MS:
            self._new_offset = self._offset
            return elapsed + offset
        if abs(offset - self._new_offset) > MAX_STEP_MS:
            self._new_offset, self._jumped_at = offset, elapsed
            log.warning(
                "clock_jumped",
                by_s=(offset - self._offset) // 1000,
                followed_after_s=self._hold_ms // 1000,
            )
        if elapsed - self._jumped_at < self._hold_ms:
            return elapsed + self._offset
        self._offset = self._new_offset = offset
        return elapsed + offset


def make_steady(wall_clock: Clock, elapsed: Clock | None, hold_ms: int) -> Clock:
    """Return a SteadyClock; the wall clock itself if `elapsed` is None."""
    return wall_clock if elapsed is None else SteadyClock(wall_clock, elapsed, hold_ms)
