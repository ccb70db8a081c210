"""The access store on SQLite, apart: commands about keys load no library of the market."""

from pathlib import Path

from store.sql.access_store import AccessStore
from store.sqlite.engine import SqliteEngine
from store.sqlite.schema import ACCESS_MIGRATIONS
from store.sqlite.usage import SqliteUsageCounter


async def open_sqlite_access(path: Path) -> AccessStore:
    """Migrate and open a file, creating it if it is missing; StoreError in one line."""
    engine = await SqliteEngine.open(path, ACCESS_MIGRATIONS)
    return AccessStore(engine, SqliteUsageCounter(engine))
