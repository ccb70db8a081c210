"""Opens the access store on SQLite, without loading NumPy for the market store."""

from pathlib import Path

from store.sql.access_store import AccessStore
from store.sqlite.engine import SqliteEngine
from store.sqlite.schema import ACCESS_MIGRATIONS
from store.sqlite.usage import SqliteUsageCounter


async def open_sqlite_access(path: Path) -> AccessStore:
    """Migrate and open a database file, creating it if missing; raise StoreError on failure."""
    engine = await SqliteEngine.open(path, ACCESS_MIGRATIONS)
    return AccessStore(engine, SqliteUsageCounter(engine))
