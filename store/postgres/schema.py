"""Named forward-only migrations of a PostgreSQL schema, all that are missing in one transaction.

Nothing is copied before: an operator's own backups are PostgreSQL's.
"""

from collections.abc import Sequence
from importlib.resources import files

from asyncpg import Connection

from store.errors import StoreError

MARKET_MIGRATIONS = ("postgres_market_0001",)
ACCESS_MIGRATIONS = ("postgres_access_0001", "postgres_access_0002")
# What each store is called in the database, and what it needs there.
SCHEMAS = {
    "market": ("signals_market", MARKET_MIGRATIONS),
    "access": ("signals_access", ACCESS_MIGRATIONS),
}
# Of all that sessions may hold by number in a database: who migrates it.
MIGRATION_LOCK_ID = 5_189_271


async def migrate(connection: Connection, name: str, schema: str, names: Sequence[str]) -> None:
    """Apply to a schema what it lacks of the named migrations, creating it where it is missing.

    `name` is where the database is. StoreError where a newer version wrote it.
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
    """Return which of the named migrations a schema has; StoreError where it has others."""
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
