"""Opens the access store on SQLite, without loading NumPy for the market store."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from sqlite3 import Connection

from schemas.vocabulary import Mode
from store.access_rows import (
    MAX_CALL_GROUPS,
    CallGroup,
    CountedGroup,
    GroupKey,
)
from store.sql.access_store import AccessStore
from store.sql.key_store import TEST_COUNTS, build_uncounted, find_refusal
from store.sqlite.engine import SqliteEngine
from store.sqlite.schema import ACCESS_MIGRATIONS


@lru_cache(maxsize=MAX_CALL_GROUPS)
def _build_count_query(groups: int) -> str:
    """Return the statement for `groups` groups; it counts all calls of a group or none."""
    # CROSS JOIN fixes the join order: each arrived group seeks its key, not the other way round.
    rows = ", ".join(["(?, ?, ?, ?)"] * groups)
    return f"""
INSERT INTO usage (key_id, day, used, last_at)
SELECT k.id, arrived.column2, arrived.column3, arrived.column4
FROM (VALUES {rows}) AS arrived CROSS JOIN keys AS k ON k.key_hash = arrived.column1
WHERE k.revoked_at IS NULL AND (k.mode IS NULL OR ? IS NULL OR k.mode = ?)
  AND (k.expires_at IS NULL OR k.expires_at > arrived.column4) AND arrived.column3 <= ?
ON CONFLICT (key_id, day) DO UPDATE
SET used = used + excluded.used, last_at = max(last_at, excluded.last_at)
WHERE used + excluded.used <= ?
RETURNING day, used, (SELECT key_hash FROM keys WHERE id = key_id) AS key_hash,
  (SELECT label FROM keys WHERE id = key_id) AS label
"""


class SqliteUsageCounter:
    """A UsageCounter on the engine's direct connection."""

    def __init__(self, engine: SqliteEngine) -> None:
        self._engine = engine

    async def count_calls(
        self, groups: Sequence[CallGroup], mode: Mode | None, limit: int
    ) -> list[CountedGroup]:
        """Admit and count groups of calls; at most MAX_CALL_GROUPS of them."""
        results = await self._engine.run_decision(
            lambda db: count_whole_groups(db, groups, mode, limit)
        )
        if remaining_groups := [group for group in groups if group.key not in results]:
            results |= await self._engine.run_decision(
                lambda db: count_partial_groups(db, remaining_groups, mode, limit)
            )
        return [results[group.key] for group in groups]

    async def test_write(self) -> None:
        """Commit a write to the tables of counts that leaves no trace."""

        def write(db: Connection) -> None:
            db.execute("BEGIN IMMEDIATE")
            with db:
                for statement in TEST_COUNTS:
                    db.execute(statement)

        await self._engine.run_decision(write)


def count_whole_groups(
    db: Connection, groups: Sequence[CallGroup], mode: Mode | None, limit: int
) -> dict[GroupKey, CountedGroup]:
    """Count the groups that fit into their quota as a whole; return only these."""
    parameters = [*(value for group in groups for value in group), mode, mode, limit, limit]
    rows = db.execute(_build_count_query(len(groups)), parameters).fetchall()
    sizes = {group.key: group.calls for group in groups}
    results = {}
    for row in rows:
        group_key = row["key_hash"], row["day"]
        results[group_key] = CountedGroup(sizes[group_key], "counted", row["used"], row["label"])
    return results


def count_partial_groups(
    db: Connection, groups: Sequence[CallGroup], mode: Mode | None, limit: int
) -> dict[GroupKey, CountedGroup]:
    """Count as many calls of each group as its quota still admits; return every group's result."""
    # In one transaction, because the engine calls this again if another process is writing: calls
    # counted by an interrupted attempt would count twice. The refusals are read in it too.
    db.execute("BEGIN IMMEDIATE")
    with db:
        fitting_calls = dict.fromkeys((group.key for group in groups), 0)
        for group in groups:
            single_call = [group._replace(calls=1)]
            # At least one call is refused: the group was already refused as a whole.
            while fitting_calls[group.key] < group.calls - 1 and count_whole_groups(
                db, single_call, mode, limit
            ):
                fitting_calls[group.key] += 1
        refusals = _explain_refusals(db, groups, mode, limit)
    return {
        group_key: refusals[group_key]._replace(counted=calls)
        for group_key, calls in fitting_calls.items()
    }


def _explain_refusals(
    db: Connection, groups: Sequence[CallGroup], mode: Mode | None, limit: int
) -> dict[GroupKey, CountedGroup]:
    """Return the refusal of each group; `unknown` if its key does not exist."""
    refusals = {group.key: CountedGroup(0, "unknown") for group in groups}
    arrivals = {group.key: group.last_at for group in groups}
    parameters = [value for group_key in arrivals for value in group_key]
    rows = ", ".join(["(?, ?)"] * len(arrivals))
    sql = f"""
SELECT k.key_hash, arrived.column2 AS day, k.label, k.mode, k.revoked_at, k.expires_at,
  coalesce((SELECT used FROM usage WHERE key_id = k.id AND day = arrived.column2), 0) AS used
FROM (VALUES {rows}) AS arrived CROSS JOIN keys AS k ON k.key_hash = arrived.column1
"""
    for row in db.execute(sql, parameters):
        group_key = row["key_hash"], row["day"]
        if verdict := find_refusal(row, arrivals[group_key], mode, limit):
            refusals[group_key] = build_uncounted(row, verdict)
    return refusals


async def open_sqlite_access(path: Path) -> AccessStore:
    """Migrate and open a database file, creating it if missing; raise StoreError on failure."""
    engine = await SqliteEngine.open(path, ACCESS_MIGRATIONS)
    return AccessStore(engine, SqliteUsageCounter(engine))
