"""A transaction on a PostgreSQL connection; translates SQLite's placeholders and index hints."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from asyncpg import Connection, Record
from asyncpg.pool import PoolConnectionProxy

# Only SQLite has index hints. (?<!:) keeps casts such as ::bigint from being read as names.
_HINT = re.compile(r"\s(NOT INDEXED|INDEXED BY \w+)")
_PLACEHOLDER = re.compile(r"\?|(?<!:):(\w+)")


@lru_cache(maxsize=1024)
def convert_placeholders(sql: str) -> tuple[str, tuple[str, ...]]:
    """Return a statement with `$1` placeholders and no index hints, and its parameter names."""
    names: list[str] = []

    def number_placeholder(match: re.Match[str]) -> str:
        name = match[1] or f"{len(names) + 1}"
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    return _PLACEHOLDER.sub(number_placeholder, _HINT.sub("", sql)), tuple(names)


class PostgresDatabase:
    """A Database bound to one connection and its open transaction."""

    packed_bars = "string_agg(encode(b.data, 'hex'), '')"

    def __init__(
        self, connection: Connection | PoolConnectionProxy, timeout_s: float | None = None
    ) -> None:
        """`timeout_s` limits each statement on this side, by default as the session does."""
        self.connection = connection
        self._timeout_s = timeout_s

    async def execute(self, sql: str, *values: object) -> Sequence[Record]:
        """Return every row of a statement."""
        statement, _ = convert_placeholders(sql)
        found: Sequence[Record] = await self.connection.fetch(
            statement, *values, timeout=self._timeout_s
        )
        return found

    async def execute_named(self, sql: str, values: Mapping[str, object]) -> Sequence[Record]:
        """Return every row of a statement with named parameters."""
        statement, names = convert_placeholders(sql)
        found: Sequence[Record] = await self.connection.fetch(
            statement, *(values[name] for name in names), timeout=self._timeout_s
        )
        return found

    async def execute_page(self, sql: str, values: Mapping[str, object]) -> Sequence[Record]:
        """Return every row of a statement with named parameters."""
        return await self.execute_named(sql, values)

    async def fetch_packed(self, columns: str, sql: str, *values: object) -> list[list[Any]]:
        """Return columns of every row of a query, packed into one value."""
        packed = (
            f"SELECT coalesce(json_agg(json_build_array({columns})), '[]')::text FROM ({sql}) q"
        )
        rows: list[list[Any]] = json.loads((await self.execute(packed, *values))[0][0])
        return rows

    async def insert(
        self, table: str, columns: str, rows: Sequence[Iterable[object]], conflict: str = ""
    ) -> None:
        """Insert rows in order; without a `conflict` clause, by COPY."""
        names = [name.strip(' "') for name in columns.split(",")]
        if not conflict:
            await self.connection.copy_records_to_table(table, records=rows, columns=names)
        elif rows:
            placeholders = ", ".join(f"${n + 1}" for n in range(len(names)))
            sql = f"INSERT INTO {table} ({columns}) VALUES ({placeholders}) {conflict}"
            await self.connection.executemany(sql, rows)

    async def advance_id_sequence(self, table: str) -> None:
        """Make the next generated id follow the highest id of the table."""
        # Rows inserted with explicit ids do not advance the sequence.
        statement = f"SELECT setval(pg_get_serial_sequence($1, 'id'), max(id)) FROM {table}"
        await self.connection.execute(statement, table)

    async def acquire_named_lock(self, *names: str) -> None:
        """Take an exclusive lock on the names until the end of the transaction, waiting for it."""
        sql = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"
        await self.connection.execute(sql, "/".join(names))
