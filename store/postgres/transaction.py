"""A transaction on a PostgreSQL connection, and how statements are put for it."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from asyncpg import Connection
from asyncpg.pool import PoolConnectionProxy

from store.postgres.feed_pages import POSTGRES_FEED

_HINT = re.compile(r"\s(NOT INDEXED|INDEXED BY \w+)")
_PLACE = re.compile(r"\?(\d*)|(?<!:):(\w+)")


@lru_cache(maxsize=1024)
def put(sql: str) -> tuple[str, tuple[str, ...]]:
    """Number the places of a statement, without its hints; return it and the names of places."""
    seen: list[str] = []

    def numbered(place: re.Match[str]) -> str:
        number, name = place.groups()
        known = number or name or f"{len(seen) + 1}"
        if known not in seen:
            seen.append(known)
        return f"${number or seen.index(known) + 1}"

    return _PLACE.sub(numbered, _HINT.sub("", sql)), tuple(seen)


class PostgresDatabase:
    """A Database on one connection, in whose transaction it is."""

    feed = POSTGRES_FEED

    def __init__(self, connection: Connection | PoolConnectionProxy) -> None:
        self.connection = connection

    async def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Return every row that a statement gives."""
        return [tuple(row) for row in await self.connection.fetch(put(sql)[0], *values)]

    async def named_rows(self, sql: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """Return every row of a statement whose values are named."""
        statement, names = put(sql)
        found = await self.connection.fetch(statement, *(values[name] for name in names))
        return [tuple(row) for row in found]

    async def insert(
        self, table: str, columns: str, rows: Sequence[tuple[object, ...]], conflict: str = ""
    ) -> None:
        """Insert rows in their order, by COPY where none of them can be there already."""
        names = [name.strip(' "') for name in columns.split(",")]
        if not conflict:
            await self.connection.copy_records_to_table(table, records=rows, columns=names)
        elif rows:
            places = ", ".join(f"${n + 1}" for n in range(len(names)))
            sql = f"INSERT INTO {table} ({columns}) VALUES ({places}) {conflict}"
            await self.connection.executemany(sql, rows)

    async def number_on(self, table: str) -> None:
        """Give rows to come ids after the highest, which was not given by the database."""
        highest = f"SELECT setval(pg_get_serial_sequence($1, 'id'), max(id)) FROM {table}"
        await self.connection.execute(highest, table)

    async def alone(self, *names: str) -> None:
        """Wait for the transactions that were alone by the same names, and keep others waiting."""
        sql = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"
        await self.connection.execute(sql, "/".join(names))
