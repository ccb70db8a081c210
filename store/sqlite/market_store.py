"""Opens the market store in a SQLite file; commands about keys never load it."""

from pathlib import Path

from store.sql.market_store import MarketStore
from store.sqlite.engine import SqliteEngine
from store.sqlite.schema import MARKET_MIGRATIONS


async def open_sqlite_market(path: Path) -> MarketStore:
    """Migrate and open a database file, creating it if missing; raise StoreError on failure."""
    return MarketStore(await SqliteEngine.open(path, MARKET_MIGRATIONS))
