"""Opens the access store on PostgreSQL, without loading NumPy for the market store."""

from collections.abc import Sequence

from schemas.vocabulary import Mode
from store.access_rows import CallGroup, CountedGroup, GroupKey
from store.postgres.engine import PostgresEngine
from store.postgres.schema import SCHEMAS
from store.postgres.transaction import PostgresDatabase
from store.sql.access_store import AccessStore
from store.sql.key_store import TEST_COUNTS, build_uncounted, find_refusal

# ORDER BY makes every process lock rows in the same order, so that two of them cannot deadlock.
COUNT_CALLS = """
INSERT INTO usage AS u (key_id, day, used, last_at)
SELECT k.id, a.day, a.calls, a.last_at
FROM unnest($3::bytea[], $4::integer[], $5::bigint[], $6::bigint[])
  AS a (key_hash, day, calls, last_at) JOIN keys k ON k.key_hash = a.key_hash
WHERE k.revoked_at IS NULL AND (k.mode IS NULL OR $1::text IS NULL OR k.mode = $1)
  AND (k.expires_at IS NULL OR k.expires_at > a.last_at) AND a.calls <= $2::bigint
ORDER BY k.id, a.day
ON CONFLICT (key_id, day) DO UPDATE
SET used = u.used + excluded.used, last_at = greatest(u.last_at, excluded.last_at)
WHERE u.used + excluded.used <= $2
RETURNING (SELECT key_hash FROM keys WHERE id = u.key_id) AS key_hash, u.day, u.used,
  (SELECT label FROM keys WHERE id = u.key_id) AS label
"""


class PostgresUsageCounter:
    """A UsageCounter on pooled sessions; each statement is a transaction by itself."""

    def __init__(self, engine: PostgresEngine) -> None:
        self._engine = engine

    async def count_calls(
        self, groups: Sequence[CallGroup], mode: Mode | None, limit: int
    ) -> list[CountedGroup]:
        """Admit and count groups of calls; at most MAX_CALL_GROUPS of them."""
        async with self._engine.begin_count() as database:
            whole_groups = await _count_whole_groups(database, groups, mode, limit)
            return [
                whole_groups.get(group.key)
                or await _count_partial_group(database, group, mode, limit)
                for group in groups
            ]

    async def test_write(self) -> None:
        """Commit a write to the tables of counts that leaves no trace."""
        async with self._engine.begin_count() as database, database.connection.transaction():
            for statement in TEST_COUNTS:
                await database.execute(statement)


async def _count_whole_groups(
    database: PostgresDatabase, groups: Sequence[CallGroup], mode: Mode | None, limit: int
) -> dict[GroupKey, CountedGroup]:
    """Count the groups that fit into their quota as a whole; return only these."""
    columns = [list(column) for column in zip(*groups, strict=True)]
    sizes = {group.key: group.calls for group in groups}
    results = {}
    for row in await database.connection.fetch(COUNT_CALLS, mode, limit, *columns):
        group_key = row["key_hash"], row["day"]
        results[group_key] = CountedGroup(sizes[group_key], "counted", row["used"], row["label"])
    return results


async def _count_partial_group(
    database: PostgresDatabase, group: CallGroup, mode: Mode | None, limit: int
) -> CountedGroup:
    """Count as many calls of a group as its quota still admits; return the result."""
    # Another process may count calls of the same key between the two statements; then less fits,
    # the statement counts nothing, and the loop reads the rest again.
    while True:
        refusal, fitting_calls = await _explain_refusal(database, group, mode, limit)
        if not fitting_calls:
            return refusal
        counted = await _count_whole_groups(
            database, [group._replace(calls=fitting_calls)], mode, limit
        )
        if counted:
            rest = refusal._replace(counted=fitting_calls, used=counted[group.key].used)
            return counted[group.key] if fitting_calls == group.calls else rest


async def _explain_refusal(
    database: PostgresDatabase, group: CallGroup, mode: Mode | None, limit: int
) -> tuple[CountedGroup, int]:
    """Return the refusal of a further call, and how many calls of the group still fit."""
    sql = """
SELECT k.label, k.mode, k.revoked_at, k.expires_at,
  coalesce((SELECT used FROM usage WHERE key_id = k.id AND day = ?), 0) AS used
FROM keys k WHERE k.key_hash = ?
"""
    rows = await database.execute(sql, group.day, group.key_hash)
    if not rows:
        return CountedGroup(0, "unknown"), 0
    verdict = find_refusal(rows[0], group.last_at, mode, limit)
    fitting_calls = 0 if verdict else min(group.calls, limit - rows[0]["used"])
    return build_uncounted(rows[0], verdict or "exhausted"), fitting_calls


async def open_postgres_access(url: str) -> AccessStore:
    """Migrate and open the access store, creating its schema if missing; raise StoreError."""
    engine = await PostgresEngine.open(url, *SCHEMAS["access"])
    return AccessStore(engine, PostgresUsageCounter(engine))
