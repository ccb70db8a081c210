"""Named forward-only migrations of a PostgreSQL schema; all pending ones in one transaction.

No copy is made before migrating: backups are the operator's, by PostgreSQL's own tools.
"""

from collections.abc import Sequence

import asyncpg
from asyncpg import Connection

from store.migrations import (
    check_applied,
    describe_failed_migration,
    log_migrations,
    read_migration,
)
from store.store_errors import StoreError

MARKET_MIGRATIONS = ("postgres_market_0001",)
ACCESS_MIGRATIONS = ("postgres_access_0001",)
# The two schemas stand for SQLite's two files, so a database holds exactly one deployment.
SCHEMAS = {
    "market": ("signals_market", MARKET_MIGRATIONS),
    "access": ("signals_access", ACCESS_MIGRATIONS),
}
CREATE_MIGRATIONS = 'CREATE TABLE IF NOT EXISTS migrations (name TEXT COLLATE "C" PRIMARY KEY)'
# An advisory lock: CREATE SCHEMA IF NOT EXISTS fails if two processes run it at the same time.
MIGRATION_LOCK_ID = 5_189_271
# asyncpg raises InternalClientError if the connection is cut in the middle of a response.
DATABASE_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)


async def migrate(connection: Connection, name: str, schema: str, names: Sequence[str]) -> None:
    """Apply pending migrations to a schema, creating it if it does not exist.

    `name` is the database's name for messages. Raise StoreError if another version wrote it, or if
    a migration fails; then none of the pending ones has changed anything.
    """
    failing = None
    try:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK_ID)
            await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
            await connection.execute(CREATE_MIGRATIONS)
            done = await list_applied_migrations(connection, name, schema, names)
            for failing in names[len(done) :]:
                await connection.execute(load_script(failing))
                await connection.execute("INSERT INTO migrations (name) VALUES ($1)", failing)
            # If the connection is lost while it commits, the outcome is unknown.
            failing = None
    except DATABASE_ERRORS as error:
        if failing is None:
            raise
        raise StoreError(describe_failed_migration(name, failing, error)) from error
    log_migrations(name, done, names)


def load_script(migration: str) -> str:
    """Return the script of a named migration, which a session executes as a whole."""
    return read_migration("store.postgres", migration)


async def list_applied_migrations(
    connection: Connection, name: str, schema: str, names: Sequence[str]
) -> list[str]:
    """Return the applied ones of the named migrations; raise StoreError if there are others."""
    table = f"{schema}.migrations"
    if await connection.fetchval("SELECT to_regclass($1)", table) is None:
        return []
    rows = await connection.fetch(f"SELECT name FROM {table} ORDER BY name")
    done = [row["name"] for row in rows]
    check_applied(name, done, names)
    return done
