"""The interface to a venue of the live source: an exchange or a data provider."""

from collections.abc import Sequence
from typing import Protocol

from compute.bars import RawBar


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
