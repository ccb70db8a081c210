"""A PostgreSQL schema and the session pool of one process.

No time that is stored comes from the server's clock: callers pass every time as a value.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from functools import partial
from typing import Any, ClassVar, Self

import asyncpg

from store.addresses import redact_database_url
from store.errors import DatabaseFailureError, StoreError, UnreachableError
from store.postgres.schema import DATABASE_ERRORS, migrate
from store.postgres.transaction import PostgresDatabase
from store.sql.database import READ_LIMITS_S, Folded, Lane, limit_seconds
from store.write_health import TestWrite, WriteHealth, WriteKind

POOL_SIZE = 5
CONNECT_TIMEOUT_S = 10.0
COMMAND_TIMEOUT_S = 60.0
# The server ends a statement first, so that its message names the cause. If the server is silent,
# the client gives up.
SILENCE_S = 5.0
CONNECT_OPTIONS: Mapping[str, Any] = {
    "timeout": CONNECT_TIMEOUT_S,
    "command_timeout": COMMAND_TIMEOUT_S,
    # Room for all statements: preparing one costs a round trip.
    "statement_cache_size": 512,
    # 0 removes both limits: the merged feed statements exceed asyncpg's 15 KB default.
    "max_cacheable_statement_size": 0,
    "max_cached_statement_lifetime": 0,
}
MEASURE_SCHEMA = """
SELECT current_setting('server_version') AS version,
  coalesce(sum(pg_total_relation_size(pg_class.oid)), 0)::bigint AS size_bytes
FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE nspname = ? AND relkind = 'r'
"""
# Connecting fails in these ways while a server or a pooler starts, ends, or has no session left.
UNREACHABLE = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
)
# Every read fetches few rows by index, in the order of that index. On a small table the planner
# prefers a sequential scan or a sort, and a generic plan keeps that choice when the table is large.
# These settings leave it index scans and merges wherever they are possible.
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
    """An open, migrated schema; each transaction borrows a session from the pool.

    `lane_sizes` is the number of sessions that a lane may hold, by default all of them. Writes
    belong to `write_lane`.
    """

    lane_sizes: ClassVar[Mapping[Lane, int]] = {}
    write_lane: ClassVar[Lane] = Lane.PAGES

    def __init__(self, url: str, schema: str, pool: asyncpg.Pool) -> None:
        self.url = url
        self.schema = schema
        self._pool = pool
        self._health = WriteHealth()
        self._lanes = {
            lane: asyncio.Semaphore(self.lane_sizes.get(lane, POOL_SIZE)) for lane in Lane
        }

    @classmethod
    async def open(cls, url: str, schema: str, migrations: Sequence[str]) -> Self:
        """Migrate and open a schema of an existing database."""
        with raise_store_errors(redact_database_url(url)):
            connection = await connect(url, schema)
            try:
                await _refuse_unfit_server(url, schema, connection)
                await migrate(connection, redact_database_url(url), schema, migrations)
            finally:
                await connection.close()
            pool = await asyncpg.create_pool(
                url,
                min_size=0,
                max_size=POOL_SIZE,
                reset=_skip_reset,
                init=partial(
                    _change_settings,
                    schema=schema,
                    **PLANNER_SETTINGS,
                    statement_timeout=f"{1000 * READ_LIMITS_S[Lane.PAGES]:.0f}",
                ),
                **CONNECT_OPTIONS,
            )
        return cls(url, schema, pool)

    @property
    def name(self) -> str:
        """The address of the database without credentials, for messages and logs."""
        return redact_database_url(self.url)

    async def close(self) -> None:
        """Close every session; idempotent."""
        await self._health.close()
        await self._pool.close()

    async def check_writes(self, tests: Mapping[WriteKind, TestWrite], max_age_s: float) -> None:
        """Raise StoreError if the last write of any kind failed.

        The writes in `tests` are made first if the last ones failed or are older than `max_age_s`.
        """
        await self._health.check(tests, max_age_s)

    async def measure(self) -> tuple[str, int]:
        """Return the server's version, and the bytes of the schema's tables and indexes."""
        async with self.acquire_connection() as database:
            (row,) = await database.execute(MEASURE_SCHEMA, self.schema)
        return f"PostgreSQL {row['version']}", int(row["size_bytes"])

    @asynccontextmanager
    async def begin_write(self) -> AsyncIterator[PostgresDatabase]:
        """Hold a write transaction: committed at the end, rolled back on any exception."""
        with self._health.report("transaction"):
            async with self._acquire_session(self.write_lane) as session, session.transaction():
                database = PostgresDatabase(session)
                await set_time_limit(database, COMMAND_TIMEOUT_S)
                yield database

    def begin_durable_write(self) -> AbstractAsyncContextManager[PostgresDatabase]:
        """Hold a write transaction that is on the disk once it is committed."""
        # synchronous_commit stays on for all transactions. Switching it off for counted calls, as
        # SQLite's NORMAL does, would lose counts even in a crash of the server alone.
        return self.begin_write()

    def acquire_writer(self) -> AbstractAsyncContextManager[PostgresDatabase]:
        """Hold a session for writes of which each statement is a transaction by itself."""
        return self.acquire_connection()

    async def count(self, sql: str, *values: object) -> Sequence[asyncpg.Record]:
        """Run a short statement about counted calls, a transaction by itself; return its rows."""
        with self._health.report("count"):
            async with self.acquire_connection() as database:
                return await database.execute(sql, *values)

    @asynccontextmanager
    async def begin_read(self, lane: Lane = Lane.PAGES) -> AsyncIterator[PostgresDatabase]:
        """Hold a read transaction: every statement in it sees the same version.

        Raise StoreError if the lane is busy, or a statement takes, for longer than its limit.
        """
        async with (
            self._acquire_session(lane) as session,
            session.transaction(isolation="repeatable_read", readonly=True),
        ):
            database = PostgresDatabase(session, READ_LIMITS_S[lane] + SILENCE_S)
            if lane is Lane.BATCH:
                await set_time_limit(database, READ_LIMITS_S[lane])
            yield database

    async def fold_rows(
        self,
        sql: str,
        values: Mapping[str, object],
        fold: Callable[[Iterable[tuple[Any, ...]]], Folded],
    ) -> Folded:
        """Return what `fold`, called in a thread, makes of the rows of a query."""
        async with self.begin_read() as database:
            rows = await database.execute_page(sql, values)
        return await asyncio.to_thread(fold, map(tuple, rows))

    @asynccontextmanager
    async def acquire_connection(self) -> AsyncIterator[PostgresDatabase]:
        """Hold a session for one statement, which is a transaction by itself."""
        async with self._acquire_session(Lane.PAGES) as session:
            yield PostgresDatabase(session, READ_LIMITS_S[Lane.PAGES] + SILENCE_S)

    @asynccontextmanager
    async def _acquire_session(self, lane: Lane) -> AsyncIterator[Any]:
        """Borrow a session of the pool, one of those that a lane may hold."""
        with raise_store_errors(self.name):
            async with AsyncExitStack() as stack:
                async with limit_seconds(lane, self.name, f"waiting for a session ({lane})"):
                    await stack.enter_async_context(self._lanes[lane])
                    session = await stack.enter_async_context(self._pool.acquire())
                yield session


async def set_time_limit(database: PostgresDatabase, limit_s: float) -> None:
    """Limit each further statement of the open transaction, instead of the session's limit."""
    await database.connection.execute(f"SET LOCAL statement_timeout = {1000 * limit_s:.0f}")


async def connect(url: str, schema: str, **settings: str) -> asyncpg.Connection:
    """Open a session outside the pool, with the schema as its search path."""
    session = await asyncpg.connect(url, **CONNECT_OPTIONS)
    try:
        await _change_settings(session, schema, **settings)
    except BaseException:
        session.terminate()
        raise
    return session


async def _change_settings(session: asyncpg.Connection, schema: str, **settings: str) -> None:
    """Change settings of a session, and make the schema its search path."""
    # Not while connecting: PgBouncer refuses most settings there.
    given = {"search_path": schema, "application_name": "signals"} | settings
    quoted = ((name, value.replace("'", "''")) for name, value in given.items())
    changes = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in quoted)
    await session.execute(f"SELECT {changes}")


async def _refuse_unfit_server(url: str, schema: str, session: asyncpg.Connection) -> None:
    """Raise StoreError if the database is not in UTF-8, or a pooler shares its sessions."""
    name, encoding = redact_database_url(url), await session.fetchval("SHOW server_encoding")
    if encoding != "UTF8":
        raise StoreError(
            f"{name} is in {encoding}, which does not hold all texts: create another database, "
            "with `createdb --encoding=UTF8 --template=template0 NAME`"
        )
    # Between two statements, a pooler of transactions lends the session of one client to the next.
    other = await connect(url, schema)
    try:
        pids = [await one.fetchval("SELECT pg_backend_pid()") for one in (session, other)]
    finally:
        await other.close()
    if pids[0] == pids[1]:
        raise StoreError(
            f"{name} is a pooler that pools transactions, but locks and notifications need "
            "sessions: set `pool_mode = session` for this database, or name the server itself"
        )


@contextmanager
def raise_store_errors(name: str) -> Iterator[None]:
    """Turn errors of a session or its server into StoreError; `name` is the database's name."""
    try:
        yield
    except asyncpg.InvalidAuthorizationSpecificationError as error:
        raise DatabaseFailureError(f"{name} rejects the user or password in its URL") from error
    except DATABASE_ERRORS as error:
        kind: type[StoreError] = DatabaseFailureError
        if isinstance(error, asyncpg.IntegrityConstraintViolationError):
            kind = StoreError
        elif isinstance(error, UNREACHABLE):
            kind = UnreachableError
        raise kind(f"{name}: {_describe(error)}") from error


def _describe(error: Exception) -> str:
    """Return the first line of an error, without values of rows, which do not belong in a log."""
    # Errors about a value quote it, on the server (DataError) and in asyncpg (a ValueError). Others
    # quote values only in later lines (DETAIL, CONTEXT).
    message = "" if isinstance(error, asyncpg.DataError | ValueError) else str(error)
    return message.splitlines()[0] if message else type(error).__name__


async def _skip_reset(session: asyncpg.Connection) -> None:
    """Do nothing: no transaction changes session settings, so a reset would waste a round trip."""
