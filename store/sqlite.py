"""The market store on SQLite."""

from pathlib import Path
from typing import Self

from store.market import SqlMarketStore
from store.sqlite_engine import SqliteEngine
from store.sqlite_migrations import MARKET_MIGRATIONS


class SqliteMarketStore(SqlMarketStore):
    """A MarketStore on one SQLite file."""

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Migrate and open a file, creating it where it is missing; StoreError in one line."""
        return cls(await SqliteEngine.open(path, MARKET_MIGRATIONS))
