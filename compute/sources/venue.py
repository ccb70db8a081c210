"""A venue of the live source, an exchange or a data provider, and its retries.

A venue with retries has bounded concurrency, growing waits, deadlines, and a circuit breaker.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import wraps
from math import nan
from typing import Any, Concatenate, Final, NamedTuple, ParamSpec, Protocol, TypeVar

import structlog

from compute.bars import DAY_S, HOUR_S, NO_TIME, RawBar

# No venue is older than 2000, and a time in seconds or microseconds is not mistaken for one in ms.
_PLAUSIBLE_MS: Final = range(946_684_800_000, 4_102_444_800_000)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class VenueError(Exception):
    """A failed request to a venue, described in one line without secrets.

    `retry_after_s` is the wait that the venue requests. If `is_permanent`, a retry will not help:
    the venue refuses this country or this key. A limit on requests is never permanent.
    """

    def __init__(
        self, reason: str, *, retry_after_s: float | None = None, is_permanent: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.is_permanent = is_permanent


class UnknownSymbolError(VenueError):
    """A symbol that the venue does not list, or no longer lists."""


class Venue(Protocol):
    """Bars and settlements by symbol; all methods but `close` may raise VenueError.

    A bar may come up to `delay_s` after its close without being late; a venue that has to find out
    knows it after `fetch_symbols`.
    """

    name: str

    @property
    def delay_s(self) -> int:
        """The delay in seconds."""

    async def fetch_symbols(self) -> frozenset[str]:
        """Return the symbols that the venue lists."""

    async def fetch_bars(
        self, symbol: str, after: int, until: int, period_s: int
    ) -> Sequence[RawBar]:
        """Return the bars of a period that close in (after, until], epoch seconds, as published.

        The period is an hour or half an hour.

        The bars may repeat, have gaps, come in any order, and exceed the interval.
        """

    async def fetch_funding(
        self, symbol: str, after: int, until: int
    ) -> Sequence[tuple[int, float]]:
        """Return the settlements of a perpetual in (after, until]: epoch seconds, rate."""

    async def fetch_time_ms(self) -> int:
        """Return the venue's own time, epoch ms."""

    async def close(self) -> None:
        """Close all connections; idempotent."""


def raises_venue_errors(
    call: Callable[Concatenate[Any, Arguments], Awaitable[Result]],
) -> Callable[Concatenate[Any, Arguments], Coroutine[Any, Any, Result]]:
    """Let a method of a venue's client raise no other exception than VenueError."""

    @wraps(call)
    async def guarded(self: Any, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return await call(self, *args, **kwargs)
        except VenueError:
            raise
        # A venue can send any JSON, and parsing it can raise nearly anything.
        except Exception as error:
            raise build_unreadable_error(self.name, error) from None

    return guarded


def build_unreadable_error(venue: str, error: Exception) -> VenueError:
    """Return the error of an answer that raised an exception while it was parsed."""
    # The exception's own text could contain a key.
    return VenueError(f"{venue} gave an unreadable answer ({type(error).__name__})")


def read_number(value: Any) -> float:
    """Return a number that a venue sent, NaN if it is none."""
    if type(value) not in (int, float):
        return nan
    try:
        return float(value)
    except OverflowError:
        return nan


def read_time_ms(value: Any) -> int | None:
    """Return a time in epoch ms that a venue sent, None if it is not plausible."""
    is_plausible = type(value) in (int, float) and _PLAUSIBLE_MS[0] <= value <= _PLAUSIBLE_MS[-1]
    return int(value) if is_plausible else None


def read_time_s(value: Any) -> int:
    """Return a time in epoch ms as epoch seconds, NO_TIME if it is not plausible."""
    time_ms = read_time_ms(value)
    return NO_TIME if time_ms is None else time_ms // 1000


# A call reads a long window in pages, at least 100 hours each: every page may take its time.
PAGE_WINDOW_S: Final = 100 * HOUR_S
LIST_PAGES: Final = 5
# A venue that requests a longer wait is asked again after a day.
MAX_REQUESTED_WAIT_S: Final = DAY_S

log = structlog.get_logger("source")


class RetryPolicy(NamedTuple):
    """When failed calls are retried, and when the circuit opens; times are seconds.

    Waits double from `first_wait_s`; each is a random part, from half to all, of its length. If the
    venue requests a wait of up to `max_wait_s`, it is waited for first. After `max_failures` failed
    calls in a row, or one permanent failure, the circuit is open for `circuit_open_s`.

    A call whose tries have taken `max_call_s`, without the waits between them, is not retried. A
    try ends after twice that, and as long again for each page: a client ends each request by
    itself, but may have to wait for its pace, which ccxt measures by a clock that can be set back,
    and venues can send pages without end.
    """

    max_concurrent_calls: int = 8
    max_tries: int = 3
    first_wait_s: float = 1.0
    max_wait_s: float = 45.0
    max_failures: int = 12
    circuit_open_s: float = 60.0
    max_call_s: float = 10.0


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
        """Take the clock and sleep of all waits."""
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
        return await self._call_with_retries(self._venue.fetch_symbols, LIST_PAGES * PAGE_WINDOW_S)

    async def fetch_bars(
        self, symbol: str, after: int, until: int, period_s: int
    ) -> Sequence[RawBar]:
        """Return the bars of a period that close in (after, until]."""
        return await self._call_with_retries(
            lambda: self._venue.fetch_bars(symbol, after, until, period_s), until - after
        )

    async def fetch_funding(
        self, symbol: str, after: int, until: int
    ) -> Sequence[tuple[int, float]]:
        """Return the settlements of a perpetual in (after, until]."""
        return await self._call_with_retries(
            lambda: self._venue.fetch_funding(symbol, after, until), until - after
        )

    async def fetch_time_ms(self) -> int:
        """Return the venue's own time, epoch ms; never retried, so that callers wait briefly."""
        async with self._call_slots:
            await self._wait_as_requested()
            return await self._call_once(self._venue.fetch_time_ms, 0)

    async def close(self) -> None:
        """Close the venue's connections."""
        await self._venue.close()

    async def _call_with_retries(
        self, call: Callable[[], Awaitable[Result]], window_s: int
    ) -> Result:
        """Call until it succeeds; stop early if a retry cannot help or comes too late."""
        spent_s, attempt = 0.0, 1
        async with self._call_slots:
            while True:
                await self._wait_as_requested()
                began = self._elapsed_ms()
                try:
                    return await self._call_once(call, window_s)
                except UnknownSymbolError:
                    raise
                except VenueError as error:
                    spent_s += (self._elapsed_ms() - began) / 1000
                    is_last = attempt == self._policy.max_tries
                    is_too_slow = spent_s >= self._policy.max_call_s
                    if is_last or is_too_slow or error.is_permanent:
                        raise
                    if not self._is_available_soon():
                        raise
                longest_s = self._policy.first_wait_s * (1 << attempt - 1)
                await self._sleep(longest_s * (1 + self._draw_jitter()) / 2)
                attempt += 1

    async def _wait_as_requested(self) -> None:
        """Wait as long as the venue requests; raise its last error if that is too long."""
        # A loop, because another call may extend the wait during the sleep.
        while (
            self._is_available_soon()
            and (wait_s := self._compute_remaining_s(self._wait_until)) > 0
        ):
            await self._sleep(wait_s)
        if not self._is_available_soon():
            raise self._last_error

    async def _call_once(self, call: Callable[[], Awaitable[Result]], window_s: int) -> Result:
        """Call once, in the time for a window, and record the outcome for later calls."""
        try:
            async with asyncio.timeout(self._policy.max_call_s * (2 + window_s / PAGE_WINDOW_S)):
                result = await call()
        # The venue answered: an unknown symbol does not count as a failure.
        except UnknownSymbolError:
            self._failures = 0
            raise
        except VenueError as error:
            self._record_failure(error)
            raise
        except TimeoutError:
            late = VenueError(f"{self.name} did not answer in time")
            self._record_failure(late)
            raise late from None
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
            wait_s = min(error.retry_after_s, MAX_REQUESTED_WAIT_S)
            self._wait_until = max(self._wait_until, self._compute_deadline_ms(wait_s))
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
