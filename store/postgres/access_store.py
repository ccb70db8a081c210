"""The access store on PostgreSQL, apart: commands about keys do without the market's libraries."""

from typing import Self

from store.postgres.engine import PostgresEngine
from store.postgres.schema import SCHEMAS
from store.postgres.usage import PostgresUsageCounter
from store.sql.access_store import SqlAccessStore


class PostgresAccessStore(SqlAccessStore):
    """An AccessStore on a PostgreSQL database."""

    @classmethod
    async def open(cls, url: str) -> Self:
        """Migrate and open it, creating its schema where it is missing; StoreError in one line."""
        engine = await PostgresEngine.open(url, *SCHEMAS["access"])
        return cls(engine, PostgresUsageCounter(engine))
