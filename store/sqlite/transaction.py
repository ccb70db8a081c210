"""A transaction on a SQLite connection."""

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiosqlite import Connection

from store.sqlite.feed_pages import SQLITE_FEED_STATEMENTS

ROWS_PER_STATEMENT = (2000, 200, 20, 1)


class SqliteDatabase:
    """A Database on one connection, in whose transaction it is."""

    feed_statements = SQLITE_FEED_STATEMENTS

    def __init__(self, connection: Connection) -> None:
        connection.row_factory = sqlite3.Row
        self.connection = connection

    async def execute(self, sql: str, *values: object) -> Sequence[sqlite3.Row]:
        """Return every row of a statement; no cursor outlives the call."""
        return list(await self.connection.execute_fetchall(sql, values))

    async def execute_named(self, sql: str, values: Mapping[str, object]) -> Sequence[sqlite3.Row]:
        """Return every row of a statement whose values are named."""
        return list(await self.connection.execute_fetchall(sql, values))

    async def execute_page(self, sql: str, values: Mapping[str, object]) -> Iterable[Iterable[Any]]:
        """Return the rows of a page of the feed as tuples, which take half the time of Rows."""
        self.connection.row_factory = None
        try:
            return await self.connection.execute_fetchall(sql, values)
        finally:
            self.connection.row_factory = sqlite3.Row

    async def insert(
        self, table: str, columns: str, rows: Sequence[Iterable[object]], conflict: str = ""
    ) -> None:
        """Insert rows, many a statement: each lets another thread run, which may not yield."""
        row_placeholders, done = f"({', '.join('?' * (columns.count(',') + 1))})", 0
        for size in ROWS_PER_STATEMENT:
            placeholders = ", ".join([row_placeholders] * size)
            statement = f"INSERT INTO {table} ({columns}) VALUES {placeholders} {conflict}"
            while len(rows) - done >= size:
                values = [value for row in rows[done : done + size] for value in row]
                await self.connection.execute_fetchall(statement, values)
                done += size

    async def advance_id_sequence(self, table: str) -> None:
        """Do nothing: an id is always the one after the highest."""

    async def acquire_named_lock(self, *names: str) -> None:
        """Wait for nothing: only one write transaction is ever open on a file."""
