"""What a live source asks of a venue: an exchange, or a data service, under one name."""

from collections.abc import Sequence
from typing import Protocol

from compute.bars import RawBar


class VenueError(Exception):
    """A venue that did not answer as it should, in one line without secrets.

    `retry_after_s` is what the venue asked to be waited. `is_permanent` where asking again later
    will not help: it refuses this country or this key.
    """

    def __init__(
        self, reason: str, *, retry_after_s: float | None = None, is_permanent: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after_s = retry_after_s
        self.is_permanent = is_permanent


class UnknownSymbolError(VenueError):
    """A symbol that the venue does not list, or no longer."""


class Venue(Protocol):
    """Hourly bars and settlements by symbol. Every verb raises VenueError.

    `delay_s` is how long after its close a bar may come without being late.
    """

    name: str
    delay_s: int

    async def fetch_symbols(self) -> frozenset[str]:
        """Return the symbols that can be asked for."""

    async def fetch_bars(self, symbol: str, after: int, until: int) -> Sequence[RawBar]:
        """Return the hourly bars that close in (after, until], epoch seconds, as published.

        They may repeat, lack bars or come in any order; more may come than was asked for.
        """

    async def fetch_funding(
        self, symbol: str, after: int, until: int
    ) -> Sequence[tuple[int, float]]:
        """Return the settlements of a perpetual in (after, until]: epoch seconds, rate."""

    async def fetch_time_ms(self) -> int:
        """Return the venue's own time, epoch ms."""

    async def close(self) -> None:
        """Close its connections; idempotent."""
