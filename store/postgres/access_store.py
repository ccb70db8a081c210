"""Opens the access store on PostgreSQL, without loading NumPy for the market store."""

from store.postgres.engine import PostgresEngine
from store.postgres.schema import SCHEMAS
from store.postgres.usage import PostgresUsageCounter
from store.sql.access_store import AccessStore


async def open_postgres_access(url: str) -> AccessStore:
    """Migrate and open the access store, creating its schema if missing; raise StoreError."""
    engine = await PostgresEngine.open(url, *SCHEMAS["access"])
    return AccessStore(engine, PostgresUsageCounter(engine))
