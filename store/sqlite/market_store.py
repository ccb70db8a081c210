"""The market store on SQLite."""

from pathlib import Path
from typing import Self

from store.sql.market_store import SqlMarketStore
from store.sqlite.engine import SqliteEngine
from store.sqlite.schema import MARKET_MIGRATIONS


class SqliteMarketStore(SqlMarketStore):
    """A MarketStore on one SQLite file."""

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Migrate and open a file, creating it where it is missing; StoreError in one line."""
        return cls(await SqliteEngine.open(path, MARKET_MIGRATIONS))
