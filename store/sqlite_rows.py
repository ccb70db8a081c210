"""What one statement gives: all its rows, or one value."""

from typing import Any

from aiosqlite import Connection


async def all_rows(db: Connection, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """Return every row of a query; no cursor outlives the call."""
    return [tuple(row) for row in await db.execute_fetchall(sql, values)]


async def one_value(db: Connection, sql: str, *values: object) -> Any:
    """Return the first column of the first row, or None."""
    rows = await all_rows(db, sql, *values)
    return rows[0][0] if rows else None
