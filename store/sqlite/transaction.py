"""A transaction on a SQLite connection."""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from aiosqlite import Connection

# Largest first. Only these four sizes occur, so that prepared statements are reused. The default
# limit of SQLite is 32,766 parameters: 2,000 rows of up to 16 columns.
ROWS_PER_STATEMENT = (2000, 200, 20, 1)


class SqliteDatabase:
    """A Database bound to one connection and its open transaction."""

    packed_bars = "group_concat(hex(b.data), '')"

    def __init__(self, connection: Connection) -> None:
        connection.row_factory = sqlite3.Row
        self.connection = connection

    async def execute(self, sql: str, *values: object) -> Sequence[sqlite3.Row]:
        """Return every row of a statement; no cursor outlives the call."""
        return list(await self.connection.execute_fetchall(sql, values))

    async def execute_named(self, sql: str, values: Mapping[str, object]) -> Sequence[sqlite3.Row]:
        """Return every row of a statement with named parameters."""
        return list(await self.connection.execute_fetchall(sql, values))

    async def execute_page(self, sql: str, values: Mapping[str, object]) -> Iterable[Iterable[Any]]:
        """Return the rows as tuples, which takes half the time of sqlite3.Row."""
        self.connection.row_factory = None
        try:
            return await self.connection.execute_fetchall(sql, values)
        finally:
            self.connection.row_factory = sqlite3.Row

    async def fetch_packed(self, columns: str, sql: str, *values: object) -> list[list[Any]]:
        """Return columns of every row of a query, packed into one value."""
        # sqlite3 takes the interpreter lock at each row, while the event loop needs it too.
        packed = f"SELECT json_group_array(json_array({columns})) FROM ({sql})"
        rows: list[list[Any]] = json.loads((await self.execute(packed, *values))[0][0])
        return rows

    async def insert(
        self, table: str, columns: str, rows: Sequence[Iterable[object]], conflict: str = ""
    ) -> None:
        """Insert rows in order, up to 2,000 per statement."""
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
