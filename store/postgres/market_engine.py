"""What the market's schema has beside transactions: one process that computes, and a version.

Who computes holds an advisory lock by a session of its own, and commits by that session alone: one
whose session ended can commit nothing more, whatever it was about to write. A session that waits
for its client for longer than a lease is ended by whoever wants to compute instead.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import asyncpg

from store.errors import LockTakenError, StoreError
from store.postgres.engine import DATABASE_ERRORS, PostgresEngine, connect, raise_store_errors
from store.postgres.transaction import PostgresDatabase

# Of all that sessions may hold by number in a database: who computes on it.
COMPUTE_LOCK_ID = 5_189_272
LEASE_S = 6.0
TERMINATE_TIMEOUT_MS = 1000
HEARTBEAT_S = 1.5
POLL_S = 0.5
CHANNEL = "signals_version"
TRY_LOCK = "SELECT pg_try_advisory_lock($1)"
SELECT_LOCK_HOLDER = """
SELECT pid, application_name, (state_change, bytes_processed)::text AS activity,
  wait_event = 'ClientRead' AS is_idle
FROM pg_locks JOIN pg_stat_activity USING (pid) LEFT JOIN pg_stat_progress_copy USING (pid)
WHERE locktype = 'advisory' AND granted AND classid = 0 AND objid = $1
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
BUMP_VERSION = "UPDATE version SET number = number + 1 RETURNING pg_notify($1, number::text)"


class PostgresMarketEngine(PostgresEngine):
    """The market's schema, open."""

    def __init__(self, url: str, schema: str, pool: asyncpg.Pool) -> None:
        super().__init__(url, schema, pool)
        self._session_turn: Final = asyncio.Lock()
        self._lock_session: asyncpg.Connection | None = None
        self._heartbeat_task: asyncio.Task[None] | None = None
        self._watch_task: asyncio.Task[None] | None = None
        self._version = 0
        self._holder_idle_since: tuple[object, float] = None, 0.0

    async def close(self) -> None:
        """Close every session and let go of the lock; idempotent."""
        await _cancel_task(self._watch_task)
        await self.unlock()
        await super().close()

    async def lock(self) -> None:
        """Take the compute lock until close; LockTakenError naming the holder where it is taken."""
        if self._lock_session is not None and not self._lock_session.is_closed():
            return
        session = await self._open_lock_session()
        # Until here a session that ended is kept: nothing is committed by another in its place.
        await self.unlock()
        self._lock_session = session
        self._heartbeat_task = asyncio.create_task(self._send_heartbeats(session))

    async def unlock(self) -> None:
        """Let go of the compute lock; idempotent."""
        session, self._lock_session = self._lock_session, None
        await _cancel_task(self._heartbeat_task)
        if session is not None:
            with raise_store_errors(self.name):
                await session.close()

    @asynccontextmanager
    async def begin_write(self) -> AsyncIterator[PostgresDatabase]:
        """Hold a write transaction: committed at the end, rolled back on any exception."""
        async with super().begin_write() as database:
            yield database
            await _bump_version(database)

    @asynccontextmanager
    async def begin_compute_write(self) -> AsyncIterator[PostgresDatabase]:
        """Hold a write transaction of the process that computes.

        LockTakenError where that is another one, or may be since this one's session ended.
        """
        async with (
            self._session_turn,
            self._acquire_lock_session() as database,
            database.connection.transaction(),
        ):
            if not await database.execute(
                "SELECT 1 WHERE pg_try_advisory_xact_lock(?)", COMPUTE_LOCK_ID
            ):
                raise LockTakenError(f"another process is computing on {self.name}")
            yield database
            await _bump_version(database)

    def version(self) -> int:
        """Return a number that moves whenever anything committed; it waits for nothing."""
        if self._watch_task is None:
            self._watch_task = asyncio.create_task(self._watch_version())
        return self._version

    @asynccontextmanager
    async def _acquire_lock_session(self) -> AsyncIterator[PostgresDatabase]:
        """Lend the session that holds the lock; any where this process never took it."""
        session = self._lock_session
        if session is None:
            async with self.acquire_connection() as database:
                yield database
            return
        try:
            with raise_store_errors(self.name):
                yield PostgresDatabase(session)
        except StoreError as error:
            if isinstance(error, LockTakenError) or not session.is_closed():
                raise
            raise LockTakenError(f"no longer computing on {error}") from error

    async def _open_lock_session(self) -> asyncpg.Connection:
        """Open a session that holds the lock."""
        with raise_store_errors(self.name):
            session = await connect(self.url, self.schema, application_name=_build_session_name())
            try:
                if not await session.fetchval(TRY_LOCK, COMPUTE_LOCK_ID):
                    holder = await self._check_lock_holder(session)
                    # It may have been ended as one that sleeps.
                    if not await session.fetchval(TRY_LOCK, COMPUTE_LOCK_ID):
                        raise LockTakenError(f"{holder} is computing on {self.name}")
            except BaseException:
                await session.close()
                raise
        return session

    async def _check_lock_holder(self, session: asyncpg.Connection) -> str:
        """Return who holds the lock; end a session that has waited for its client for a lease."""
        row = await session.fetchrow(SELECT_LOCK_HOLDER, COMPUTE_LOCK_ID)
        if row is None:
            return "another process"
        seen_now = row["pid"], row["activity"]
        now, (seen, seen_at) = asyncio.get_running_loop().time(), self._holder_idle_since
        if not row["is_idle"] or seen != seen_now:
            self._holder_idle_since = seen_now, now
        elif now - seen_at >= LEASE_S:
            statement = "SELECT pg_terminate_backend($1, $2)"
            await session.execute(statement, row["pid"], TERMINATE_TIMEOUT_MS)
        return f"another {row['application_name']}"

    async def _send_heartbeats(self, session: asyncpg.Connection) -> None:
        """Show that this process is awake for as long as its session lasts."""
        with suppress(*DATABASE_ERRORS):
            while True:
                await asyncio.sleep(HEARTBEAT_S)
                async with self._session_turn:
                    await session.execute("SELECT 1")

    async def _watch_version(self) -> None:
        """Follow the version: what is told of it, and for what may be lost on the way, asking."""
        while True:
            with suppress(*DATABASE_ERRORS):
                await self._follow_version()
            await asyncio.sleep(POLL_S)

    async def _follow_version(self) -> None:
        session = await connect(self.url, self.schema)
        try:
            await session.add_listener(CHANNEL, self._on_version)
            while True:
                self._version = await session.fetchval("SELECT number FROM version")
                await asyncio.sleep(POLL_S)
        finally:
            session.terminate()

    def _on_version(self, session: object, pid: int, channel: str, payload: object) -> None:
        self._version = int(str(payload))


async def _bump_version(database: PostgresDatabase) -> None:
    await database.connection.execute(BUMP_VERSION, CHANNEL)


async def _cancel_task(task: "asyncio.Task[None] | None") -> None:
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _build_session_name() -> str:
    return f"signals process (pid {os.getpid()} on {socket.gethostname()})"
