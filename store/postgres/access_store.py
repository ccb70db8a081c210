"""The access store on PostgreSQL, apart: commands about keys load no library of the market."""

from store.postgres.engine import PostgresEngine
from store.postgres.schema import SCHEMAS
from store.postgres.usage import PostgresUsageCounter
from store.sql.access_store import AccessStore


async def open_postgres_access(url: str) -> AccessStore:
    """Migrate and open it, creating its schema if it is missing; StoreError in one line."""
    engine = await PostgresEngine.open(url, *SCHEMAS["access"])
    return AccessStore(engine, PostgresUsageCounter(engine))
