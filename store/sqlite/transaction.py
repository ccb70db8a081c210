"""A transaction on a SQLite connection."""

from collections.abc import Mapping, Sequence
from typing import Any

from aiosqlite import Connection

from store.sqlite.feed_pages import SQLITE_FEED_STATEMENTS

ROWS_PER_STATEMENT = (2000, 200, 20, 1)


class SqliteDatabase:
    """A Database on one connection, in whose transaction it is."""

    feed_statements = SQLITE_FEED_STATEMENTS

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def execute(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Return every row that a statement gives; no cursor outlives the call."""
        return [tuple(row) for row in await self.connection.execute_fetchall(sql, values)]

    async def execute_named(self, sql: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """Return every row of a statement whose values are named."""
        return [tuple(row) for row in await self.connection.execute_fetchall(sql, values)]

    async def insert(
        self, table: str, columns: str, rows: Sequence[tuple[object, ...]], conflict: str = ""
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
