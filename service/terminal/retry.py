"""Repeats what may succeed later, with growing pauses that count time in suspend too."""

from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import httpx2

from schemas.clock import Clock
from schemas.operator_error import OperatorError

FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 300.0
MAX_RETRY_AFTER_S = 3600
# Timers of the event loop stop while the machine is suspended.
MAX_STEP_S = 30.0

Sleep = Callable[[float], Awaitable[None]]
# Returns a random number from 0 to 1.
Spread = Callable[[], float]
T = TypeVar("T")


class TransientError(OperatorError):
    """A failure that may pass; `retry_after_s` is the least pause that the other side asks for."""

    def __init__(self, message: str, retry_after_s: int = 0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


def parse_retry_after(response: httpx2.Response) -> int:
    """Return the seconds of a Retry-After header, at most an hour; 0 if there is none."""
    value = response.headers.get("retry-after", "")
    is_number = value.isascii() and value.isdecimal()
    return min(int(value[:10]), MAX_RETRY_AFTER_S) if is_number else 0


def list_pauses(spread: Spread) -> Iterator[float]:
    """Yield pauses in seconds that double up to MAX_PAUSE_S, each shortened by up to a half."""
    # Clients that lost a service at the same moment must not all come back at the same moment.
    pause = FIRST_PAUSE_S
    while True:
        yield pause * (1 - spread() / 2)
        pause = min(2 * pause, MAX_PAUSE_S)


class Retrier:
    """Waits and retries. `elapsed` is a clock in ms that counts time in suspend."""

    def __init__(
        self, elapsed: Clock, sleep: Sleep, spread: Spread, on_failure: Callable[[str], None]
    ) -> None:
        """`on_failure` is called with one line for each failure that is going to be retried."""
        self._elapsed = elapsed
        self._sleep = sleep
        self._spread = spread
        self._on_failure = on_failure

    async def retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of the first attempt that raises no TransientError."""
        for pause in list_pauses(self._spread):
            try:
                return await attempt()
            except TransientError as error:
                pause = max(pause, error.retry_after_s)
                self._on_failure(f"{error}; trying again in {pause:.0f} s")
            await self.wait(pause)
        raise AssertionError("pauses never end")

    async def wait(self, seconds: float, spread_s: float = 0) -> None:
        """Wait some seconds, and up to `spread_s` more."""
        ends_at = self._elapsed() + 1000 * (seconds + spread_s * self._spread())
        while (remaining_ms := ends_at - self._elapsed()) > 0:
            await self._sleep(min(remaining_ms / 1000, MAX_STEP_S))
