"""What an operator may want to know of a PostgreSQL database, read without changing it."""

from collections.abc import Sequence
from typing import NamedTuple

from store.addresses import name_of
from store.postgres.engine import connect, telling_errors
from store.postgres.market_engine import COMPUTING, HOLDER
from store.postgres.schema import applied

SERVER = """
SELECT current_setting('server_version'), pg_database_size(current_database())
"""


class Facts(NamedTuple):
    """The server's version, the size of the database, and who computes on it."""

    server: str
    size_bytes: int
    computing: str | None


async def has_schema(url: str, schema: str, migrations: Sequence[str]) -> bool:
    """Tell whether anything was ever migrated there."""
    return await missing(url, schema, migrations) < len(migrations)


async def missing(url: str, schema: str, migrations: Sequence[str]) -> int:
    """Return how many migrations a schema lacks; StoreError where a newer version wrote it."""
    with telling_errors(name_of(url)):
        session = await connect(url, schema)
        try:
            return len(migrations) - len(await applied(session, name_of(url), migrations))
        finally:
            await session.close()


async def facts(url: str, schema: str) -> Facts:
    """Return what is so at the moment."""
    with telling_errors(name_of(url)):
        session = await connect(url, schema)
        try:
            server, size_bytes = await session.fetchrow(SERVER)
            holder = await session.fetchrow(HOLDER, COMPUTING)
        finally:
            await session.close()
    return Facts(server, size_bytes, None if holder is None else holder[1] or "another role's")
