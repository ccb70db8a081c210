"""The publisher of one alert engine: publishes, holds or drops its actions. Pure.

Hours are the nominal hours of runs in epoch seconds; times of publication are epoch ms. The rules
are in docs/indicators.md ("Cooldown").
"""

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final, NamedTuple

from compute.bars import HOUR_S
from compute.schedule import find_last_run, to_market_ms
from schemas.vocabulary import (
    COOLDOWN_CANDLES,
    CURRENT_ACTIONS,
    TIMEFRAME_DURATIONS_S,
    Action,
    Timeframe,
)

NEVER = -1
# A row may be dated this much after its run: two runs are seldom exactly a cooldown apart, and an
# alert that would be some seconds early would have to wait for the next run.
MAX_AHEAD_MS = 120_000


def compute_cooldown_ms(timeframe: Timeframe) -> int:
    """Return the least time between two publications of one action."""
    return 1000 * COOLDOWN_CANDLES * TIMEFRAME_DURATIONS_S[timeframe]


class Firing(NamedTuple):
    """An engine's action on a bar, and the hour of the run that stepped the bar."""

    hour: int
    close_time: int
    action: Action
    price: float


class Publisher:
    """Publishes an action at most once per 20 candles and holds one that fires sooner.

    Between calls of `run`, every held action falls due later than the last call's `until`.
    """

    struct_format: Final = "<3q3q3d"

    def __init__(self, timeframe: Timeframe, published: Mapping[Action, int] | None = None) -> None:
        """`published` has the `created_at` with which each action was last published, if it was."""
        self._cooldown_ms: Final = compute_cooldown_ms(timeframe)
        self._published_at: dict[Action, int] = dict(published or {})
        self._held_back: dict[Action, Firing] = {}

    @property
    def due_hour(self) -> int | None:
        """The first hour in which the cooldown of a held alert ends, None if none is held."""
        return min(map(find_last_run, map(self._find_end, self._held_back)), default=None)

    def run(
        self, firings: Iterable[Firing], until: int, written_at: int | None = None
    ) -> list[Firing]:
        """Take firings in order, then all hours up to `until`; return the published ones.

        Each hour counts as its nominal time, or as `written_at`, if the rows of all these hours are
        written then.
        """
        out: list[Firing] = []
        for firing in firings:
            out += self._release(firing.hour, written_at)
            if self._is_due(firing.action, _find_time(firing.hour, written_at)):
                out += self._publish(firing, written_at)
            else:
                self._held_back[firing.action] = firing
        return out + self._release(until, written_at)

    def pack(self) -> bytes:
        """Return times and held firings as bytes, in the order of CURRENT_ACTIONS."""
        nothing = Firing(NEVER, NEVER, "CLOSE", 0.0)
        held_back = [self._held_back.get(action, nothing) for action in CURRENT_ACTIONS]
        return Struct(self.struct_format).pack(
            *(self._published_at.get(action, NEVER) for action in CURRENT_ACTIONS),
            *(firing.close_time for firing in held_back),
            *(firing.price for firing in held_back),
        )

    def unpack(self, data: bytes) -> None:
        """Restore the state that `pack` returned."""
        numbers = Struct(self.struct_format).unpack(data)
        published, closes, prices = numbers[:3], numbers[3:6], numbers[6:]
        self._published_at = {
            a: at for a, at in zip(CURRENT_ACTIONS, published, strict=True) if at >= 0
        }
        self._held_back = {
            action: Firing(NEVER, close, action, price)
            for action, close, price in zip(CURRENT_ACTIONS, closes, prices, strict=True)
            if close >= 0
        }

    def _find_end(self, action: Action) -> int:
        """Return the first time at which an action may be published again, 0 if it never was."""
        last = self._published_at.get(action)
        return 0 if last is None else last + self._cooldown_ms

    def _is_due(self, action: Action, time: int) -> bool:
        # `batch_rows.keep_cooldowns` dates the row at the end, if that is later.
        return time + MAX_AHEAD_MS >= self._find_end(action)

    def _release(self, until: int, written_at: int | None) -> list[Firing]:
        """Publish the held alert that falls due first, which drops the others.

        If two fall due at the same time, the one of the older bar goes out.
        """
        hour = until
        if written_at is None and self._held_back:
            end = min(map(self._find_end, self._held_back))
            hour = find_last_run(end - MAX_AHEAD_MS - 1) + HOUR_S
        if hour > until:
            return []
        time = _find_time(hour, written_at)
        ripe = [one for action, one in self._held_back.items() if self._is_due(action, time)]
        if not ripe:
            return []
        oldest = min(ripe, key=lambda firing: firing.close_time)
        return self._publish(oldest._replace(hour=hour), written_at)

    def _publish(self, firing: Firing, written_at: int | None) -> list[Firing]:
        # By the rules, publishing one action drops all others that the engine holds.
        time = _find_time(firing.hour, written_at)
        self._published_at[firing.action] = max(time, self._find_end(firing.action))
        self._held_back.clear()
        return [firing]


def _find_time(hour: int, written_at: int | None) -> int:
    return to_market_ms(hour) if written_at is None else written_at
