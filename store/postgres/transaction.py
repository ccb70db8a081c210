"""A transaction on a PostgreSQL connection, and how statements are put for it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from asyncpg import Connection, Record
from asyncpg.pool import PoolConnectionProxy

from store.postgres.feed_pages import POSTGRES_FEED_STATEMENTS

_HINT = re.compile(r"\s(NOT INDEXED|INDEXED BY \w+)")
_PLACEHOLDER = re.compile(r"\?(\d*)|(?<!:):(\w+)")


@lru_cache(maxsize=1024)
def convert_placeholders(sql: str) -> tuple[str, tuple[str, ...]]:
    """Number the places of a statement, without its hints; return it and the names of places."""
    labels: list[str] = []

    def number_placeholder(match: re.Match[str]) -> str:
        number, name = match.groups()
        label = number or name or f"{len(labels) + 1}"
        if label not in labels:
            labels.append(label)
        return f"${number or labels.index(label) + 1}"

    return _PLACEHOLDER.sub(number_placeholder, _HINT.sub("", sql)), tuple(labels)


class PostgresDatabase:
    """A Database on one connection, in whose transaction it is."""

    feed_statements = POSTGRES_FEED_STATEMENTS

    def __init__(self, connection: Connection | PoolConnectionProxy) -> None:
        self.connection = connection

    async def execute(self, sql: str, *values: object) -> Sequence[Record]:
        """Return every row of a statement."""
        found: Sequence[Record] = await self.connection.fetch(convert_placeholders(sql)[0], *values)
        return found

    async def execute_named(self, sql: str, values: Mapping[str, object]) -> Sequence[Record]:
        """Return every row of a statement whose values are named."""
        statement, names = convert_placeholders(sql)
        found: Sequence[Record] = await self.connection.fetch(
            statement, *(values[name] for name in names)
        )
        return found

    async def execute_page(self, sql: str, values: Mapping[str, object]) -> Sequence[Record]:
        """Return the rows of a page of the feed."""
        return await self.execute_named(sql, values)

    async def insert(
        self, table: str, columns: str, rows: Sequence[Iterable[object]], conflict: str = ""
    ) -> None:
        """Insert rows in their order, by COPY where none of them can be there already."""
        names = [name.strip(' "') for name in columns.split(",")]
        if not conflict:
            await self.connection.copy_records_to_table(table, records=rows, columns=names)
        elif rows:
            placeholders = ", ".join(f"${n + 1}" for n in range(len(names)))
            sql = f"INSERT INTO {table} ({columns}) VALUES ({placeholders}) {conflict}"
            await self.connection.executemany(sql, rows)

    async def advance_id_sequence(self, table: str) -> None:
        """Give rows to come ids after the highest, which was not given by the database."""
        statement = f"SELECT setval(pg_get_serial_sequence($1, 'id'), max(id)) FROM {table}"
        await self.connection.execute(statement, table)

    async def acquire_named_lock(self, *names: str) -> None:
        """Wait for the transactions that were alone by the same names, and keep others waiting."""
        sql = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"
        await self.connection.execute(sql, "/".join(names))
