"""A venue asked with patience: so many calls at once, waits that grow, none while it is broken."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeVar

import structlog

from compute.bars import RawBar
from compute.sources.venue import UnknownSymbolError, Venue, VenueError

Answered = TypeVar("Answered")

log = structlog.get_logger("source")


class Patience(NamedTuple):
    """How a venue is asked; times are seconds.

    A failed call is tried again after waits that double from `first_wait_s`, each spread at
    random between its half and its whole; what the venue asks to be waited comes first, where it
    is no longer than `longest_wait_s`. After `most_failures` calls in a row have failed, or one
    that says that others will too, the venue is left alone for `pause_s`.
    """

    calls_at_once: int = 8
    tries: int = 3
    first_wait_s: float = 1.0
    longest_wait_s: float = 45.0
    most_failures: int = 12
    pause_s: float = 60.0


PATIENT: Final = Patience()


class SteadyVenue:
    """A Venue over another one; `elapsed` counts ms, `sleep` waits, `spread` draws from [0, 1).

    What is counted goes on by what is slept, so nobody who sets a clock makes a wait longer.
    """

    def __init__(
        self,
        venue: Venue,
        elapsed: Callable[[], int],
        sleep: Callable[[float], Awaitable[object]],
        spread: Callable[[], float],
        patience: Patience = PATIENT,
    ) -> None:
        self.name = venue.name
        self.delay_s = venue.delay_s
        self._venue: Final = venue
        self._elapsed: Final = elapsed
        self._sleep: Final = sleep
        self._spread: Final = spread
        self._patience: Final = patience
        self._places: Final = asyncio.Semaphore(patience.calls_at_once)
        self._failures = 0
        self._wait_until = self._leave_until = 0
        self._why = VenueError("")

    async def listed(self) -> frozenset[str]:
        """Return the symbols that can be asked for."""
        return await self._patiently(self._venue.listed)

    async def bars(self, symbol: str, after: int, until: int) -> Sequence[RawBar]:
        """Return the hourly bars that close in (after, until]."""
        return await self._patiently(lambda: self._venue.bars(symbol, after, until))

    async def funding(self, symbol: str, after: int, until: int) -> Sequence[tuple[int, float]]:
        """Return the settlements of a perpetual in (after, until]."""
        return await self._patiently(lambda: self._venue.funding(symbol, after, until))

    async def clock(self) -> int:
        """Return the venue's own time, epoch ms, asked once: nobody should wait for it."""
        async with self._places:
            return await self._asked(self._venue.clock)

    async def close(self) -> None:
        """Close its connections."""
        await self._venue.close()

    async def _patiently(self, ask: Callable[[], Awaitable[Answered]]) -> Answered:
        """Ask until it answers, as long as there is a point in it."""
        async with self._places:
            for number in range(1, self._patience.tries):
                try:
                    return await self._asked(ask)
                except UnknownSymbolError:
                    raise
                except VenueError as error:
                    if error.is_permanent or not self._may_wait():
                        raise
                await self._sleep(self._grown_s(number))
            return await self._asked(ask)

    async def _asked(self, ask: Callable[[], Awaitable[Answered]]) -> Answered:
        """Ask once, when the venue may be asked, and remember how it went."""
        while self._may_wait() and (wait_s := self._left_s(self._wait_until)) > 0:
            await self._sleep(wait_s)
        if not self._may_wait():
            raise self._why
        try:
            answered = await ask()
        except UnknownSymbolError:
            self._failures = 0
            raise
        except VenueError as error:
            self._remember(error)
            raise
        self._failures = 0
        return answered

    def _remember(self, error: VenueError) -> None:
        """Note how long the venue is not to be asked, which holds for all calls.

        One answer to many calls, as of a request that they share, is one failure.
        """
        if error is self._why:
            return
        self._failures += 1
        self._why = error
        if error.retry_after_s is not None:
            self._wait_until = max(self._wait_until, self._in(error.retry_after_s))
        if error.is_permanent or self._failures >= self._patience.most_failures:
            if self._left_s(self._leave_until) == 0:
                log.warning("venue_left_alone", venue=self.name, reason=error.reason)
            self._leave_until = self._in(self._patience.pause_s)

    def _may_wait(self) -> bool:
        """Say whether the venue will be asked again soon enough for a call to wait for it."""
        is_soon = self._left_s(self._wait_until) <= self._patience.longest_wait_s
        return is_soon and self._left_s(self._leave_until) == 0

    def _in(self, seconds: float) -> int:
        return self._elapsed() + int(1000 * seconds)

    def _left_s(self, until: int) -> float:
        return max(0, until - self._elapsed()) / 1000

    def _grown_s(self, number: int) -> float:
        return self._patience.first_wait_s * (1 << number - 1) * (1 + self._spread()) / 2
