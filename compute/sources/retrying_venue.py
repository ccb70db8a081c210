"""A venue with retries: bounded concurrency, growing waits, and a circuit that opens on failure."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeVar

import structlog

from compute.bars import RawBar
from compute.sources.venue import UnknownSymbolError, Venue, VenueError

Result = TypeVar("Result")

log = structlog.get_logger("source")


class RetryPolicy(NamedTuple):
    """When failed calls are retried, and when the circuit opens; times are seconds.

    Waits double from `first_wait_s`; each is a random part, from half to all, of its length. If the
    venue requests a wait of up to `max_wait_s`, it is waited for first. After `max_failures` failed
    calls in a row, or one permanent failure, the circuit is open for `circuit_open_s`.
    """

    max_concurrent_calls: int = 8
    max_tries: int = 3
    first_wait_s: float = 1.0
    max_wait_s: float = 45.0
    max_failures: int = 12
    circuit_open_s: float = 60.0


DEFAULT_RETRY_POLICY: Final = RetryPolicy()


class RetryingVenue:
    """A Venue that retries the calls to another one; `draw_jitter` draws from [0, 1)."""

    def __init__(
        self,
        venue: Venue,
        elapsed_ms: Callable[[], int],
        sleep: Callable[[float], Awaitable[object]],
        draw_jitter: Callable[[], float],
        policy: RetryPolicy = DEFAULT_RETRY_POLICY,
    ) -> None:
        # Waits are measured by `elapsed_ms`, a monotonic clock, so that setting the wall clock
        # cannot lengthen them.
        self.name = venue.name
        self._venue: Final = venue
        self._elapsed_ms: Final = elapsed_ms
        self._sleep: Final = sleep
        self._draw_jitter: Final = draw_jitter
        self._policy: Final = policy
        self._call_slots: Final = asyncio.Semaphore(policy.max_concurrent_calls)
        self._failures = 0
        self._wait_until = self._circuit_open_until = 0
        self._last_error = VenueError("")

    @property
    def delay_s(self) -> int:
        """The delay (seconds) of the venue's bars."""
        return self._venue.delay_s

    async def fetch_symbols(self) -> frozenset[str]:
        """Return the symbols that the venue lists."""
        return await self._call_with_retries(self._venue.fetch_symbols)

    async def fetch_bars(
        self, symbol: str, after: int, until: int, period_s: int
    ) -> Sequence[RawBar]:
        """Return the bars of a period that close in (after, until]."""
        return await self._call_with_retries(
            lambda: self._venue.fetch_bars(symbol, after, until, period_s)
        )

    async def fetch_funding(
        self, symbol: str, after: int, until: int
    ) -> Sequence[tuple[int, float]]:
        """Return the settlements of a perpetual in (after, until]."""
        return await self._call_with_retries(
            lambda: self._venue.fetch_funding(symbol, after, until)
        )

    async def fetch_time_ms(self) -> int:
        """Return the venue's own time, epoch ms; never retried, so that callers wait briefly."""
        async with self._call_slots:
            return await self._call_once(self._venue.fetch_time_ms)

    async def close(self) -> None:
        """Close the venue's connections."""
        await self._venue.close()

    async def _call_with_retries(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """Call until it succeeds; stop early if a retry cannot help or must wait too long."""
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
        """Call once, after any requested wait, and record the outcome for later calls."""
        # A loop, because another call may extend the wait during the sleep.
        while (
            self._is_available_soon()
            and (wait_s := self._compute_remaining_s(self._wait_until)) > 0
        ):
            await self._sleep(wait_s)
        if not self._is_available_soon():
            raise self._last_error
        try:
            result = await call()
        # The venue answered: an unknown symbol does not count as a failure.
        except UnknownSymbolError:
            self._failures = 0
            raise
        except VenueError as error:
            self._record_failure(error)
            raise
        self._failures = 0
        return result

    def _record_failure(self, error: VenueError) -> None:
        """Set the wait that holds for all calls; open the circuit after too many failures."""
        # Calls that share a request raise the same error object, which is one failure.
        if error is self._last_error:
            return
        self._failures += 1
        self._last_error = error
        if error.retry_after_s is not None:
            self._wait_until = max(self._wait_until, self._compute_deadline_ms(error.retry_after_s))
        if error.is_permanent or self._failures >= self._policy.max_failures:
            if self._compute_remaining_s(self._circuit_open_until) == 0:
                log.warning("circuit_opened", venue=self.name, reason=error.reason)
            self._circuit_open_until = self._compute_deadline_ms(self._policy.circuit_open_s)

    def _is_available_soon(self) -> bool:
        """Return whether the circuit is closed and any requested wait is short enough."""
        is_soon = self._compute_remaining_s(self._wait_until) <= self._policy.max_wait_s
        return is_soon and self._compute_remaining_s(self._circuit_open_until) == 0

    def _compute_deadline_ms(self, seconds: float) -> int:
        return self._elapsed_ms() + int(1000 * seconds)

    def _compute_remaining_s(self, until: int) -> float:
        return max(0, until - self._elapsed_ms()) / 1000

    def _compute_backoff_s(self, attempt: int) -> float:
        return self._policy.first_wait_s * (1 << attempt - 1) * (1 + self._draw_jitter()) / 2
