"""A PostgreSQL schema and the session pool of one process.

Statements are those of SQLite: their placeholders are converted, and index hints removed.
No time that is stored comes from the server's clock: callers pass every time as a value.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from functools import lru_cache, partial
from typing import Any, ClassVar, Self

import asyncpg
from asyncpg import Connection, Record
from asyncpg.pool import PoolConnectionProxy

from store.addresses import redact_database_url
from store.postgres.schema import DATABASE_ERRORS, migrate
from store.sql.database import READ_LIMITS_S, Database, Engine, Folded, Lane, limit_seconds
from store.store_errors import DatabaseFailureError, StoreError, UnreachableError
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
    # 0 removes both limits: counting the calls of 64 keys exceeds asyncpg's default of 15 KB.
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


# Only SQLite has index hints. (?<!:) keeps casts such as ::bigint from being read as names.
_HINT = re.compile(r"\s(NOT INDEXED|INDEXED BY \w+)")
_PLACEHOLDER = re.compile(r"\?|(?<!:):(\w+)")


@lru_cache(maxsize=1024)
def convert_placeholders(sql: str) -> tuple[str, tuple[str, ...]]:
    """Return a statement with `$1` placeholders and no index hints, and its parameter names."""
    places: dict[str, int] = {}
    # A name keeps its place; a question mark gets the next one.
    numbered = _PLACEHOLDER.sub(
        lambda found: f"${places.setdefault(found[1] or f'{len(places)}', len(places) + 1)}",
        _HINT.sub("", sql),
    )
    return numbered, tuple(places)


class PostgresDatabase(Database):
    """A Database bound to one connection and its open transaction."""

    packed_bars = "string_agg(encode(b.data, 'hex'), '')"

    def __init__(
        self, connection: Connection | PoolConnectionProxy, timeout_s: float | None = None
    ) -> None:
        """`timeout_s` limits each statement on this side, by default as the session does."""
        self.connection = connection
        self._timeout_s = timeout_s

    async def execute(self, sql: str, *values: object, **named: object) -> Sequence[Record]:
        statement, names = convert_placeholders(sql)
        given = values or [named[name] for name in names]
        found: Sequence[Record] = await self.connection.fetch(
            statement, *given, timeout=self._timeout_s
        )
        return found

    async def execute_page(self, sql: str, values: Mapping[str, object]) -> Sequence[Record]:
        return await self.execute(sql, **values)

    async def fetch_packed(self, columns: str, sql: str, *values: object) -> list[list[Any]]:
        packed = (
            f"SELECT coalesce(json_agg(json_build_array({columns})), '[]')::text FROM ({sql}) q"
        )
        rows: list[list[Any]] = json.loads((await self.execute(packed, *values))[0][0])
        return rows

    async def insert(
        self, table: str, columns: str, rows: Sequence[Iterable[object]], conflict: str = ""
    ) -> None:
        names = [name.strip(' "') for name in columns.split(",")]
        if not conflict:
            await self.connection.copy_records_to_table(table, records=rows, columns=names)
        elif rows:
            placeholders = ", ".join(f"${n + 1}" for n in range(len(names)))
            sql = f"INSERT INTO {table} ({columns}) VALUES ({placeholders}) {conflict}"
            await self.connection.executemany(sql, rows)

    async def advance_id_sequence(self, table: str) -> None:
        # Rows inserted with explicit ids do not advance the sequence.
        statement = f"SELECT setval(pg_get_serial_sequence($1, 'id'), max(id)) FROM {table}"
        await self.connection.execute(statement, table)

    async def acquire_named_lock(self, *names: str) -> None:
        sql = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"
        await self.connection.execute(sql, "/".join(names))


class PostgresEngine(Engine):
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
        async with open_session(url, schema) as session:
            await _refuse_unfit_server(url, schema, session)
            await migrate(session, redact_database_url(url), schema, migrations)
        with raise_store_errors(redact_database_url(url)):
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
        return redact_database_url(self.url)

    async def close(self) -> None:
        await self._health.close()
        await self._pool.close()

    async def check_writes(self, tests: Mapping[WriteKind, TestWrite], max_age_s: float) -> None:
        await self._health.check(tests, max_age_s)

    async def measure(self) -> tuple[str, int]:
        async with self.acquire_connection() as database:
            (row,) = await database.execute(MEASURE_SCHEMA, self.schema)
        return f"PostgreSQL {row['version']}", int(row["size_bytes"])

    @asynccontextmanager
    async def begin_write(self, *, is_durable: bool = False) -> AsyncIterator[PostgresDatabase]:
        # synchronous_commit stays on for all transactions, so each is durable. Switching it off for
        # counted calls, as SQLite's NORMAL does, would lose counts even in a crash of the server.
        with self._health.report("transaction"):
            async with self._acquire_session(self.write_lane) as session, session.transaction():
                database = PostgresDatabase(session)
                await set_time_limit(database, COMMAND_TIMEOUT_S)
                yield database

    async def count(self, sql: str, *values: object) -> Sequence[asyncpg.Record]:
        with self._health.report("count"):
            async with self.acquire_connection() as database:
                return await database.execute(sql, *values)

    @asynccontextmanager
    async def begin_read(self, lane: Lane = Lane.PAGES) -> AsyncIterator[PostgresDatabase]:
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
        async with self.begin_read() as database:
            rows = await database.execute_page(sql, values)
        return await asyncio.to_thread(fold, map(tuple, rows))

    @asynccontextmanager
    async def acquire_connection(self) -> AsyncIterator[PostgresDatabase]:
        async with self._acquire_session(Lane.PAGES) as session:
            yield PostgresDatabase(session, READ_LIMITS_S[Lane.PAGES] + SILENCE_S)

    acquire_writer = acquire_connection

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


@asynccontextmanager
async def open_session(url: str, schema: str) -> AsyncIterator[asyncpg.Connection]:
    """Open a session outside the pool for a block; every error is a StoreError."""
    with raise_store_errors(redact_database_url(url)):
        session = await connect(url, schema)
        try:
            yield session
        finally:
            await session.close()


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
    async with open_session(url, schema) as other:
        pids = [await one.fetchval("SELECT pg_backend_pid()") for one in (session, other)]
    if pids[0] == pids[1]:
        raise StoreError(
            f"{name} is a pooler that pools transactions, but locks need sessions: "
            "set `pool_mode = session` for this database, or name the server itself"
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
