"""What an operator may want to know of a PostgreSQL database, read without changing it."""

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
    """The server's version, the size of the database, and who computes on it."""

    server_version: str
    size_bytes: int
    lock_holder: str | None


async def has_schema(url: str, schema: str, migrations: Sequence[str]) -> bool:
    """Tell whether anything was ever migrated there."""
    return await count_missing_migrations(url, schema, migrations) < len(migrations)


async def count_missing_migrations(url: str, schema: str, migrations: Sequence[str]) -> int:
    """Return how many migrations a schema lacks; StoreError where a newer version wrote it."""
    with raise_store_errors(redact_database_url(url)):
        session = await connect(url, schema)
        try:
            return len(migrations) - len(
                await list_applied_migrations(session, redact_database_url(url), migrations)
            )
        finally:
            await session.close()


async def load_database_info(url: str, schema: str) -> DatabaseInfo:
    """Return what is so at the moment."""
    with raise_store_errors(redact_database_url(url)):
        session = await connect(url, schema)
        try:
            server = await session.fetchrow(SELECT_SERVER_INFO)
            holder = await session.fetchrow(SELECT_LOCK_HOLDER, COMPUTE_LOCK_ID)
        finally:
            await session.close()
    lock_holder = None if holder is None else holder["application_name"] or "another role's"
    return DatabaseInfo(**server, lock_holder=lock_holder)
