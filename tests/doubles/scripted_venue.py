"""A second Venue, that fails by a script, and a clock that goes on by what is slept."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TypeVar

from compute.bars import RawBar
from compute.sources.venue import VenueError
from tests.doubles.venues.round_number_market import make_bar

BARS = [make_bar(0)]
Answered = TypeVar("Answered")


async def yield_to_loop(count: int = 20) -> None:
    """Let all that can go on do so; a sleep takes twenty turns."""
    for _ in range(count):
        await asyncio.sleep(0)


class SleepClock:
    """A clock in epoch ms that goes on by what is slept, in which what else goes on has its turn.

    Sleeps at the same time are one.
    """

    def __init__(self) -> None:
        self.now = 1_000_000
        self.waits: list[float] = []

    def __call__(self) -> int:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        until = self.now + int(1000 * seconds)
        await yield_to_loop()
        self.now = max(self.now, until)


class ScriptedVenue:
    """Fails as `failures` say, one a call, then answers; what is held lasts until it is let go."""

    name = "scripted"
    delay_s = 900

    def __init__(self, clock: SleepClock) -> None:
        self.failures = deque[VenueError | None]()
        self.requests: list[tuple[str, int]] = []
        self.holds: dict[str, asyncio.Event] = {}
        self.in_flight = self.max_in_flight = 0
        self.is_closed = False
        self._clock = clock

    async def fetch_symbols(self) -> frozenset[str]:
        return await self._answer("listed", frozenset({"X"}))

    async def fetch_bars(
        self, symbol: str, after: int, until: int, period_s: int
    ) -> Sequence[RawBar]:
        return await self._answer(symbol, BARS)

    async def fetch_funding(
        self, symbol: str, after: int, until: int
    ) -> Sequence[tuple[int, float]]:
        return await self._answer(symbol, [(until, 0.0001)])

    async def fetch_time_ms(self) -> int:
        return await self._answer("clock", self._clock())

    async def close(self) -> None:
        self.is_closed = True

    def hold(self, *symbols: str) -> None:
        self.holds = {symbol: asyncio.Event() for symbol in symbols}

    def release(self) -> None:
        for held in self.holds.values():
            held.set()

    async def _answer(self, what: str, answer: Answered) -> Answered:
        self.requests.append((what, self._clock()))
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            if held := self.holds.get(what):
                await held.wait()
        finally:
            self.in_flight -= 1
        if self.failures and (failure := self.failures.popleft()):
            raise failure
        return answer
