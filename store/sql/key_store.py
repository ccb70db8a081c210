"""Keys in the access store: their quota, the calls that they made, and their successors."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

from schemas.vocabulary import DAY_MS, Mode
from store.access_rows import (
    MAX_CALL_GROUPS,
    CallGroup,
    CountedGroup,
    DayUsage,
    GroupKey,
    KeyLimits,
    KeyRow,
    LoggedCall,
    ToolUsage,
    Verdict,
)
from store.sql.database import Engine, Row, fetch_value

NO_LIMIT = 2**62
# A count that a rotation carried over has 0 as the time of its last call.
KEY_COLUMNS = """id, label, created_at, revoked_at, mode, membership_id, expires_at,
  (SELECT nullif(max(last_at), 0) FROM usage WHERE key_id = keys.id) AS last_used_at,
  (SELECT id FROM keys AS successor WHERE successor.replaces = keys.id) AS replaced_by,
  (SELECT client_id FROM oauth_connections WHERE key_id = keys.id) AS client_id"""
SELECT_USED_KEYS = f"""
SELECT coalesce((SELECT used FROM usage WHERE key_id = keys.id AND day = ?), 0) AS used,
  {KEY_COLUMNS}
FROM keys
"""
INSERT_OPERATOR_KEY = """
INSERT INTO keys (key_hash, label, created_at, expires_at) VALUES (?, ?, ?, ?) RETURNING id
"""
# The limits are part of the INSERT, so that no second request can pass between check and insert.
# CAST fixes the type of a parameter that PostgreSQL cannot infer in a SELECT list.
# A key with a working successor is about to end and is not counted as live. If the successor is
# revoked, the key is live again, so a membership never has more than twice `max_live` working keys.
INSERT_MEMBER_KEY = """
INSERT INTO keys (key_hash, label, created_at, mode, membership_id, expires_at)
SELECT :key_hash, :label, CAST(:created_at AS BIGINT), mode, id, CAST(:expires_at AS BIGINT)
FROM memberships
WHERE id = :membership_id AND ended_at IS NULL
  AND (SELECT count(*) FROM keys AS held
       WHERE membership_id = :membership_id AND revoked_at IS NULL
         AND (expires_at IS NULL OR expires_at > :created_at)
         AND NOT EXISTS (
           SELECT 1 FROM keys AS successor
           WHERE successor.replaces = held.id AND successor.revoked_at IS NULL
             AND (successor.expires_at IS NULL OR successor.expires_at > :created_at)
         )) < :max_live
  AND (SELECT count(*) FROM keys
       WHERE membership_id = :membership_id AND replaces IS NULL
         AND created_at > :created_since) < :max_created
RETURNING id
"""
# Written as a test: the second one writes a stored count again, unchanged. A row of the first that
# stays after a crash is pruned.
TEST_COUNTS = (
    "INSERT INTO events (id, handled_at) VALUES ('test write', 0) ON CONFLICT DO NOTHING",
    "UPDATE usage SET used = used "
    "WHERE (key_id, day) IN (SELECT key_id, day FROM usage ORDER BY key_id, day LIMIT 1)",
    "DELETE FROM events WHERE id = 'test write'",
)
# Counts all calls of a group or none, without a read before. A server with billing off has no mode.
_COUNT_GROUP = """
SELECT id, CAST(? AS INTEGER), CAST(? AS BIGINT), CAST(? AS BIGINT) FROM keys
WHERE key_hash = ? AND revoked_at IS NULL AND (mode IS NULL OR coalesce(?, mode) = mode)
  AND (expires_at IS NULL OR expires_at > ?) AND CAST(? AS BIGINT) <= CAST(? AS BIGINT)
"""
_EXPLAIN_REFUSAL = """
SELECT label, mode, revoked_at, expires_at,
  coalesce((SELECT used FROM usage WHERE key_id = keys.id AND day = ?), 0) AS used
FROM keys WHERE key_hash = ?
"""


@lru_cache(maxsize=MAX_CALL_GROUPS)
def _build_count_query(groups: int) -> str:
    return f"""
INSERT INTO usage (key_id, day, used, last_at)
{"UNION ALL".join([_COUNT_GROUP] * groups)}
ON CONFLICT (key_id, day) DO UPDATE SET used = usage.used + excluded.used, last_at =
  CASE WHEN excluded.last_at > usage.last_at THEN excluded.last_at ELSE usage.last_at END
WHERE usage.used + excluded.used <= CAST(? AS BIGINT)
RETURNING day, used, (SELECT key_hash FROM keys WHERE id = key_id) AS key_hash,
  (SELECT label FROM keys WHERE id = key_id) AS label
"""


RowT = TypeVar("RowT")


def _find_refusal(row: Row, at: int, mode: Mode | None, limit: int) -> Verdict | None:
    """Return why a call that arrived at a time (epoch ms) is refused, or None."""
    if row["revoked_at"] is not None:
        return "revoked"
    if row["expires_at"] is not None and row["expires_at"] <= at:
        return "expired"
    # A key made by the operator has no mode and works in all; with billing off, all keys work.
    if None not in (row["mode"], mode) and row["mode"] != mode:
        return "wrong_mode"
    return "exhausted" if row["used"] >= limit else None


class StorePart:
    """A part of `AccessStore`, whose methods are mostly one statement each; see there."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def _read(self, sql: str, *values: object) -> Sequence[Row]:
        async with self._engine.acquire_connection() as db:
            return await db.execute(sql, *values)

    async def _list(self, build: Callable[..., RowT], sql: str, *values: object) -> list[RowT]:
        return [build(**row) for row in await self._read(sql, *values)]

    async def _find(self, build: Callable[..., RowT], sql: str, *values: object) -> RowT | None:
        return next(iter(await self._list(build, sql, *values)), None)

    async def _write(self, sql: str, *values: object) -> Sequence[Row]:
        """Run a durable write; a statement returns rows to report what it wrote."""
        async with self._engine.begin_write(is_durable=True) as db:
            return await db.execute(sql, *values)


class KeyStore(StorePart):
    """The part of `AccessStore` that stores keys and their calls."""

    async def count_calls(
        self, groups: Sequence[CallGroup], mode: Mode | None, limit: int
    ) -> list[CountedGroup]:
        """Admit and count groups of calls, at most MAX_CALL_GROUPS, and return their results.

        No two groups have the same key and day. A call is counted if its key is live and has not
        expired at the group's `last_at`, was not bought in another mode than the server's, and
        has fewer than `limit` calls on that day.
        """
        counted = await self._count_whole_groups(groups, mode, limit)
        return [
            counted.get(group.key) or await self._count_partial_group(group, mode, limit)
            for group in groups
        ]

    async def _count_whole_groups(
        self, groups: Sequence[CallGroup], mode: Mode | None, limit: int
    ) -> dict[GroupKey, CountedGroup]:
        """Count the groups that fit into their quota as a whole; return only these."""
        values: list[object] = []
        # In one order for every process, so that two of them cannot deadlock on PostgreSQL.
        for key_hash, day, calls, last_at in sorted(groups):
            values += day, calls, last_at, key_hash, mode, last_at, calls, limit
        rows = await self._engine.count(_build_count_query(len(groups)), *values, limit)
        sizes = {group.key: group.calls for group in groups}
        return {
            key: CountedGroup(sizes[key], "counted", row["used"], row["label"])
            for row in rows
            for key in [(row["key_hash"], row["day"])]
        }

    async def _count_partial_group(
        self, group: CallGroup, mode: Mode | None, limit: int
    ) -> CountedGroup:
        """Count as many calls of a group as its quota still admits; return the result."""
        # Another process may count calls of the same key between the two statements; then less
        # fits, the statement counts nothing, and the loop reads the rest again.
        while True:
            rows = await self._engine.count(_EXPLAIN_REFUSAL, group.day, group.key_hash)
            if not rows:
                return CountedGroup(0, "unknown")
            (row,) = rows
            verdict = _find_refusal(row, group.last_at, mode, limit)
            refusal = CountedGroup(
                *(0, verdict or "exhausted", row["used"]),
                *(row["label"], row["mode"], row["expires_at"]),
            )
            if verdict:
                return refusal
            calls = min(group.calls, limit - row["used"])
            part = [group._replace(calls=calls)]
            if counted := (await self._count_whole_groups(part, mode, limit)).get(group.key):
                rest = refusal._replace(counted=calls, used=counted.used)
                return counted if calls == group.calls else rest

    async def test_counts(self) -> None:
        """Write to the tables of counts, and leave no trace."""
        for statement in TEST_COUNTS:
            await self._engine.count(statement)

    async def create_key(
        self, key_hash: bytes, label: str, created_at: int, expires_at: int | None = None
    ) -> int:
        """Store a key made by the operator and return its id."""
        rows = await self._write(INSERT_OPERATOR_KEY, key_hash, label, created_at, expires_at)
        return int(rows[0]["id"])

    async def create_member_key(
        self,
        membership_id: int,
        key_hash: bytes,
        label: str,
        created_at: int,
        limits: KeyLimits,
        expires_at: int | None = None,
    ) -> bool:
        """Store a key of a membership; False if that has ended or reached a limit."""
        async with self._engine.begin_write(is_durable=True) as db:
            await db.acquire_named_lock("keys of a membership", str(membership_id))
            made = await db.execute(
                INSERT_MEMBER_KEY,
                key_hash=key_hash,
                label=label,
                created_at=created_at,
                membership_id=membership_id,
                expires_at=expires_at,
                **limits._asdict(),
            )
        return bool(made)

    async def rotate_key(
        self,
        key_id: int,
        key_hash: bytes,
        at: int,
        works_until: int,
        limits: KeyLimits | None = None,
    ) -> int | None:
        """Store the successor of a working key, which then works until `works_until`.

        Return the id of the successor, or None if the key does not work, already has a successor,
        or its membership has reached `max_rotated`. The successor has the label, the lifetime and
        today's count of the key. A key that this one replaced ends at once.
        """
        bounds = limits or KeyLimits(NO_LIMIT, NO_LIMIT, at, NO_LIMIT)
        async with self._engine.begin_write(is_durable=True) as db:
            membership_id = await fetch_value(
                db, "SELECT membership_id FROM keys WHERE id = ?", key_id
            )
            await db.acquire_named_lock("keys of a membership", str(membership_id))
            # The successor lives as long as the key was meant to live when it was created.
            inserted = await db.execute(
                """
INSERT INTO keys (key_hash, label, created_at, mode, membership_id, expires_at, replaces)
SELECT :key_hash, label, CAST(:at AS BIGINT), mode, membership_id,
  CAST(:at AS BIGINT) + (expires_at - created_at), id
FROM keys AS rotated
WHERE id = :key_id AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > :at)
  AND NOT EXISTS (SELECT 1 FROM keys WHERE replaces = :key_id)
  AND NOT EXISTS (SELECT 1 FROM oauth_connections WHERE key_id = :key_id)
  AND (SELECT count(made.replaces) FROM keys AS made
       WHERE made.membership_id = rotated.membership_id
         AND made.created_at > :created_since) < :max_rotated
RETURNING id
""",
                key_hash=key_hash,
                at=at,
                key_id=key_id,
                **bounds._asdict(),
            )
            if not inserted:
                return None
            successor_id = int(inserted[0]["id"])
            # Without this each rotation would give the plan another daily quota. With it, the keys
            # of a chain make at most twice the quota: the counts of every second one add up to at
            # most one quota.
            await db.execute(
                """
INSERT INTO usage (key_id, day, used, last_at)
SELECT CAST(:successor_id AS BIGINT), CAST(:day AS INTEGER), max(used), 0 FROM usage
WHERE day = CAST(:day AS INTEGER)
  AND key_id IN (:key_id, (SELECT replaces FROM keys WHERE id = :key_id))
HAVING count(*) > 0
RETURNING used
""",
                successor_id=successor_id,
                day=at // DAY_MS,
                key_id=key_id,
            )
            # Rotating twice leaves two working keys, not three, so the predecessor ends now.
            for end, ending in (
                (at, "(SELECT replaces FROM keys WHERE id = :key_id)"),
                (works_until, ":key_id"),
            ):
                await db.execute(
                    "UPDATE keys SET expires_at = CASE WHEN expires_at < :at THEN expires_at "
                    f"ELSE :at END WHERE id = {ending} RETURNING id",
                    at=end,
                    key_id=key_id,
                )
        return successor_id

    async def list_keys(self) -> list[KeyRow]:
        """Return every key, oldest first."""
        return await self._list(KeyRow, f"SELECT {KEY_COLUMNS} FROM keys ORDER BY id")

    async def revoke_key(self, key_id: int, revoked_at: int) -> bool:
        """Revoke a key for good; a repeated call keeps the first time. False for an unknown key."""
        sql = "UPDATE keys SET revoked_at = coalesce(revoked_at, ?) WHERE id = ? RETURNING id"
        return bool(await self._write(sql, revoked_at, key_id))

    async def list_member_keys(self, membership_id: int, day: int) -> list[KeyRow]:
        """Return the keys of a membership with their usage on a UTC day, oldest first."""
        sql = f"{SELECT_USED_KEYS} WHERE membership_id = ? ORDER BY id"
        return await self._list(KeyRow, sql, day, membership_id)

    async def relabel_key(self, membership_id: int, key_id: int, label: str) -> bool:
        """Rename a live key of a membership; False if there is no such live key."""
        sql = (
            "UPDATE keys SET label = ? "
            "WHERE id = ? AND membership_id = ? AND revoked_at IS NULL RETURNING id"
        )
        return bool(await self._write(sql, label, key_id, membership_id))

    async def revoke_member_key(self, membership_id: int, key_id: int, revoked_at: int) -> bool:
        """Revoke a key of a membership for good; False if there is no such key."""
        sql = (
            "UPDATE keys SET revoked_at = coalesce(revoked_at, ?) "
            "WHERE id = ? AND membership_id = ? RETURNING id"
        )
        return bool(await self._write(sql, revoked_at, key_id, membership_id))

    async def find_key_id(self, key_hash: bytes) -> int | None:
        """Return the id of a key, live or not, or None if it is unknown."""
        return await self._find(
            lambda id: int(id), "SELECT id FROM keys WHERE key_hash = ?", key_hash
        )

    async def add_calls(self, calls_by_key: Mapping[int, Sequence[LoggedCall]], kept: int) -> None:
        """Store calls of keys, oldest first, and delete all but the newest `kept` of each key.

        If this fails midway, some of the calls may have been stored.
        """
        rows = [(key_id, *call) for key_id, calls in calls_by_key.items() for call in calls]
        trim_sql = """
DELETE FROM calls WHERE key_id = :key_id
  AND id <= (SELECT id FROM calls WHERE key_id = :key_id ORDER BY id DESC LIMIT 1 OFFSET :kept)
RETURNING 1
"""
        # Not one transaction: it would hold a SQLite file, for which counted calls wait, through
        # several turns of the event loop.
        async with self._engine.acquire_writer() as db:
            await db.insert("calls", f"key_id, {', '.join(LoggedCall._fields)}", rows)
            for key_id in calls_by_key:
                await db.execute(trim_sql, key_id=key_id, kept=kept)

    async def list_calls(self, key_id: int, limit: int) -> list[LoggedCall]:
        """Return the newest stored calls of a key, newest first."""
        sql = (
            f"SELECT {', '.join(LoggedCall._fields)} FROM calls WHERE key_id = ? "
            "ORDER BY id DESC LIMIT ?"
        )
        return await self._list(LoggedCall, sql, key_id, limit)

    async def add_tool_usage(self, rows: Sequence[ToolUsage]) -> None:
        """Add calls to the counts of keys, days and tools: all of them, or none if this fails.

        No two rows have the same key, day and tool.
        """
        sql = f"""
INSERT INTO tool_usage AS t (key_id, day, tool, used)
VALUES {", ".join(["(?, ?, ?, ?)"] * len(rows))}
ON CONFLICT (key_id, day, tool) DO UPDATE SET used = t.used + excluded.used
"""
        async with self._engine.acquire_writer() as db:
            # In one order for every process, so that two of them cannot deadlock on PostgreSQL.
            await db.execute(sql, *(value for row in sorted(rows) for value in row))

    async def list_tool_usage(self, membership_id: int | None, since_day: int) -> list[DayUsage]:
        """Return the calls of a membership's keys by key, day and tool, in any order.

        Without a membership, those of all keys, by day and tool.
        """
        if membership_id is None:
            total = (
                "SELECT day, tool, CAST(sum(used) AS BIGINT) AS used FROM tool_usage "
                "WHERE day >= ? GROUP BY day, tool"
            )
            return await self._list(DayUsage, total, since_day)
        sql = (
            "SELECT u.day, u.tool, u.used FROM keys AS k JOIN tool_usage AS u ON u.key_id = k.id "
            "WHERE k.membership_id = ? AND u.day >= ?"
        )
        return await self._list(DayUsage, sql, membership_id, since_day)
