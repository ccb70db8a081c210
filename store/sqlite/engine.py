"""One SQLite file: a writer, a reader for each lane, and a connection for quick decisions.

Statements run in one thread for each connection.
"""

import asyncio
import fcntl
import json
import os
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    closing,
    contextmanager,
    suppress,
)
from itertools import chain
from pathlib import Path
from typing import Any, Self

import aiosqlite
from aiosqlite import Connection

from store.sql.database import Database, Folded, Lane, MarketEngine, limit_seconds
from store.sqlite.database_files import FileGuard
from store.sqlite.schema import find_schema_faults, migrate
from store.store_errors import DatabaseFailureError, LockTakenError, StoreError
from store.write_health import TestWrite, WriteHealth, WriteKind

# Largest first. Only these four sizes occur, so that prepared statements are reused. The default
# limit of SQLite is 32,766 parameters: 2,000 rows of up to 16 columns.
ROWS_PER_STATEMENT = (2000, 200, 20, 1)


class SqliteDatabase(Database):
    """A Database bound to one connection and its open transaction."""

    packed_bars = "group_concat(hex(b.data), '')"

    def __init__(self, connection: Connection) -> None:
        connection.row_factory = sqlite3.Row
        self.connection = connection

    async def execute(self, sql: str, *values: object, **named: object) -> Sequence[sqlite3.Row]:
        return list(await self.connection.execute_fetchall(sql, named or values))

    async def execute_page(self, sql: str, values: Mapping[str, object]) -> Iterable[Iterable[Any]]:
        """Return the rows as tuples, which takes half the time of sqlite3.Row."""
        self.connection.row_factory = None
        try:
            return await self.connection.execute_fetchall(sql, values)
        finally:
            self.connection.row_factory = sqlite3.Row

    async def fetch_packed(self, columns: str, sql: str, *values: object) -> list[list[Any]]:
        # sqlite3 takes the interpreter lock at each row, while the event loop needs it too.
        packed = f"SELECT json_group_array(json_array({columns})) FROM ({sql})"
        rows: list[list[Any]] = json.loads((await self.execute(packed, *values))[0][0])
        return rows

    async def insert(
        self, table: str, columns: str, rows: Sequence[Iterable[object]], conflict: str = ""
    ) -> None:
        # Each statement hands over to the connection's thread and back. Every hand-over can cost a
        # turn of the interpreter lock (5 ms) if another thread is computing.
        row_placeholders, done = f"({', '.join('?' * (columns.count(',') + 1))})", 0
        for size in ROWS_PER_STATEMENT:
            placeholders = ", ".join([row_placeholders] * size)
            statement = f"INSERT INTO {table} ({columns}) VALUES {placeholders} {conflict}"
            while len(rows) - done >= size:
                values = list(chain.from_iterable(rows[done : done + size]))
                await self.connection.execute_fetchall(statement, values)
                done += size

    async def advance_id_sequence(self, table: str) -> None:
        """Do nothing: SQLite generates ids from the highest one in the table."""

    async def acquire_named_lock(self, *names: str) -> None:
        """Do nothing: SQLite allows only one write transaction at a time."""


# Beside thousands of single calls a second no commit's checkpoint reaches the end of the log, which
# grew to 600 MB. A log longer than this is begun again, so it stays below 100 MB.
LONG_LOG_BYTES, LOG_ATTEMPTS = 64 << 20, 20
# In milliseconds.
WAIT_FOR_LOCK, FAIL_IF_LOCKED = "PRAGMA busy_timeout = 5000", "PRAGMA busy_timeout = 0"
PRAGMAS = (
    WAIT_FOR_LOCK,
    "PRAGMA journal_mode = WAL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA recursive_triggers = ON",
    # A reader that stays open makes the log grow; SQLite shortens it when it begins again.
    "PRAGMA journal_size_limit = 16777216",
)

# A negative cache_size is in KiB. The default of 2 MB does not hold the inner pages of ten million
# rows. Not memory-mapped: an error of the disk would then kill the process with SIGBUS.
READER_PRAGMAS = ("PRAGMA query_only = ON", "PRAGMA cache_size = -8000")

# With the default of 2 MB a batch of history spills to the file before it commits. A year's changes
# took 7.5 s of processor time with 16 MB, 9.2 s with 2 MB and 8.1 s with 32 MB.
WRITER_CACHE = "PRAGMA cache_size = -16000"

# Room for all statements: preparing the widest one takes 3 ms.
STATEMENT_CACHE_SIZE = 256

# A commit with NORMAL survives a crash of the process, a commit with FULL also a power cut.
CRASH_SAFE = "PRAGMA synchronous = NORMAL"
POWER_SAFE = "PRAGMA synchronous = FULL"
# Pauses between attempts. A decision of another process takes less than a millisecond, so the first
# ones only yield to the event loop; 15 ms of sleeps follow.
RETRY_PAUSES_S = (*[0] * 50, 0.001, 0.002, 0.004, 0.008)


class SqliteEngine(MarketEngine):
    """An open, migrated file; transactions on one connection never overlap.

    The reader of short reads is opened at once, those of other lanes when they are first used.
    """

    def __init__(
        self,
        path: Path,
        writer: aiosqlite.Connection,
        reader: aiosqlite.Connection,
        direct: sqlite3.Connection,
        migrations: Sequence[str],
    ) -> None:
        self.path = path
        self._log_path = Path(f"{path}-wal")
        self._migrations = migrations
        self._writer = SqliteDatabase(writer)
        self._reader = SqliteDatabase(reader)
        self._readers = {Lane.PAGES: self._reader}
        self._direct = direct
        self._guard = FileGuard(path)
        self._health = WriteHealth()
        self._writer_lock = asyncio.Lock()
        self._reader_locks = {lane: asyncio.Lock() for lane in Lane}
        self._direct_lock = asyncio.Lock()
        self._lock_file: int | None = None
        self._is_closed = False

    @property
    def name(self) -> str:
        return str(self.path)

    @classmethod
    async def open(cls, path: Path, migrations: Sequence[str]) -> Self:
        """Migrate and open a file; raise StoreError if that fails."""
        await asyncio.to_thread(migrate, path, migrations)
        async with AsyncExitStack() as stack:
            writer = await _connect(path, CRASH_SAFE, WRITER_CACHE)
            stack.push_async_callback(writer.close)
            reader = await _connect(path, *READER_PRAGMAS)
            stack.push_async_callback(reader.close)
            direct = stack.enter_context(closing(_connect_directly(path)))
            engine = cls(path, writer, reader, direct, migrations)
            stack.pop_all()
        return engine

    async def close(self) -> None:
        await self._health.close()
        self._is_closed = True
        self._direct.close()
        for reader in self._readers.values():
            await reader.connection.close()
        await self._writer.connection.close()
        await self.unlock()

    async def measure(self) -> tuple[str, int]:
        paths = self.path, self._log_path
        size_bytes = sum(path.stat().st_size for path in paths if path.exists())
        return f"SQLite {sqlite3.sqlite_version}", size_bytes

    async def find_schema_faults(self) -> list[str]:
        return await asyncio.to_thread(find_schema_faults, self.path, self._migrations)

    async def check_writes(self, tests: Mapping[WriteKind, TestWrite], max_age_s: float) -> None:
        self._guard.check(self._count_bytes)
        # A transaction that is open now, perhaps for seconds, will report its own outcome.
        await self._health.check({} if self._writer_lock.locked() else tests, max_age_s)

    @property
    def is_locked(self) -> bool:
        return self._lock_file is not None

    async def lock(self) -> None:
        if self._lock_file is not None:
            return
        # flock ends with the process, however that dies. The file stays: deleting it would let two
        # processes lock two files of the same name.
        try:
            descriptor = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise StoreError(f"cannot lock {self.path}: {error}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, 20).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            message = f"another signals process (pid {holder}) is computing on {self.path}"
            raise LockTakenError(message) from error
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        self._lock_file = descriptor
        # Commits are durable from now on, because the key file of the log is: after a power cut
        # that took back a commit, its rows would be computed again with other salts.
        with self._raise_store_errors():
            await self._writer.execute(POWER_SAFE)

    def check_lock(self) -> None:
        """Do nothing: a process keeps the lock of its open file until it ends."""

    async def unlock(self) -> None:
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None

    def version(self) -> int:
        # data_version ignores commits of its own connection. The direct one commits only counted
        # calls, which no snapshot contains, so that suits. SQLite reads it from shared memory in
        # microseconds; a thread took ten times as long.
        self._guard.check_often(self._count_bytes)
        with self._raise_store_errors():
            number: int = self._direct.execute("PRAGMA data_version").fetchone()[0]
        return number

    async def count(self, sql: str, *values: object) -> Sequence[sqlite3.Row]:
        # Runs in the event loop: a group of calls takes 20 to 100 microseconds, but handing it to a
        # thread made each call cost 140 to 190 microseconds instead of 75 to 110.
        self._guard.check_often(self._count_bytes)
        async with self._direct_lock:
            with self._health.report("count"), self._raise_store_errors():
                return await self._execute_directly(sql, values)

    async def _execute_directly(self, sql: str, values: Sequence[object]) -> Sequence[sqlite3.Row]:
        """Execute a statement, again if another process is writing."""
        for pause_s in RETRY_PAUSES_S:
            try:
                return self._direct.execute(sql, values).fetchall()
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
            await asyncio.sleep(pause_s)

        def wait() -> Sequence[sqlite3.Row]:
            self._direct.execute(WAIT_FOR_LOCK)
            try:
                return self._direct.execute(sql, values).fetchall()
            finally:
                self._direct.execute(FAIL_IF_LOCKED)

        # Now a long transaction holds the file. Only a thread may wait for that.
        return await asyncio.to_thread(wait)

    @asynccontextmanager
    async def begin_write(self, *, is_durable: bool = False) -> AsyncIterator[SqliteDatabase]:
        self._guard.check(self._count_bytes)
        async with self._writer_lock:
            with self._health.report("transaction"), self._raise_store_errors():
                # SQLite ignores a change of `synchronous` inside a transaction.
                try:
                    if is_durable:
                        await self._writer.execute(POWER_SAFE)
                    async with self._begin_transaction(self._writer, "BEGIN IMMEDIATE") as writer:
                        yield writer
                finally:
                    if is_durable:
                        await self._writer.execute(CRASH_SAFE)

    # Other processes see another version() after a test write, whatever it wrote. The lock file
    # keeps a second compute process out.
    begin_test_write = begin_compute_write = begin_write

    @asynccontextmanager
    async def acquire_writer(self) -> AsyncIterator[SqliteDatabase]:
        # The file is locked only while a statement runs, not while this coroutine waits for a turn.
        async with self._writer_lock:
            with self._raise_store_errors():
                yield self._writer
            # A failure here is no failure of the transaction.
            with suppress(OSError, sqlite3.Error, StoreError):
                if self._log_path.stat().st_size > LONG_LOG_BYTES:
                    await asyncio.to_thread(self._begin_log_again)

    def _begin_log_again(self) -> None:
        with closing(_connect_directly(self.path)) as own:
            # Most of it, while others write. The rest is short, because they wait for it.
            own.execute("PRAGMA wal_checkpoint(PASSIVE)")
            # A counted call may hold the file for a moment, or a reader for long.
            for _ in range(LOG_ATTEMPTS):
                (is_busy, _, _) = own.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
                if not is_busy:
                    return

    @asynccontextmanager
    async def begin_read(self, lane: Lane = Lane.PAGES) -> AsyncIterator[SqliteDatabase]:
        self._guard.check_often(self._count_bytes)
        async with (
            self._acquire_reader(lane) as reader,
            self._begin_transaction(reader, "BEGIN"),
            self._interrupt_on_error(reader, lane),
        ):
            yield reader

    async def fold_rows(
        self,
        sql: str,
        values: Mapping[str, object],
        fold: Callable[[Iterable[tuple[Any, ...]]], Folded],
    ) -> Folded:
        def read() -> Folded:
            with closing(_connect_directly(self.path)) as connection:
                connection.execute(WAIT_FOR_LOCK)
                connection.row_factory = None
                return fold(connection.execute(sql, values))

        self._guard.check_often(self._count_bytes)
        with self._raise_store_errors():
            async with limit_seconds(Lane.PAGES, self.name, "a read of the feed"):
                return await asyncio.to_thread(read)

    @asynccontextmanager
    async def acquire_connection(self) -> AsyncIterator[SqliteDatabase]:
        self._guard.check_often(self._count_bytes)
        async with (
            self._acquire_reader(Lane.PAGES) as reader,
            self._interrupt_on_error(reader, Lane.PAGES),
        ):
            with self._raise_store_errors():
                yield reader

    @asynccontextmanager
    async def _acquire_reader(self, lane: Lane) -> AsyncIterator[SqliteDatabase]:
        """Hold the reader of a lane, opening it if it is used for the first time."""
        lock = self._reader_locks[lane]
        async with limit_seconds(lane, self.name, f"waiting for other reads ({lane})"):
            await lock.acquire()
        try:
            if lane not in self._readers:
                if self._is_closed:
                    raise StoreError(f"{self.path} is closed")
                self._readers[lane] = SqliteDatabase(await _connect(self.path, *READER_PRAGMAS))
            yield self._readers[lane]
        finally:
            lock.release()

    @asynccontextmanager
    async def _interrupt_on_error(self, reader: SqliteDatabase, lane: Lane) -> AsyncIterator[None]:
        """Limit the time of a read, and stop its statement if it is cancelled."""
        try:
            async with limit_seconds(lane, self.name, f"a read ({lane})"):
                yield
        except BaseException:
            # A cancelled statement would continue in its thread, and the next read wait for it.
            # The interrupt ends at the next statement, so it never hits a later read.
            # A closed connection has no statement left.
            if not self._is_closed:
                await reader.connection.interrupt()
            raise

    @asynccontextmanager
    async def _begin_transaction(
        self, database: SqliteDatabase, begin_sql: str
    ) -> AsyncIterator[SqliteDatabase]:
        with self._raise_store_errors():
            try:
                await database.execute(begin_sql)
                yield database
                await database.connection.commit()
            except BaseException:  # also cancellation, which would leave the transaction open
                await database.connection.rollback()
                raise

    @contextmanager
    def _raise_store_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError as error:
            raise StoreError(f"{self.path}: {error}") from error
        except sqlite3.Error as error:
            raise DatabaseFailureError(f"{self.path}: {error}") from error
        except ValueError as error:
            # aiosqlite raises it for a statement on a connection that was closed meanwhile.
            if self._is_closed:
                raise StoreError(f"{self.path} is closed") from error
            raise

    def _count_bytes(self) -> int:
        """Return the size of the database in SQLite's view; a huge one if that is damaged."""
        try:
            (pages,) = self._direct.execute("PRAGMA page_count").fetchone()
            (page_bytes,) = self._direct.execute("PRAGMA page_size").fetchone()
        except sqlite3.Error:
            return sys.maxsize
        return int(pages * page_bytes)


async def _connect(path: Path, *extra_pragmas: str) -> aiosqlite.Connection:
    async with AsyncExitStack() as stack:
        opening = asyncio.ensure_future(
            aiosqlite.connect(path, isolation_level=None, cached_statements=STATEMENT_CACHE_SIZE)
        )
        try:
            try:
                connection = await asyncio.shield(opening)
            except asyncio.CancelledError:
                # Its thread opens the file all the same, or fails.
                with suppress(sqlite3.Error):
                    await (await opening).close()
                raise
            stack.push_async_callback(connection.close)
            for pragma in (*PRAGMAS, *extra_pragmas):
                await connection.execute_fetchall(pragma)
        except sqlite3.Error as error:
            raise StoreError(f"cannot open {path}: {error}") from error
        stack.pop_all()
    return connection


def _connect_directly(path: Path) -> sqlite3.Connection:
    """Open a connection that never waits, neither for another writer nor for a checkpoint."""
    # SQLite checkpoints in the commit that fills the log, which can block for a disk flush (up to
    # 0.5 s was seen). The writer does that in its thread: each counted call is logged by it too.
    with ExitStack() as stack:
        try:
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            stack.callback(connection.close)
            connection.row_factory = sqlite3.Row
            for pragma in (*PRAGMAS, CRASH_SAFE, FAIL_IF_LOCKED, "PRAGMA wal_autocheckpoint = 0"):
                connection.execute(pragma)
        except sqlite3.Error as error:
            raise StoreError(f"cannot open {path}: {error}") from error
        stack.pop_all()
    return connection
