"""A PostgreSQL database as a process holds it: a pool of sessions in a schema of its own.

Times of bars, rows and calls never come from it: nothing here asks for its clock.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Self

import asyncpg

from store.addresses import name_of
from store.errors import StoreError
from store.postgres.schema import migrate
from store.postgres.transaction import PostgresDatabase

# What a session fails with; the third where it is cut within a statement.
FAILURES = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
SESSIONS = 5
CONNECTS_WITHIN_S = 10.0
ANSWERS_WITHIN_S = 60.0
# Room for all 192 of the feed and the others.
STATEMENTS = 512
# What a session fails with, or its server; the internal ones where it is cut amid an answer.
FAILURES = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
# Every read is of few rows by index, in the order of one: what a plan would gain by other means in
# a small table it would lose in a large one.
PLANS = {
    "jit": "off",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_sort": "off",
    "enable_incremental_sort": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
}


class PostgresEngine:
    """A migrated schema, open; a session is lent for one transaction."""

    def __init__(self, url: str, schema: str, pool: asyncpg.Pool) -> None:
        self.url = url
        self.schema = schema
        self._pool = pool

    @classmethod
    async def open(cls, url: str, schema: str, migrations: Sequence[str]) -> Self:
        """Migrate and open a schema of a database that is there."""
        with telling_errors(name_of(url)):
            connection = await connect(url, schema)
            try:
                await migrate(connection, name_of(url), schema, migrations)
            finally:
                await connection.close()
            pool = await asyncpg.create_pool(
                url,
                min_size=0,
                max_size=SESSIONS,
                reset=_left_as_it_is,
                server_settings=_settings(schema) | PLANS,
                **_patience(),
            )
        return cls(url, schema, pool)

    @property
    def name(self) -> str:
        """Where it is, as an operator may read it."""
        return name_of(self.url)

    async def close(self) -> None:
        """Close every session; idempotent."""
        await self._pool.close()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[PostgresDatabase]:
        """Hold a write transaction: committed at the end, rolled back on any exception."""
        async with self.querying() as database, database.connection.transaction():
            yield database

    def writing_for_good(self) -> AbstractAsyncContextManager[PostgresDatabase]:
        """Hold a write transaction; every one is on the disk once it is committed."""
        return self.writing()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[PostgresDatabase]:
        """Hold a read transaction: all that is read in it is of one version."""
        async with (
            self.querying() as database,
            database.connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            yield database

    @asynccontextmanager
    async def querying(self) -> AsyncIterator[PostgresDatabase]:
        """Hold a session for one statement, which is a transaction by itself."""
        with telling_errors(self.name):
            async with self._pool.acquire(timeout=CONNECTS_WITHIN_S) as session:
                yield PostgresDatabase(session)


async def connect(url: str, schema: str, **settings: str) -> asyncpg.Connection:
    """Open a session of its own in a schema."""
    given = _settings(schema) | settings
    return await asyncpg.connect(url, server_settings=given, **_patience())


@contextmanager
def telling_errors(name: str) -> Iterator[None]:
    """Raise StoreError, which names the database, for what a session or its server fails with."""
    try:
        yield
    except asyncpg.InvalidAuthorizationSpecificationError as error:
        raise StoreError(f"{name} lets nobody in by the user and password of its URL") from error
    except FAILURES as error:
        # Further lines tell what rows hold.
        said = str(error) or type(error).__name__
        raise StoreError(f"{name}: {said.splitlines()[0]}") from error


async def _left_as_it_is(session: asyncpg.Connection) -> None:
    """Spare the statement that takes back what a session was set to: nothing here sets any."""


def _settings(schema: str) -> dict[str, str]:
    return {"search_path": schema, "application_name": "signals"}


def _patience() -> Mapping[str, Any]:
    return {
        "timeout": CONNECTS_WITHIN_S,
        "command_timeout": ANSWERS_WITHIN_S,
        "statement_cache_size": STATEMENTS,
        "max_cacheable_statement_size": 0,
        "max_cached_statement_lifetime": 0,
    }
