"""A venue asked with patience: so many calls at once, waits that grow, none while it is broken."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeVar

import structlog

from compute.bars import RawBar
from compute.sources.venue import UnknownSymbolError, Venue, VenueError

Result = TypeVar("Result")

log = structlog.get_logger("source")


class RetryPolicy(NamedTuple):
    """How a venue is asked; times are seconds.

    A failed call is tried again after waits that double from `first_wait_s`, each spread at
    random between its half and its whole; what the venue asks to be waited comes first, where it
    is no longer than `longest_wait_s`. After `most_failures` calls in a row have failed, or one
    that says that others will too, the venue is left alone for `pause_s`.
    """

    max_concurrent_calls: int = 8
    max_tries: int = 3
    first_wait_s: float = 1.0
    max_wait_s: float = 45.0
    max_failures: int = 12
    circuit_open_s: float = 60.0


DEFAULT_RETRY_POLICY: Final = RetryPolicy()


class RetryingVenue:
    """A Venue over another one; `elapsed` counts ms, `sleep` waits, `spread` draws from [0, 1).

    What is counted goes on by what is slept, so nobody who sets a clock makes a wait longer.
    """

    def __init__(
        self,
        venue: Venue,
        elapsed_ms: Callable[[], int],
        sleep: Callable[[float], Awaitable[object]],
        draw_jitter: Callable[[], float],
        policy: RetryPolicy = DEFAULT_RETRY_POLICY,
    ) -> None:
        self.name = venue.name
        self.delay_s = venue.delay_s
        self._venue: Final = venue
        self._elapsed_ms: Final = elapsed_ms
        self._sleep: Final = sleep
        self._draw_jitter: Final = draw_jitter
        self._policy: Final = policy
        self._call_slots: Final = asyncio.Semaphore(policy.max_concurrent_calls)
        self._failures = 0
        self._wait_until = self._circuit_open_until = 0
        self._last_error = VenueError("")

    async def fetch_symbols(self) -> frozenset[str]:
        """Return the symbols that can be asked for."""
        return await self._call_with_retries(self._venue.fetch_symbols)

    async def fetch_bars(self, symbol: str, after: int, until: int) -> Sequence[RawBar]:
        """Return the hourly bars that close in (after, until]."""
        return await self._call_with_retries(lambda: self._venue.fetch_bars(symbol, after, until))

    async def fetch_funding(
        self, symbol: str, after: int, until: int
    ) -> Sequence[tuple[int, float]]:
        """Return the settlements of a perpetual in (after, until]."""
        return await self._call_with_retries(
            lambda: self._venue.fetch_funding(symbol, after, until)
        )

    async def fetch_time_ms(self) -> int:
        """Return the venue's own time, epoch ms, asked once: nobody should wait for it."""
        async with self._call_slots:
            return await self._call_once(self._venue.fetch_time_ms)

    async def close(self) -> None:
        """Close its connections."""
        await self._venue.close()

    async def _call_with_retries(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """Ask until it answers, as long as there is a point in it."""
        async with self._call_slots:
            for attempt in range(1, self._policy.max_tries):
                try:
                    return await self._call_once(call)
                except UnknownSymbolError:
                    raise
                except VenueError as error:
                    if error.is_permanent or not self._is_available_soon():
                        raise
                await self._sleep(self._compute_backoff_s(attempt))
            return await self._call_once(call)

    async def _call_once(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """Ask once, when the venue may be asked, and remember how it went."""
        while (
            self._is_available_soon()
            and (wait_s := self._compute_remaining_s(self._wait_until)) > 0
        ):
            await self._sleep(wait_s)
        if not self._is_available_soon():
            raise self._last_error
        try:
            result = await call()
        except UnknownSymbolError:
            self._failures = 0
            raise
        except VenueError as error:
            self._record_failure(error)
            raise
        self._failures = 0
        return result

    def _record_failure(self, error: VenueError) -> None:
        """Note how long the venue is not to be asked, which holds for all calls.

        One answer to many calls, as of a request that they share, is one failure.
        """
        if error is self._last_error:
            return
        self._failures += 1
        self._last_error = error
        if error.retry_after_s is not None:
            self._wait_until = max(self._wait_until, self._compute_deadline_ms(error.retry_after_s))
        if error.is_permanent or self._failures >= self._policy.max_failures:
            if self._compute_remaining_s(self._circuit_open_until) == 0:
                log.warning("venue_left_alone", venue=self.name, reason=error.reason)
            self._circuit_open_until = self._compute_deadline_ms(self._policy.circuit_open_s)

    def _is_available_soon(self) -> bool:
        """Say whether the venue will be asked again soon enough for a call to wait for it."""
        is_soon = self._compute_remaining_s(self._wait_until) <= self._policy.max_wait_s
        return is_soon and self._compute_remaining_s(self._circuit_open_until) == 0

    def _compute_deadline_ms(self, seconds: float) -> int:
        return self._elapsed_ms() + int(1000 * seconds)

    def _compute_remaining_s(self, until: int) -> float:
        return max(0, until - self._elapsed_ms()) / 1000

    def _compute_backoff_s(self, attempt: int) -> float:
        return self._policy.first_wait_s * (1 << attempt - 1) * (1 + self._draw_jitter()) / 2
