"""The access store on SQLite, apart: commands about keys do without the market's libraries."""

from pathlib import Path
from typing import Self

from store.sql.access_store import SqlAccessStore
from store.sqlite.engine import SqliteEngine
from store.sqlite.schema import ACCESS_MIGRATIONS
from store.sqlite.usage import SqliteUsageCounter


class SqliteAccessStore(SqlAccessStore):
    """An AccessStore on one SQLite file."""

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Migrate and open a file, creating it where it is missing; StoreError in one line."""
        engine = await SqliteEngine.open(path, ACCESS_MIGRATIONS)
        return cls(engine, SqliteUsageCounter(engine))
