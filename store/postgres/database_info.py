"""Facts about a PostgreSQL database for `signals doctor`, read without changing anything."""

from collections.abc import Sequence
from typing import NamedTuple

from store.addresses import redact_database_url
from store.postgres.engine import connect, raise_store_errors
from store.postgres.market_engine import COMPUTE_LOCK_ID, SELECT_LOCK_HOLDER
from store.postgres.schema import list_applied_migrations

SELECT_SERVER_INFO = """
SELECT current_setting('server_version') AS server_version,
  pg_database_size(current_database()) AS size_bytes
"""


class DatabaseInfo(NamedTuple):
    """Server version, database size in bytes, and the session that holds the compute lock."""

    server_version: str
    size_bytes: int
    lock_holder: str | None


async def count_missing_migrations(url: str, schema: str, migrations: Sequence[str]) -> int:
    """Return how many migrations are pending; raise StoreError if another version wrote it."""
    with raise_store_errors(redact_database_url(url)):
        session = await connect(url, schema)
        try:
            name = redact_database_url(url)
            done = await list_applied_migrations(session, name, schema, migrations)
            return len(migrations) - len(done)
        finally:
            await session.close()


async def load_database_info(url: str, schema: str) -> DatabaseInfo:
    """Return the server's current facts."""
    with raise_store_errors(redact_database_url(url)):
        session = await connect(url, schema)
        try:
            server = await session.fetchrow(SELECT_SERVER_INFO)
            holder = await session.fetchrow(SELECT_LOCK_HOLDER, COMPUTE_LOCK_ID)
        finally:
            await session.close()
    # PostgreSQL hides application_name from a role that may not read the other session's activity.
    lock_holder = (
        None if holder is None else holder["application_name"] or "a session of another role"
    )
    return DatabaseInfo(**server, lock_holder=lock_holder)
