"""Both stores on SQLite, a file each, so that no market run makes a call wait."""

from pathlib import Path
from typing import Self

from store.market import SqlMarketStore
from store.sqlite_access import SqliteAccessStore
from store.sqlite_engine import SqliteEngine
from store.sqlite_migrations import MARKET_MIGRATIONS

__all__ = ["SqliteAccessStore", "SqliteMarketStore"]


class SqliteMarketStore(SqlMarketStore):
    """A MarketStore on one SQLite file."""

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Migrate and open a file, creating it where it is missing; StoreError in one line."""
        return cls(await SqliteEngine.open(path, MARKET_MIGRATIONS))
