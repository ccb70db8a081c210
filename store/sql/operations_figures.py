"""What the operations page shows of the stores: commits, keys, memberships and sizes.

Its reads use the batch lane, so that calls never wait for them.
"""

from collections.abc import Sequence
from typing import NamedTuple

from store.access_rows import KeyRow, MembershipRow
from store.sql.database import Engine, Lane, Row, fetch_value
from store.sql.key_store import SELECT_USED_KEYS, StorePart
from store.sql.purchase_store import SELECT_MEMBERSHIPS

# `created_at` is the key of both tables, so each count reads only the rows of its commit.
LIST_NEWEST_COMMITS = """
SELECT number, market_time, written_at,
  (SELECT count(*) FROM changes WHERE published = 1
     AND created_at BETWEEN passes.first_created_at AND passes.last_created_at) AS changes,
  (SELECT count(*) FROM alerts
     WHERE created_at BETWEEN passes.first_created_at AND passes.last_created_at) AS alerts
FROM passes ORDER BY number DESC LIMIT ?
"""
COUNT_KEYS = """
SELECT
  (SELECT count(*) FROM keys
     WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > ?)) AS working_keys,
  (SELECT count(*) FROM access_requests) AS access_requests
"""
COUNT_MEMBERSHIPS = """
SELECT billing, mode, sum(CASE WHEN ended_at IS NULL THEN 1 ELSE 0 END) AS active,
  sum(CASE WHEN created_at > ? THEN 1 ELSE 0 END) AS begun,
  sum(CASE WHEN ended_at > ? THEN 1 ELSE 0 END) AS ended
FROM memberships GROUP BY billing, mode ORDER BY mode, billing
"""


class CommitSummary(NamedTuple):
    """One commit and the feed rows that it published; see CommitRow for its times (epoch ms)."""

    number: int
    market_time: int
    written_at: int | None
    changes: int
    alerts: int


class KeyCounts(NamedTuple):
    """The keys that work, and the requests that wait for an answer."""

    working_keys: int
    access_requests: int


class PlanCounts(NamedTuple):
    """The memberships of a plan that are active, and that began or ended since a time."""

    billing: str
    mode: str
    active: int
    begun: int
    ended: int


class StoreSize(NamedTuple):
    """The database software, the bytes that a store takes, and the number of rows by table."""

    software: str
    size_bytes: int
    rows: dict[str, int]


class MarketOperations:
    """The part of the market store that the operations page reads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def list_commits(self, limit: int) -> list[CommitSummary]:
        """Return the newest commits, newest first."""
        async with self._engine.begin_read(Lane.BATCH) as db:
            return [CommitSummary(**row) for row in await db.execute(LIST_NEWEST_COMMITS, limit)]

    async def measure(self) -> StoreSize:
        """Return the size of the store."""
        return await _measure(self._engine, "changes", "alerts", "passes")


class AccessOperations(StorePart):
    """The part of the access store that the operations page reads."""

    async def _read(self, sql: str, *values: object) -> Sequence[Row]:
        async with self._engine.begin_read(Lane.BATCH) as db:
            return await db.execute(sql, *values)

    async def list_keys(self, day: int, limit: int) -> list[KeyRow]:
        """Return keys with their calls of a UTC day: revoked ones last, then by their last use."""
        sql = f"""
SELECT * FROM ({SELECT_USED_KEYS}) AS listed
ORDER BY CASE WHEN revoked_at IS NULL THEN 0 ELSE 1 END,
  coalesce(last_used_at, created_at) DESC, id DESC
LIMIT ?
"""
        return await self._list(KeyRow, sql, day, limit)

    async def find_key(self, key_id: int, day: int) -> KeyRow | None:
        """Return a key with its calls of a UTC day, live or not; None if there is no such key."""
        return await self._find(KeyRow, f"{SELECT_USED_KEYS} WHERE id = ?", day, key_id)

    async def count_keys(self, at: int) -> KeyCounts:
        """Return the numbers of keys and requests at a time (epoch ms)."""
        (row,) = await self._read(COUNT_KEYS, at)
        return KeyCounts(*map(int, row))

    async def list_memberships(self, limit: int) -> list[MembershipRow]:
        """Return the newest memberships, newest first."""
        sql = f"{SELECT_MEMBERSHIPS} ORDER BY id DESC LIMIT ?"
        return await self._list(MembershipRow, sql, limit)

    async def count_memberships(self, since: int) -> list[PlanCounts]:
        """Return the numbers of memberships by plan."""
        return await self._list(PlanCounts, COUNT_MEMBERSHIPS, since, since)

    async def measure(self) -> StoreSize:
        """Return the size of the store."""
        return await _measure(self._engine, "keys", "memberships", "calls", "sessions")


async def _measure(engine: Engine, *tables: str) -> StoreSize:
    software, size_bytes = await engine.measure()
    async with engine.begin_read(Lane.BATCH) as db:
        rows = {
            table: int(await fetch_value(db, f"SELECT count(*) FROM {table}")) for table in tables
        }
    return StoreSize(software, size_bytes, rows)
