"""The publisher of one alert engine: which of its actions go out, when, and which are held.

Pure; every time is epoch seconds, that of the publisher the nominal hour of a run. Rules from
INDICATORS.md ("Publisher with cooldown").
"""

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final, NamedTuple

from schemas.vocabulary import COOLDOWN_CANDLES, CURRENT_ACTIONS, PERIOD_S, Action, Timeframe

NEVER = -1


class Firing(NamedTuple):
    """What an engine did on a bar, and the hour of the run that stepped the bar."""

    hour: int
    close_time: int
    action: Action
    price: float


class Publisher:
    """Publishes an action at most once per 20 candles and holds what fires sooner.

    Whatever is held falls due after the hour up to which firings were taken.
    """

    layout: Final = "<3q3q3d"

    def __init__(self, timeframe: Timeframe, published: Mapping[Action, int] | None = None) -> None:
        """Say at which hours the engine last published an action, if it has."""
        self._window_s: Final = COOLDOWN_CANDLES * PERIOD_S[timeframe]
        self._published: dict[Action, int] = dict(published or {})
        self._held: dict[Action, Firing] = {}

    @property
    def due(self) -> int | None:
        """The first hour at which a held alert's window has ended."""
        return min(map(self._ends, self._held), default=None)

    def run(self, firings: Iterable[Firing], until: int) -> list[Firing]:
        """Take firings in order and all hours up to one; return what goes out, at its hour."""
        out: list[Firing] = []
        for firing in firings:
            out += self._release(firing.hour)
            out += self._judge(firing)
        return out + self._release(until)

    def pack(self) -> bytes:
        """Return what is remembered as bytes, in the order of CURRENT_ACTIONS."""
        nothing = Firing(NEVER, NEVER, "CLOSE", 0.0)
        held = [self._held.get(action, nothing) for action in CURRENT_ACTIONS]
        return Struct(self.layout).pack(
            *(self._published.get(action, NEVER) for action in CURRENT_ACTIONS),
            *(firing.close_time for firing in held),
            *(firing.price for firing in held),
        )

    def unpack(self, data: bytes) -> None:
        """Take back what `pack` returned."""
        numbers = Struct(self.layout).unpack(data)
        published, closes, prices = numbers[:3], numbers[3:6], numbers[6:]
        self._published = {
            a: at for a, at in zip(CURRENT_ACTIONS, published, strict=True) if at >= 0
        }
        self._held = {
            action: Firing(NEVER, close, action, price)
            for action, close, price in zip(CURRENT_ACTIONS, closes, prices, strict=True)
            if close >= 0
        }

    def _ends(self, action: Action) -> int:
        """Return the first hour at which an action may go out; at once where it never has."""
        return self._published.get(action, NEVER - self._window_s) + self._window_s

    def _release(self, until: int) -> list[Firing]:
        """Publish the held alert that is due first; the others are dropped by that.

        Of those due at the same hour the one of the older bar has its turn first.
        """
        due = self.due
        if due is None or due > until:
            return []
        ripe = [firing for action, firing in self._held.items() if self._ends(action) == due]
        return self._publish(min(ripe, key=lambda firing: firing.close_time)._replace(hour=due))

    def _judge(self, firing: Firing) -> list[Firing]:
        if firing.hour < self._ends(firing.action):
            self._held[firing.action] = firing
            return []
        return self._publish(firing)

    def _publish(self, firing: Firing) -> list[Firing]:
        self._published[firing.action] = firing.hour
        self._held.clear()
        return [firing]
