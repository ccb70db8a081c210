"""The market store on SQLite."""

from pathlib import Path

from store.sql.market_store import MarketStore
from store.sqlite.engine import SqliteEngine
from store.sqlite.schema import MARKET_MIGRATIONS


async def open_sqlite_market(path: Path) -> MarketStore:
    """Migrate and open a file, creating it if it is missing; StoreError in one line."""
    return MarketStore(await SqliteEngine.open(path, MARKET_MIGRATIONS))
