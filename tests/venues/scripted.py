"""A second Venue, that fails by a script, and a clock that goes on by what is slept."""

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import TypeVar

from compute.bars import RawBar
from compute.sources.venue import VenueError
from tests.venues.round_numbers import bar

BARS = [bar(0)]
Answered = TypeVar("Answered")


async def turns(count: int = 20) -> None:
    """Let all that can go on do so; a sleep takes twenty turns."""
    for _ in range(count):
        await asyncio.sleep(0)


class Waiting:
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
        await turns()
        self.now = max(self.now, until)


class ScriptedVenue:
    """Fails as `failures` say, one a call, then answers; what is held lasts until it is let go."""

    name = "scripted"
    delay_s = 900

    def __init__(self, clock: Waiting) -> None:
        self.failures = deque[VenueError | None]()
        self.asked: list[tuple[str, int]] = []
        self.held: dict[str, asyncio.Event] = {}
        self.under_way = self.most_under_way = 0
        self.is_closed = False
        self._clock = clock

    async def listed(self) -> frozenset[str]:
        return await self._answer("listed", frozenset({"X"}))

    async def bars(self, symbol: str, after: int, until: int) -> Sequence[RawBar]:
        return await self._answer(symbol, BARS)

    async def funding(self, symbol: str, after: int, until: int) -> Sequence[tuple[int, float]]:
        return await self._answer(symbol, [(until, 0.0001)])

    async def clock(self) -> int:
        return await self._answer("clock", self._clock())

    async def close(self) -> None:
        self.is_closed = True

    def hold(self, *symbols: str) -> None:
        self.held = {symbol: asyncio.Event() for symbol in symbols}

    def let_go(self) -> None:
        for held in self.held.values():
            held.set()

    async def _answer(self, what: str, answer: Answered) -> Answered:
        self.asked.append((what, self._clock()))
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if held := self.held.get(what):
                await held.wait()
        finally:
            self.under_way -= 1
        if self.failures and (failure := self.failures.popleft()):
            raise failure
        return answer
