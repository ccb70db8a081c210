"""The one statement that decides calls, and why it refused the rest."""

from collections.abc import Sequence
from functools import lru_cache
from sqlite3 import Connection

from schemas.vocabulary import Mode
from store.access_protocol import MOST_GROUPS
from store.access_rows import CallGroup, CountedGroup
from store.sqlite.engine import SqliteEngine

# A key's hash, and a UTC day.
Place = tuple[bytes, int]


@lru_cache(maxsize=MOST_GROUPS)
def _deciding(groups: int) -> str:
    """Return the statement for so many groups; of each it counts all calls or none."""
    rows = ", ".join(
        f"(?{4 * n + 3}, ?{4 * n + 4}, ?{4 * n + 5}, ?{4 * n + 6})" for n in range(groups)
    )
    return f"""
INSERT INTO usage (key_id, day, used, last_at)
SELECT k.id, arrived.column2, arrived.column3, arrived.column4
FROM (VALUES {rows}) AS arrived CROSS JOIN keys AS k ON k.key_hash = arrived.column1
WHERE k.revoked_at IS NULL AND (k.mode IS NULL OR ?1 IS NULL OR k.mode = ?1)
  AND arrived.column3 <= ?2
ON CONFLICT (key_id, day) DO UPDATE
SET used = used + excluded.used, last_at = max(last_at, excluded.last_at)
WHERE used + excluded.used <= ?2
RETURNING day, used,
  (SELECT key_hash FROM keys WHERE id = key_id), (SELECT label FROM keys WHERE id = key_id)
"""


@lru_cache(maxsize=MOST_GROUPS)
def _why(places: int) -> str:
    """Return the query for what is known of so many keys and days."""
    rows = ", ".join(["(?, ?)"] * places)
    return f"""
SELECT k.key_hash, arrived.column2, k.label, k.mode, k.revoked_at IS NOT NULL,
  coalesce((SELECT used FROM usage WHERE key_id = k.id AND day = arrived.column2), 0)
FROM (VALUES {rows}) AS arrived CROSS JOIN keys AS k ON k.key_hash = arrived.column1
"""


class SqliteCounts:
    """Counts over the connection of decisions."""

    def __init__(self, engine: SqliteEngine) -> None:
        self._engine = engine

    async def count(
        self, groups: Sequence[CallGroup], mode: Mode | None, limit: int
    ) -> list[CountedGroup]:
        """Decide and count groups of calls; at most MOST_GROUPS of them."""
        decided = await self._engine.decided(lambda db: counted_whole(db, groups, mode, limit))
        if left := [group for group in groups if group[:2] not in decided]:
            decided |= await self._engine.decided(lambda db: counted_in_part(db, left, mode, limit))
        return [decided[group[:2]] for group in groups]


def counted_whole(
    db: Connection, groups: Sequence[CallGroup], mode: Mode | None, limit: int
) -> dict[Place, CountedGroup]:
    """Count the groups that fit whole, by one statement; return by place what became of them."""
    given = [mode, limit, *(value for group in groups for value in group)]
    rows = db.execute(_deciding(len(groups)), given).fetchall()
    sizes = {group[:2]: group.calls for group in groups}
    return {
        (key_hash, day): CountedGroup(sizes[key_hash, day], "counted", used, label)
        for day, used, key_hash, label in rows
    }


def counted_in_part(
    db: Connection, groups: Sequence[CallGroup], mode: Mode | None, limit: int
) -> dict[Place, CountedGroup]:
    """Count what still fits of groups that did not fit whole; return by place what became of them.

    In one transaction, so that it can be tried again where another process writes.
    """
    db.execute("BEGIN IMMEDIATE")
    with db:
        fitting = {group[:2]: _counted_singly(db, group, mode, limit) for group in groups}
        refused = _refused(db, groups, mode, limit)
    return {place: refused[place]._replace(counted=calls) for place, calls in fitting.items()}


def _counted_singly(db: Connection, group: CallGroup, mode: Mode | None, limit: int) -> int:
    """Count what still fits of a group that did not fit whole; return how many calls did."""
    one = group._replace(calls=1)
    counted = 0
    while counted < group.calls - 1 and counted_whole(db, [one], mode, limit):
        counted += 1
    return counted


def _refused(
    db: Connection, groups: Sequence[CallGroup], mode: Mode | None, limit: int
) -> dict[Place, CountedGroup]:
    """Return why calls were refused; unknown is a key that was not there when they were."""
    why = {group[:2]: CountedGroup(0, "unknown") for group in groups}
    given = [value for group in groups for value in group[:2]]
    for key_hash, day, label, bought_in, is_revoked, used in db.execute(_why(len(groups)), given):
        place = (key_hash, day)
        if is_revoked:
            why[place] = CountedGroup(0, "revoked", used, label, bought_in)
        elif None not in (bought_in, mode) and bought_in != mode:
            why[place] = CountedGroup(0, "wrong_mode", used, label, bought_in)
        elif used >= limit:
            why[place] = CountedGroup(0, "spent", used, label, bought_in)
    return why
