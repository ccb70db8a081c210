"""One SQLite file as a process holds it: one writing and one query-only connection."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Self

import aiosqlite

from store.migrations import migrate
from store.protocol import StoreError

PRAGMAS = (
    "PRAGMA busy_timeout = 5000",
    "PRAGMA journal_mode = WAL",
    "PRAGMA foreign_keys = ON",
    "PRAGMA recursive_triggers = ON",
)

# What commits with NORMAL survives a crash of the process; with FULL a power cut too.
CRASH_SAFE = "PRAGMA synchronous = NORMAL"
POWER_SAFE = "PRAGMA synchronous = FULL"


class Connections:
    """A migrated file, open; transactions of a connection never overlap."""

    def __init__(
        self, path: Path, writer: aiosqlite.Connection, reader: aiosqlite.Connection
    ) -> None:
        self.path = path
        self._writer = writer
        self._reader = reader
        self._write_turn = asyncio.Lock()
        self._read_turn = asyncio.Lock()

    @classmethod
    async def open(cls, path: Path, migrations: Sequence[str]) -> Self:
        """Migrate and open a file."""
        await asyncio.to_thread(migrate, path, migrations)
        writer = await _connect(path, CRASH_SAFE)
        try:
            reader = await _connect(path, "PRAGMA query_only = ON")
        except BaseException:
            await writer.close()
            raise
        return cls(path, writer, reader)

    async def close(self) -> None:
        """Close both connections; idempotent."""
        await self._reader.close()
        await self._writer.close()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[aiosqlite.Connection]:
        """Hold a write transaction: committed at the end, rolled back on any exception."""
        async with self._write_turn, self._transaction(self._writer, "BEGIN IMMEDIATE") as writer:
            yield writer

    @asynccontextmanager
    async def writing_for_good(self) -> AsyncIterator[aiosqlite.Connection]:
        """Hold a write transaction that is on the disk once it is committed."""
        begun = self._transaction(self._writer, "BEGIN IMMEDIATE")
        async with self._write_turn, self._power_safe(), begun as writer:
            yield writer

    @asynccontextmanager
    async def deciding(self) -> AsyncIterator[aiosqlite.Connection]:
        """Hold the writer for one statement, which is a transaction by itself."""
        async with self._write_turn:
            with self._telling_errors():
                yield self._writer

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[aiosqlite.Connection]:
        """Hold a read transaction: all that is read in it is of one version."""
        async with self._read_turn, self._transaction(self._reader, "BEGIN") as reader:
            yield reader

    @asynccontextmanager
    async def querying(self) -> AsyncIterator[aiosqlite.Connection]:
        """Hold the reader for one statement, which is a transaction by itself."""
        async with self._read_turn:
            with self._telling_errors():
                yield self._reader

    @asynccontextmanager
    async def _power_safe(self) -> AsyncIterator[None]:
        with self._telling_errors():
            try:
                await self._writer.execute_fetchall(POWER_SAFE)
                yield
            finally:
                await self._writer.execute_fetchall(CRASH_SAFE)

    @asynccontextmanager
    async def _transaction(
        self, connection: aiosqlite.Connection, begin: str
    ) -> AsyncIterator[aiosqlite.Connection]:
        with self._telling_errors():
            try:
                await connection.execute_fetchall(begin)
                yield connection
                await connection.commit()
            except BaseException:
                await connection.rollback()
                raise

    @contextmanager
    def _telling_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {error}") from error


async def _connect(path: Path, last_pragma: str) -> aiosqlite.Connection:
    try:
        connection = await aiosqlite.connect(path, isolation_level=None)
    except sqlite3.Error as error:
        raise StoreError(f"cannot open {path}: {error}") from error
    try:
        for pragma in (*PRAGMAS, last_pragma):
            await connection.execute_fetchall(pragma)
    except BaseException as error:
        await connection.close()
        if isinstance(error, sqlite3.Error):
            raise StoreError(f"cannot open {path}: {error}") from error
        raise
    return connection
