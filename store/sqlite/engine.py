"""One SQLite file as a process holds it: a writing, a query-only and a direct connection."""

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from pathlib import Path
from typing import Self, TypeVar

import aiosqlite

from store.errors import LockTakenError, StoreError
from store.sqlite.schema import migrate
from store.sqlite.transaction import SqliteDatabase

WAIT_FOR_LOCK, FAIL_IF_LOCKED = "PRAGMA busy_timeout = 5000", "PRAGMA busy_timeout = 0"
PRAGMAS = (
    WAIT_FOR_LOCK,
    "PRAGMA journal_mode = WAL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA recursive_triggers = ON",
)

# In KiB: the inner pages of ten million rows stay in memory, so that a row is one page away.
READER_PRAGMAS = ("PRAGMA query_only = ON", "PRAGMA cache_size = -32000")

# In KiB: a pass of history stays in memory until it commits, instead of being written out halfway.
WRITER_CACHE = "PRAGMA cache_size = -16000"

# Room for all 192 of the feed and the others: the widest takes 3 ms to prepare.
STATEMENT_CACHE_SIZE = 256

# What commits with NORMAL survives a crash of the process; with FULL a power cut too.
CRASH_SAFE = "PRAGMA synchronous = NORMAL"
POWER_SAFE = "PRAGMA synchronous = FULL"
DECISIONS_PER_CHECKPOINT = 2000
# Turns of the event loop first, for other deciders take less than the millisecond that it can wait.
RETRY_PAUSES_S = (*[0] * 50, 0.001, 0.002, 0.004, 0.008)

Result = TypeVar("Result")


class SqliteEngine:
    """A migrated file, open; transactions of a connection never overlap."""

    def __init__(
        self,
        path: Path,
        writer: aiosqlite.Connection,
        reader: aiosqlite.Connection,
        direct: sqlite3.Connection,
    ) -> None:
        self.path = path
        self._writer = SqliteDatabase(writer)
        self._reader = SqliteDatabase(reader)
        self._direct = direct
        self._writer_lock = asyncio.Lock()
        self._reader_lock = asyncio.Lock()
        self._direct_lock = asyncio.Lock()
        self._decision_count = 0
        self._checkpoint_task: asyncio.Task[None] | None = None
        self._lock_file: int | None = None

    @property
    def name(self) -> str:
        """Where it is, as an operator may read it."""
        return str(self.path)

    @classmethod
    async def open(cls, path: Path, migrations: Sequence[str]) -> Self:
        """Migrate and open a file."""
        await asyncio.to_thread(migrate, path, migrations)
        async with AsyncExitStack() as stack:
            writer = await _connect(path, CRASH_SAFE, WRITER_CACHE)
            stack.push_async_callback(writer.close)
            reader = await _connect(path, *READER_PRAGMAS)
            stack.push_async_callback(reader.close)
            engine = cls(path, writer, reader, _connect_directly(path))
            stack.pop_all()
        return engine

    async def close(self) -> None:
        """Close all connections and let go of the lock; idempotent."""
        if self._checkpoint_task is not None:
            await self._checkpoint_task
        self._direct.close()
        await self._reader.connection.close()
        await self._writer.connection.close()
        await self.unlock()

    async def lock(self) -> None:
        """Take the compute lock until close; LockTakenError naming the holder where it is taken."""
        if self._lock_file is None:
            self._lock_file = _acquire_lock_file(self.path)

    async def unlock(self) -> None:
        """Let go of the compute lock; idempotent."""
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def version(self) -> int:
        """Return a number that moves when another connection than the direct one has committed.

        It is read from shared memory in microseconds, so no thread need wait for it.
        """
        try:
            number: int = self._direct.execute("PRAGMA data_version").fetchone()[0]
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {error}") from error
        return number

    async def run_decision(self, decide: Callable[[sqlite3.Connection], Result]) -> Result:
        """Return what one statement decides, or several in a transaction that they begin.

        It is tried again where another process writes. It runs right here, for handing it to a
        thread takes many times as long; a thread waits only for a writer who holds the file for
        longer than decisions of other processes take.
        """
        async with self._direct_lock:
            with self._raise_store_errors():
                found = await self._retry_decision(decide)
        self._decision_count += 1
        if self._decision_count % DECISIONS_PER_CHECKPOINT == 0:
            self._checkpoint_task = asyncio.create_task(self._checkpoint())
        return found

    async def _retry_decision(self, decide: Callable[[sqlite3.Connection], Result]) -> Result:
        for pause_s in RETRY_PAUSES_S:
            try:
                return decide(self._direct)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
            await asyncio.sleep(pause_s)
        return await asyncio.to_thread(self._run_blocking, decide)

    def _run_blocking(self, decide: Callable[[sqlite3.Connection], Result]) -> Result:
        self._direct.execute(WAIT_FOR_LOCK)
        try:
            return decide(self._direct)
        finally:
            self._direct.execute(FAIL_IF_LOCKED)

    async def _checkpoint(self) -> None:
        """Move the log into the file, which waits for the disk: in a thread, beside decisions."""
        async with self._writer_lock:
            with suppress(sqlite3.Error):
                await self._writer.execute("PRAGMA wal_checkpoint(PASSIVE)")

    @asynccontextmanager
    async def begin_write(self) -> AsyncIterator[SqliteDatabase]:
        """Hold a write transaction: committed at the end, rolled back on any exception."""
        async with (
            self._writer_lock,
            self._begin_transaction(self._writer, "BEGIN IMMEDIATE") as writer,
        ):
            yield writer

    def begin_compute_write(self) -> AbstractAsyncContextManager[SqliteDatabase]:
        """Hold a write transaction; two that compute are kept apart by the lock alone."""
        return self.begin_write()

    @asynccontextmanager
    async def begin_durable_write(self) -> AsyncIterator[SqliteDatabase]:
        """Hold a write transaction that is on the disk once it is committed."""
        transaction = self._begin_transaction(self._writer, "BEGIN IMMEDIATE")
        async with self._writer_lock, self._sync_fully(), transaction as writer:
            yield writer

    @asynccontextmanager
    async def begin_read(self) -> AsyncIterator[SqliteDatabase]:
        """Hold a read transaction: all that is read in it is of one version."""
        async with self._reader_lock, self._begin_transaction(self._reader, "BEGIN") as reader:
            yield reader

    @asynccontextmanager
    async def acquire_connection(self) -> AsyncIterator[SqliteDatabase]:
        """Hold the reader for one statement, which is a transaction by itself."""
        async with self._reader_lock:
            with self._raise_store_errors():
                yield self._reader

    @asynccontextmanager
    async def _sync_fully(self) -> AsyncIterator[None]:
        with self._raise_store_errors():
            try:
                await self._writer.execute(POWER_SAFE)
                yield
            finally:
                await self._writer.execute(CRASH_SAFE)

    @asynccontextmanager
    async def _begin_transaction(
        self, database: SqliteDatabase, begin_sql: str
    ) -> AsyncIterator[SqliteDatabase]:
        with self._raise_store_errors():
            try:
                await database.execute(begin_sql)
                yield database
                await database.connection.commit()
            except BaseException:
                await database.connection.rollback()
                raise

    @contextmanager
    def _raise_store_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {error}") from error


async def _connect(path: Path, *extra_pragmas: str) -> aiosqlite.Connection:
    try:
        connection = await aiosqlite.connect(
            path, isolation_level=None, cached_statements=STATEMENT_CACHE_SIZE
        )
    except sqlite3.Error as error:
        raise StoreError(f"cannot open {path}: {error}") from error
    try:
        for pragma in (*PRAGMAS, *extra_pragmas):
            await connection.execute_fetchall(pragma)
    except BaseException as error:
        await connection.close()
        if isinstance(error, sqlite3.Error):
            raise StoreError(f"cannot open {path}: {error}") from error
        raise
    return connection


def _connect_directly(path: Path) -> sqlite3.Connection:
    """Open a connection that waits for nothing: neither for another writer nor for the disk."""
    pragmas = (*PRAGMAS, CRASH_SAFE, FAIL_IF_LOCKED, "PRAGMA wal_autocheckpoint = 0")
    try:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        connection.row_factory = sqlite3.Row
        for pragma in pragmas:
            connection.execute(pragma)
    except sqlite3.Error as error:
        raise StoreError(f"cannot open {path}: {error}") from error
    return connection


def _acquire_lock_file(path: Path) -> int:
    """Lock the file beside the database and write our pid into it; return its descriptor."""
    try:
        descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise StoreError(f"cannot lock {path}: {error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(descriptor, 20).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        message = f"another signals process (pid {holder}) is computing on {path}"
        raise LockTakenError(message) from error
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    return descriptor
