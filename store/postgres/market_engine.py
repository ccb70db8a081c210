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
from store.postgres.engine import FAILURES, PostgresEngine, connect, telling_errors
from store.postgres.transaction import PostgresDatabase

# Of all that sessions may hold by number in a database: who computes on it.
COMPUTING = 5_189_272
LEASE_S = 6.0
ENDS_WITHIN_MS = 1000
BEAT_S = 1.5
POLL_S = 0.5
CHANNEL = "signals_version"
TRY = "SELECT pg_try_advisory_lock($1)"
HOLDER = """
SELECT pid, application_name, (state_change, bytes_processed)::text, wait_event = 'ClientRead'
FROM pg_locks JOIN pg_stat_activity USING (pid) LEFT JOIN pg_stat_progress_copy USING (pid)
WHERE locktype = 'advisory' AND granted AND classid = 0 AND objid = $1
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
MOVE = "UPDATE version SET number = number + 1 RETURNING pg_notify($1, number::text)"


class PostgresMarketEngine(PostgresEngine):
    """The market's schema, open."""

    def __init__(self, url: str, schema: str, pool: asyncpg.Pool) -> None:
        super().__init__(url, schema, pool)
        self._turn: Final = asyncio.Lock()
        self._computer: asyncpg.Connection | None = None
        self._beating: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._version = 0
        self._waits: tuple[object, float] = None, 0.0

    async def close(self) -> None:
        """Close every session and let go of the lock; idempotent."""
        await _ended(self._watching)
        await self.unlock()
        await super().close()

    async def lock(self) -> None:
        """Take the compute lock until close; LockTakenError naming the holder where it is taken."""
        if self._computer is not None and not self._computer.is_closed():
            return
        session = await self._locked()
        # Until here a session that ended is kept: nothing is committed by another in its place.
        await self.unlock()
        self._computer = session
        self._beating = asyncio.create_task(self._beat(session))

    async def unlock(self) -> None:
        """Let go of the compute lock; idempotent."""
        computer, self._computer = self._computer, None
        await _ended(self._beating)
        if computer is not None:
            with telling_errors(self.name):
                await computer.close()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[PostgresDatabase]:
        """Hold a write transaction: committed at the end, rolled back on any exception."""
        async with super().writing() as database:
            yield database
            await _move(database)

    @asynccontextmanager
    async def computing(self) -> AsyncIterator[PostgresDatabase]:
        """Hold a write transaction of the process that computes.

        LockTakenError where that is another one, or may be since this one's session ended.
        """
        async with (
            self._turn,
            self._own_session() as database,
            database.connection.transaction(),
        ):
            if not await database.rows("SELECT 1 WHERE pg_try_advisory_xact_lock(?)", COMPUTING):
                raise LockTakenError(f"another process is computing on {self.name}")
            yield database
            await _move(database)

    def version(self) -> int:
        """Return a number that moves whenever anything committed; it waits for nothing."""
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        return self._version

    @asynccontextmanager
    async def _own_session(self) -> AsyncIterator[PostgresDatabase]:
        """Lend the session that holds the lock; any where this process never took it."""
        computer = self._computer
        if computer is None:
            async with self.querying() as database:
                yield database
            return
        try:
            with telling_errors(self.name):
                yield PostgresDatabase(computer)
        except StoreError as error:
            if isinstance(error, LockTakenError) or not computer.is_closed():
                raise
            raise LockTakenError(f"no longer computing on {error}") from error

    async def _locked(self) -> asyncpg.Connection:
        """Open a session that holds the lock."""
        with telling_errors(self.name):
            session = await connect(self.url, self.schema, application_name=_own_name())
            try:
                if not await session.fetchval(TRY, COMPUTING):
                    holder = await self._holder(session)
                    # It may have been ended as one that sleeps.
                    if not await session.fetchval(TRY, COMPUTING):
                        raise LockTakenError(f"{holder} is computing on {self.name}")
            except BaseException:
                await session.close()
                raise
        return session

    async def _holder(self, session: asyncpg.Connection) -> str:
        """Return who holds the lock; end a session that has waited for its client for a lease."""
        row = await session.fetchrow(HOLDER, COMPUTING)
        if row is None:
            return "another process"
        pid, name, since, waits = row
        now, (seen, seen_at) = asyncio.get_running_loop().time(), self._waits
        if not waits or seen != (pid, since):
            self._waits = (pid, since), now
        elif now - seen_at >= LEASE_S:
            await session.execute("SELECT pg_terminate_backend($1, $2)", pid, ENDS_WITHIN_MS)
        return f"another {name}"

    async def _beat(self, session: asyncpg.Connection) -> None:
        """Show that this process is awake for as long as its session lasts."""
        with suppress(*FAILURES):
            while True:
                await asyncio.sleep(BEAT_S)
                async with self._turn:
                    await session.execute("SELECT 1")

    async def _watch(self) -> None:
        """Follow the version: what is told of it, and for what may be lost on the way, asking."""
        while True:
            with suppress(*FAILURES):
                await self._follow()
            await asyncio.sleep(POLL_S)

    async def _follow(self) -> None:
        session = await connect(self.url, self.schema)
        try:
            await session.add_listener(CHANNEL, self._heard)
            while True:
                self._version = await session.fetchval("SELECT number FROM version")
                await asyncio.sleep(POLL_S)
        finally:
            session.terminate()

    def _heard(self, session: object, pid: int, channel: str, payload: object) -> None:
        self._version = int(str(payload))


async def _move(database: PostgresDatabase) -> None:
    await database.connection.execute(MOVE, CHANNEL)


async def _ended(task: "asyncio.Task[None] | None") -> None:
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _own_name() -> str:
    return f"signals process (pid {os.getpid()} on {socket.gethostname()})"
