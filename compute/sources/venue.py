"""The interface to a venue of the live source: an exchange or a data provider."""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import wraps
from math import nan
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

from compute.bars import NO_TIME, RawBar

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


class _Client(Protocol):
    name: str


Client = TypeVar("Client", bound=_Client)


def raises_venue_errors(
    call: Callable[Concatenate[Client, Arguments], Awaitable[Result]],
) -> Callable[Concatenate[Client, Arguments], Coroutine[Any, Any, Result]]:
    """Let a method of a venue's client raise no other exception than VenueError."""

    @wraps(call)
    async def guarded(self: Client, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
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
