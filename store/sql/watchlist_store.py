"""Watchlists in the access store: the assets that each member watches."""

from store.sql.database import Engine, fetch_value

COUNT = "SELECT count(*) FROM watchlist WHERE holder = ? AND ticker <> ?"
INSERT = "INSERT INTO watchlist (holder, ticker, added_at) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
DELETE = "DELETE FROM watchlist WHERE holder = ? AND ticker = ?"
LIST = "SELECT ticker FROM watchlist WHERE holder = ? ORDER BY ticker"


class WatchlistStore:
    """The part of `AccessStore` that stores watchlists; see there."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def add(self, holder: str, ticker: str, at: int, limit: int) -> bool:
        """Add an asset at a time (epoch ms); False if `limit` others are there. Idempotent."""
        async with self._engine.begin_durable_write() as db:
            await db.acquire_named_lock("watchlist", holder)
            if await fetch_value(db, COUNT, holder, ticker) >= limit:
                return False
            await db.execute(INSERT, holder, ticker, at)
        return True

    async def remove(self, holder: str, ticker: str) -> None:
        """Remove an asset; idempotent."""
        async with self._engine.begin_durable_write() as db:
            await db.execute(DELETE, holder, ticker)

    async def list_tickers(self, holder: str) -> tuple[str, ...]:
        """Return the tickers of a watchlist, sorted."""
        async with self._engine.acquire_connection() as db:
            return tuple(str(row["ticker"]) for row in await db.execute(LIST, holder))
