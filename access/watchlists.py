"""Watchlists of members: one per mailbox, and one of the owner."""

from schemas.clock import Clock
from schemas.errors import ApiError
from store.access_rows import normalize_email
from store.sql.access_store import AccessStore

MAX_WATCHED = 100


class Watchlists:
    """Stores which assets members watch; `email` is the viewer's, `clock` returns epoch ms."""

    def __init__(self, store: AccessStore, clock: Clock) -> None:
        self._store = store.watchlists
        self._clock = clock

    async def list_tickers(self, email: str) -> tuple[str, ...]:
        """Return the tickers that a member watches, sorted."""
        return await self._store.list_tickers(normalize_email(email))

    async def add(self, email: str, ticker: str) -> None:
        """Watch an asset; ApiError 409 if the list is full. Idempotent."""
        holder = normalize_email(email)
        if not await self._store.add(holder, ticker, self._clock(), MAX_WATCHED):
            raise ApiError(
                "invalid_parameter",
                f"Your watchlist is full: it holds {MAX_WATCHED} assets. Remove one first.",
                409,
            )

    async def remove(self, email: str, ticker: str) -> None:
        """Stop watching an asset; idempotent."""
        await self._store.remove(normalize_email(email), ticker)
