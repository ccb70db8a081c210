"""A PostgreSQL database as a process holds it: a pool of sessions in a schema of its own.

Times of bars, rows and calls never come from it: nothing here asks for its clock.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Self

import asyncpg

from store.addresses import redact_database_url
from store.errors import StoreError
from store.postgres.schema import migrate
from store.postgres.transaction import PostgresDatabase

POOL_SIZE = 5
CONNECT_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 60.0
# Room for all 192 of the feed and the others.
STATEMENT_CACHE_SIZE = 512
# What a session fails with, or its server; the internal ones where it is cut amid an answer.
DATABASE_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
# Every read is of few rows by index, in the order of one: what a plan would gain by other means in
# a small table it would lose in a large one.
PLANNER_SETTINGS = {
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
        with raise_store_errors(redact_database_url(url)):
            connection = await connect(url, schema)
            try:
                await migrate(connection, redact_database_url(url), schema, migrations)
            finally:
                await connection.close()
            pool = await asyncpg.create_pool(
                url,
                min_size=0,
                max_size=POOL_SIZE,
                reset=_skip_reset,
                server_settings=_build_server_settings(schema) | PLANNER_SETTINGS,
                **_build_connect_options(),
            )
        return cls(url, schema, pool)

    @property
    def name(self) -> str:
        """Where it is, as an operator may read it."""
        return redact_database_url(self.url)

    async def close(self) -> None:
        """Close every session; idempotent."""
        await self._pool.close()

    @asynccontextmanager
    async def begin_write(self) -> AsyncIterator[PostgresDatabase]:
        """Hold a write transaction: committed at the end, rolled back on any exception."""
        async with self.acquire_connection() as database, database.connection.transaction():
            yield database

    def begin_durable_write(self) -> AbstractAsyncContextManager[PostgresDatabase]:
        """Hold a write transaction; every one is on the disk once it is committed."""
        return self.begin_write()

    @asynccontextmanager
    async def begin_read(self) -> AsyncIterator[PostgresDatabase]:
        """Hold a read transaction: all that is read in it is of one version."""
        async with (
            self.acquire_connection() as database,
            database.connection.transaction(isolation="repeatable_read", readonly=True),
        ):
            yield database

    @asynccontextmanager
    async def acquire_connection(self) -> AsyncIterator[PostgresDatabase]:
        """Hold a session for one statement, which is a transaction by itself."""
        with raise_store_errors(self.name):
            async with self._pool.acquire(timeout=CONNECT_TIMEOUT_S) as session:
                yield PostgresDatabase(session)


async def connect(url: str, schema: str, **settings: str) -> asyncpg.Connection:
    """Open a session of its own in a schema."""
    server_settings = _build_server_settings(schema) | settings
    return await asyncpg.connect(url, server_settings=server_settings, **_build_connect_options())


@contextmanager
def raise_store_errors(name: str) -> Iterator[None]:
    """Raise StoreError, which names the database, for what a session or its server fails with."""
    try:
        yield
    except asyncpg.InvalidAuthorizationSpecificationError as error:
        raise StoreError(f"{name} lets nobody in by the user and password of its URL") from error
    except DATABASE_ERRORS as error:
        # Further lines tell what rows hold.
        message = str(error) or type(error).__name__
        raise StoreError(f"{name}: {message.splitlines()[0]}") from error


async def _skip_reset(session: asyncpg.Connection) -> None:
    """Spare the statement that takes back what a session was set to: nothing here sets any."""


def _build_server_settings(schema: str) -> dict[str, str]:
    return {"search_path": schema, "application_name": "signals"}


def _build_connect_options() -> Mapping[str, Any]:
    return {
        "timeout": CONNECT_TIMEOUT_S,
        "command_timeout": COMMAND_TIMEOUT_S,
        "statement_cache_size": STATEMENT_CACHE_SIZE,
        "max_cacheable_statement_size": 0,
        "max_cached_statement_lifetime": 0,
    }
