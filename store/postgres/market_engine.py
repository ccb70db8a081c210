"""The market store's PostgreSQL engine: the compute lock, and a version that grows on commit.

The compute process holds an advisory lock in a dedicated session and commits only through that
session, so a process that lost its session can commit nothing more. If the session has been idle
for longer than a lease, another process that wants the lock terminates it.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import ClassVar, Final, NamedTuple

import asyncpg
from asyncpg import Connection

from store.addresses import redact_database_url
from store.migrations import list_schema_faults
from store.postgres.engine import (
    COMMAND_TIMEOUT_S,
    PostgresDatabase,
    PostgresEngine,
    connect,
    open_session,
    raise_store_errors,
    set_time_limit,
)
from store.postgres.schema import (
    CREATE_MIGRATIONS,
    DATABASE_ERRORS,
    MARKET_MIGRATIONS,
    list_applied_migrations,
    load_script,
)
from store.sql.database import Lane, MarketEngine
from store.store_errors import LockTakenError, StoreError

# Advisory locks are numbered per database; schema.py uses the number before this one.
COMPUTE_LOCK_ID = 5_189_272
# A lock holder shows activity every HEARTBEAT_S. A contender that has seen none for LEASE_S, by its
# own monotonic clock, takes the holder for stopped or its machine for dead. A lease stored in a
# table would compare the clocks of several machines.
LEASE_S = 6.0
TERMINATE_TIMEOUT_MS = 1000
HEARTBEAT_S = 1.5
# How long a process may serve the version before a new one.
POLL_S = 0.25
TRY_LOCK = "SELECT pg_try_advisory_lock($1)"
SELECT_LOCK_HOLDER = """
SELECT pid, application_name, (state_change, bytes_processed)::text AS activity,
  wait_event = 'ClientRead' AS is_idle
FROM pg_locks JOIN pg_stat_activity USING (pid) LEFT JOIN pg_stat_progress_copy USING (pid)
WHERE locktype = 'advisory' AND granted AND classid = 0 AND objid = $1
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
BUMP_VERSION = "UPDATE version SET number = number + 1"


class PostgresMarketEngine(PostgresEngine, MarketEngine):
    """An open market schema with its compute lock and version."""

    # One of the five sessions is always left for the snapshot and for probes.
    lane_sizes: ClassVar[Mapping[Lane, int]] = {Lane.PAGES: 2, Lane.PAST: 1, Lane.BATCH: 1}
    write_lane: ClassVar[Lane] = Lane.BATCH

    def __init__(self, url: str, schema: str, pool: asyncpg.Pool) -> None:
        super().__init__(url, schema, pool)
        self._session_turn: Final = asyncio.Lock()
        self._lock_session: asyncpg.Connection | None = None
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self._version = 0
        self._holder_idle_since: tuple[object, float] = None, 0.0

    async def close(self) -> None:
        await _cancel_task(self._watch_task)
        await self.unlock()
        await super().close()

    async def lock(self) -> None:
        if self.is_locked:
            return
        with raise_store_errors(self.name):
            session_name = f"signals process (pid {os.getpid()} on {socket.gethostname()})"
            session = await connect(self.url, self.schema, application_name=session_name)
            try:
                if not await session.fetchval(TRY_LOCK, COMPUTE_LOCK_ID):
                    holder = await self._check_lock_holder(session)
                    # Checking may have terminated an idle holder, so try once more.
                    if not await session.fetchval(TRY_LOCK, COMPUTE_LOCK_ID):
                        raise LockTakenError(f"{holder} is computing on {self.name}")
            except BaseException:
                await session.close()
                raise
        # A closed session stays in place until a new one has the lock. With None here
        # begin_compute_write would commit through the pool as soon as no process holds the lock,
        # although another one may have computed meanwhile.
        await self.unlock()
        self._lock_session = session
        self._heartbeat_task = asyncio.create_task(self._send_heartbeats(session))

    def check_lock(self) -> None:
        if self._lock_session is not None and self._lock_session.is_closed():
            raise LockTakenError(f"no longer computing on {self.name}: its session has ended")

    async def unlock(self) -> None:
        session, self._lock_session = self._lock_session, None
        await _cancel_task(self._heartbeat_task)
        if session is not None:
            with raise_store_errors(self.name):
                await session.close()

    @asynccontextmanager
    async def begin_write(self, *, is_durable: bool = False) -> AsyncIterator[PostgresDatabase]:
        async with super().begin_write(is_durable=is_durable) as database:
            yield database
            await database.connection.execute(BUMP_VERSION)

    def begin_test_write(self) -> AbstractAsyncContextManager[PostgresDatabase]:
        return super().begin_write()

    @property
    def is_locked(self) -> bool:
        return self._lock_session is not None and not self._lock_session.is_closed()

    @asynccontextmanager
    async def begin_compute_write(self) -> AsyncIterator[PostgresDatabase]:
        with self._health.report("transaction"):
            async with (
                self._session_turn,
                self._acquire_lock_session() as database,
                database.connection.transaction(),
            ):
                # Always succeeds in the session that holds the lock. A process that never locked
                # commits only if no other process holds it.
                if not await database.execute(
                    "SELECT 1 WHERE pg_try_advisory_xact_lock(?)", COMPUTE_LOCK_ID
                ):
                    raise LockTakenError(f"another process is computing on {self.name}")
                await set_time_limit(database, COMMAND_TIMEOUT_S)
                yield database
                await database.connection.execute(BUMP_VERSION)

    async def find_schema_faults(self) -> list[str]:
        return await find_schema_faults(self.url, self.schema, MARKET_MIGRATIONS)

    def version(self) -> int:
        # The watcher keeps the number current, so a request pays no round trip for it.
        if self._watch_task is None:
            self._watch_task = asyncio.create_task(self._watch_version())
        return self._version

    @asynccontextmanager
    async def _acquire_lock_session(self) -> AsyncIterator[PostgresDatabase]:
        """Borrow the session that holds the lock, or a pooled one if this process never locked."""
        session = self._lock_session
        if session is None:
            async with self._acquire_session(self.write_lane) as pooled:
                yield PostgresDatabase(pooled)
            return
        try:
            with raise_store_errors(self.name):
                yield PostgresDatabase(session)
        except StoreError as error:
            if isinstance(error, LockTakenError) or not session.is_closed():
                raise
            raise LockTakenError(f"no longer computing on {error}") from error

    async def _check_lock_holder(self, session: asyncpg.Connection) -> str:
        """Return the name of the lock's holder; terminate its session if idle for a lease."""
        row = await session.fetchrow(SELECT_LOCK_HOLDER, COMPUTE_LOCK_ID)
        if row is None:
            return "another process"
        seen_now = row["pid"], row["activity"]
        # `activity` changes with each statement and with the progress of a COPY. Two equal values
        # with the session idle in between mean that its client sent nothing.
        now, (seen, seen_at) = asyncio.get_running_loop().time(), self._holder_idle_since
        if not row["is_idle"] or seen != seen_now:
            self._holder_idle_since = seen_now, now
        elif now - seen_at >= LEASE_S:
            statement = "SELECT pg_terminate_backend($1, $2)"
            await session.execute(statement, row["pid"], TERMINATE_TIMEOUT_MS)
        return f"another {row['application_name']}"

    async def _send_heartbeats(self, session: asyncpg.Connection) -> None:
        """Send a statement every HEARTBEAT_S so that other processes see this one is alive."""
        try:
            while True:
                await asyncio.sleep(HEARTBEAT_S)
                async with self._session_turn:
                    await session.execute("SELECT 1", timeout=LEASE_S)
        except DATABASE_ERRORS:
            # Without a response for a lease, another process may have the lock: `check_lock` fails.
            session.terminate()

    async def _watch_version(self) -> None:
        """Keep the version current; reconnect after a failure."""
        while True:
            with suppress(*DATABASE_ERRORS):
                session = await connect(self.url, self.schema)
                try:
                    while True:
                        self._version = await session.fetchval("SELECT number FROM version")
                        await asyncio.sleep(POLL_S)
                finally:
                    session.terminate()
            await asyncio.sleep(POLL_S)


async def _cancel_task(task: "asyncio.Task[None] | None") -> None:
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


# Each row: the kind of an object, its table (or its own name, if it has none), name and definition.
_LIST_OBJECTS = """
WITH tables AS (
  SELECT c.oid, c.relname::text AS name, c.relkind, c.relpersistence, c.relrowsecurity
  FROM pg_class c
  WHERE c.relnamespace = $1::text::regnamespace AND c.relkind IN ('r', 'v', 'm', 'f', 'p')
)
SELECT 'table' AS kind, name AS owner, name,
  concat_ws(' ', relkind, relpersistence, relrowsecurity) AS definition
FROM tables
UNION ALL
SELECT 'column', t.name, t.name || '.' || a.attname,
  concat_ws(' ', format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, l.collname,
    pg_get_expr(d.adbin, d.adrelid))
FROM tables t JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_attrdef d ON d.adrelid = t.oid AND d.adnum = a.attnum
  LEFT JOIN pg_collation l ON l.oid = a.attcollation
UNION ALL
SELECT 'constraint', t.name, t.name || '.' || k.conname, pg_get_constraintdef(k.oid)
FROM tables t JOIN pg_constraint k ON k.conrelid = t.oid
UNION ALL
SELECT 'index', t.name, i.relname, concat_ws(' ', pg_get_indexdef(i.oid), x.indisvalid)
FROM tables t JOIN pg_index x ON x.indrelid = t.oid JOIN pg_class i ON i.oid = x.indexrelid
UNION ALL
SELECT 'trigger', t.name, t.name || '.' || g.tgname,
  concat_ws(' ', g.tgenabled, pg_get_triggerdef(g.oid, true))
FROM tables t JOIN pg_trigger g ON g.tgrelid = t.oid AND NOT g.tgisinternal
UNION ALL
SELECT 'foreign keys', t.name, t.name, string_agg(g.tgenabled::text, '' ORDER BY g.tgenabled)
FROM tables t JOIN pg_trigger g ON g.tgrelid = t.oid AND g.tgisinternal GROUP BY t.name
UNION ALL
SELECT 'rule', t.name, t.name || '.' || r.rulename, pg_get_ruledef(r.oid)
FROM tables t JOIN pg_rewrite r ON r.ev_class = t.oid
UNION ALL
SELECT 'function', p.proname, p.proname,
  concat_ws(' ', p.prosrc, p.proconfig, p.prosecdef, p.provolatile, p.prorettype::regtype)
FROM pg_proc p WHERE p.pronamespace = $1::text::regnamespace
"""


async def find_schema_faults(url: str, schema: str, migrations: Sequence[str]) -> list[str]:
    """Describe how a schema differs from the one that the migrations create.

    They create it under another name, in a transaction that is rolled back.
    """
    created_schema = f"{schema}_created"
    async with open_session(url, created_schema) as session:
        transaction = session.transaction()
        await transaction.start()
        await session.execute(f"CREATE SCHEMA {created_schema}")
        await session.execute(CREATE_MIGRATIONS)
        for name in migrations:
            await session.execute(load_script(name))
        created = await _list_objects(session, created_schema)
        # pg_restore creates constraints from their printed definitions, and what it creates is
        # printed with other parentheses.
        for owner, name in created:
            kind, _, constraint = name.partition(f"constraint {owner}.")
            if not kind and constraint and created[owner, name].startswith("CHECK"):
                await session.execute(
                    f'ALTER TABLE "{owner}" DROP CONSTRAINT "{constraint}", '
                    f'ADD CONSTRAINT "{constraint}" {created[owner, name]}'
                )
        restored = await _list_objects(session, created_schema)
        stored = await _list_objects(session, schema)
        await transaction.rollback()
    created |= {key: text for key, text in restored.items() if stored.get(key) == text}
    return list_schema_faults(stored, created)


async def _list_objects(session: Connection, schema: str) -> dict[tuple[str, str], str]:
    """Return the definition of each object by its owner and name."""
    # Names are then printed without the schema, except where the catalog stores or always adds it.
    await session.execute("SELECT set_config('search_path', $1, true)", schema)
    rows = await session.fetch(_LIST_OBJECTS, schema)
    return {
        (row["owner"], f"{row['kind']} {row['name']}"): row["definition"].replace(schema, "")
        for row in rows
    }


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
    async with open_session(url, schema) as session:
        name = redact_database_url(url)
        done = await list_applied_migrations(session, name, schema, migrations)
    return len(migrations) - len(done)


async def load_database_info(url: str, schema: str) -> DatabaseInfo:
    """Return the server's current facts."""
    async with open_session(url, schema) as session:
        server = await session.fetchrow(SELECT_SERVER_INFO)
        holder = await session.fetchrow(SELECT_LOCK_HOLDER, COMPUTE_LOCK_ID)
    # PostgreSQL hides application_name from a role that may not read the other session's activity.
    lock_holder = (
        None if holder is None else holder["application_name"] or "a session of another role"
    )
    return DatabaseInfo(**server, lock_holder=lock_holder)
