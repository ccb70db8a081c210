"""The one statement that decides calls on PostgreSQL, and why it refused the rest."""

from collections.abc import Sequence
from typing import Any

from schemas.vocabulary import Mode
from store.access_rows import CallGroup, CountedGroup
from store.postgres.engine import PostgresEngine

# In the order of ids, so that two processes never wait for each other.
COUNT_CALLS = """
INSERT INTO usage AS u (key_id, day, used, last_at)
SELECT k.id, a.day, a.calls, a.last_at
FROM unnest($3::bytea[], $4::integer[], $5::bigint[], $6::bigint[])
  AS a (key_hash, day, calls, last_at) JOIN keys k ON k.key_hash = a.key_hash
WHERE k.revoked_at IS NULL AND (k.mode IS NULL OR $1::text IS NULL OR k.mode = $1)
  AND a.calls <= $2::bigint
ORDER BY k.id, a.day
ON CONFLICT (key_id, day) DO UPDATE
SET used = u.used + excluded.used, last_at = greatest(u.last_at, excluded.last_at)
WHERE u.used + excluded.used <= $2
RETURNING (SELECT key_hash FROM keys WHERE id = u.key_id), u.day, u.used,
  (SELECT label FROM keys WHERE id = u.key_id)
"""
FIND_KEY_USAGE = """
SELECT k.label, k.mode, k.revoked_at IS NOT NULL,
  coalesce((SELECT used FROM usage WHERE key_id = k.id AND day = $2), 0)
FROM keys k WHERE k.key_hash = $1
"""


class PostgresUsageCounter:
    """Counts over any session; each statement is a transaction by itself."""

    def __init__(self, engine: PostgresEngine) -> None:
        self._engine = engine

    async def count_calls(
        self, groups: Sequence[CallGroup], mode: Mode | None, limit: int
    ) -> list[CountedGroup]:
        """Decide and count groups of calls; at most MOST_GROUPS of them."""
        async with self._engine.acquire_connection() as database:
            session = database.connection
            whole_groups = await _count_whole_groups(session, groups, mode, limit)
            return [
                whole_groups.get(group[:2])
                or await _count_partial_group(session, group, mode, limit)
                for group in groups
            ]


async def _count_whole_groups(
    session: Any, groups: Sequence[CallGroup], mode: Mode | None, limit: int
) -> dict[tuple[bytes, int], CountedGroup]:
    """Count the groups that fit whole; return by key and day what became of them."""
    columns = [list(column) for column in zip(*groups, strict=True)]
    sizes = {group[:2]: group.calls for group in groups}
    return {
        (key_hash, day): CountedGroup(sizes[key_hash, day], "counted", used, label)
        for key_hash, day, used, label in await session.fetch(COUNT_CALLS, mode, limit, *columns)
    }


async def _count_partial_group(
    session: Any, group: CallGroup, mode: Mode | None, limit: int
) -> CountedGroup:
    """Count what still fits of a group; what others count meanwhile makes that less."""
    while True:
        refusal, fitting_calls = await _explain_refusal(session, group, mode, limit)
        if not fitting_calls:
            return refusal
        counted = await _count_whole_groups(
            session, [group._replace(calls=fitting_calls)], mode, limit
        )
        if counted:
            rest = refusal._replace(counted=fitting_calls, used=counted[group[:2]].used)
            return counted[group[:2]] if fitting_calls == group.calls else rest


async def _explain_refusal(
    session: Any, group: CallGroup, mode: Mode | None, limit: int
) -> tuple[CountedGroup, int]:
    """Return why a call would be refused, and how many calls of the group would not."""
    row = await session.fetchrow(FIND_KEY_USAGE, group.key_hash, group.day)
    if row is None:
        return CountedGroup(0, "unknown"), 0
    label, key_mode, is_revoked, used = row
    if is_revoked:
        return CountedGroup(0, "revoked", used, label, key_mode), 0
    if None not in (key_mode, mode) and key_mode != mode:
        return CountedGroup(0, "wrong_mode", used, label, key_mode), 0
    fitting_calls = max(0, min(group.calls, limit - used))
    return CountedGroup(0, "spent", used, label, key_mode), fitting_calls
