"""Named forward-only migrations of a PostgreSQL schema; all pending ones in one transaction.

No copy is made before migrating: backups are the operator's, by PostgreSQL's own tools.
"""

from collections.abc import Sequence
from importlib.resources import files

from asyncpg import Connection

from store.errors import StoreError

MARKET_MIGRATIONS = ("postgres_market_0001",)
ACCESS_MIGRATIONS = ("postgres_access_0001", "postgres_access_0002")
# The two schemas stand for SQLite's two files, so a database holds exactly one deployment.
SCHEMAS = {
    "market": ("signals_market", MARKET_MIGRATIONS),
    "access": ("signals_access", ACCESS_MIGRATIONS),
}
# An advisory lock: CREATE SCHEMA IF NOT EXISTS fails if two processes run it at the same time.
MIGRATION_LOCK_ID = 5_189_271


async def migrate(connection: Connection, name: str, schema: str, names: Sequence[str]) -> None:
    """Apply pending migrations to a schema, creating it if it does not exist.

    `name` is the database's name for messages. Raise StoreError if a newer version wrote it.
    """
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK_ID)
        await connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
        await connection.execute(
            'CREATE TABLE IF NOT EXISTS migrations (name TEXT COLLATE "C" PRIMARY KEY)'
        )
        done = await list_applied_migrations(connection, name, names)
        for missing in names[len(done) :]:
            script = (
                files("store.postgres")
                .joinpath("migrations", f"{missing}.sql")
                .read_text(encoding="utf-8")
            )
            await connection.execute(script)
            await connection.execute("INSERT INTO migrations (name) VALUES ($1)", missing)


async def list_applied_migrations(
    connection: Connection, name: str, names: Sequence[str]
) -> list[str]:
    """Return the applied ones of the named migrations; raise StoreError if there are others."""
    if await connection.fetchval("SELECT to_regclass('migrations')") is None:
        return []
    rows = await connection.fetch("SELECT name FROM migrations ORDER BY name")
    done = [row["name"] for row in rows]
    if done != list(names[: len(done)]):
        unknown = ", ".join(sorted(set(done) - set(names))) or "gaps"
        raise StoreError(
            f"{name} was written by a newer version of signals (migrations: {unknown}): upgrade"
        )
    return done
