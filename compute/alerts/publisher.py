"""The publisher of one alert engine: publishes, holds or drops its actions. Pure.

All times are epoch seconds; hours are the nominal hours of runs. The rules are in
docs/indicators.md ("Cooldown").
"""

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final, NamedTuple

from schemas.vocabulary import (
    COOLDOWN_CANDLES,
    CURRENT_ACTIONS,
    TIMEFRAME_DURATIONS_S,
    Action,
    Timeframe,
)

NEVER = -1


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
        """`published` has the hour at which the engine last published each action, if it has."""
        self._window_s: Final = COOLDOWN_CANDLES * TIMEFRAME_DURATIONS_S[timeframe]
        self._published_hours: dict[Action, int] = dict(published or {})
        self._held_back: dict[Action, Firing] = {}

    @property
    def due_hour(self) -> int | None:
        """The first hour at which the cooldown of a held alert ends, None if none is held."""
        return min(map(self._find_window_end, self._held_back), default=None)

    def run(self, firings: Iterable[Firing], until: int) -> list[Firing]:
        """Take firings in order, then all hours up to `until`; return the published ones."""
        out: list[Firing] = []
        for firing in firings:
            out += self._release(firing.hour)
            out += self._publish_or_hold(firing)
        return out + self._release(until)

    def pack(self) -> bytes:
        """Return hours and held firings as bytes, in the order of CURRENT_ACTIONS."""
        nothing = Firing(NEVER, NEVER, "CLOSE", 0.0)
        held_back = [self._held_back.get(action, nothing) for action in CURRENT_ACTIONS]
        return Struct(self.struct_format).pack(
            *(self._published_hours.get(action, NEVER) for action in CURRENT_ACTIONS),
            *(firing.close_time for firing in held_back),
            *(firing.price for firing in held_back),
        )

    def unpack(self, data: bytes) -> None:
        """Restore the state that `pack` returned."""
        numbers = Struct(self.struct_format).unpack(data)
        published, closes, prices = numbers[:3], numbers[3:6], numbers[6:]
        self._published_hours = {
            a: at for a, at in zip(CURRENT_ACTIONS, published, strict=True) if at >= 0
        }
        self._held_back = {
            action: Firing(NEVER, close, action, price)
            for action, close, price in zip(CURRENT_ACTIONS, closes, prices, strict=True)
            if close >= 0
        }

    def _find_window_end(self, action: Action) -> int:
        """Return the first hour at which an action may go out; -1 if it never has."""
        return self._published_hours.get(action, NEVER - self._window_s) + self._window_s

    def _release(self, until: int) -> list[Firing]:
        """Publish the held alert that falls due first, which drops the others.

        If two fall due at the same hour, the one of the older bar goes out.
        """
        due = self.due_hour
        if due is None or due > until:
            return []
        ripe = [
            firing
            for action, firing in self._held_back.items()
            if self._find_window_end(action) == due
        ]
        return self._publish(min(ripe, key=lambda firing: firing.close_time)._replace(hour=due))

    def _publish_or_hold(self, firing: Firing) -> list[Firing]:
        if firing.hour < self._find_window_end(firing.action):
            self._held_back[firing.action] = firing
            return []
        return self._publish(firing)

    def _publish(self, firing: Firing) -> list[Firing]:
        # By the rules, publishing one action drops all others that the engine holds.
        self._published_hours[firing.action] = firing.hour
        self._held_back.clear()
        return [firing]
