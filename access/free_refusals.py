"""Limits the calls with bad arguments that do not count against the quota of their key."""

from collections import Counter

from schemas.clock import Clock

MINUTE_MS = 60_000
MAX_FREE_REFUSALS = 10  # of a key in a minute


class FreeRefusals:
    """Counts the uncounted refusals of each key in the current minute of the clock.

    They are held in memory, so each serving process has a count of its own.
    """

    def __init__(self, clock: Clock) -> None:
        """`clock` returns epoch ms."""
        self._clock = clock
        self._minute = 0
        self._counts: Counter[bytes] = Counter()

    def has_left(self, key_hash: bytes) -> bool:
        """Return whether a call with bad arguments may stay uncounted now."""
        if (minute := self._clock() // MINUTE_MS) != self._minute:
            self._minute = minute
            self._counts.clear()
        return self._counts[key_hash] < MAX_FREE_REFUSALS

    def take(self, key_hash: bytes) -> bool:
        """Return whether a call of a live key stays uncounted, and note it if so."""
        if not self.has_left(key_hash):
            return False
        self._counts[key_hash] += 1
        return True
