"""The one statement that decides calls, and why it refused the rest."""

from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from sqlite3 import Connection
from typing import Any, NamedTuple

from schemas.vocabulary import DAY_MS, Mode
from store.access_protocol import MOST_CALLS
from store.access_rows import ArrivedCall, CountedCall

# A key's hash, and a UTC day.
Place = tuple[bytes, int]

UNKNOWN = CountedCall("unknown")


class Group(NamedTuple):
    """How many calls of one place ask together, and when the last arrived (epoch ms)."""

    calls: int
    last_at: int


@lru_cache(maxsize=MOST_CALLS)
def _deciding(groups: int) -> str:
    """Return the statement for so many groups; it counts all calls of one or none."""
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


@lru_cache(maxsize=MOST_CALLS)
def _why(places: int) -> str:
    """Return the query for what is known of so many keys and days."""
    rows = ", ".join(["(?, ?)"] * places)
    return f"""
SELECT k.key_hash, arrived.column2, k.label, k.mode, k.revoked_at IS NOT NULL,
  coalesce((SELECT used FROM usage WHERE key_id = k.id AND day = arrived.column2), 0)
FROM (VALUES {rows}) AS arrived CROSS JOIN keys AS k ON k.key_hash = arrived.column1
"""


def count(
    db: Connection, calls: Sequence[ArrivedCall], mode: Mode | None, limit: int
) -> list[CountedCall]:
    """Decide and count calls, in their order."""
    places: list[Place] = [(call.key_hash, call.at // DAY_MS) for call in calls]
    groups: dict[Place, Group] = {}
    for place, call in zip(places, calls, strict=True):
        asked, last_at = groups.get(place, (0, call.at))
        groups[place] = Group(asked + 1, max(last_at, call.at))
    counts = _counted(db, groups, mode, limit)
    for place in groups.keys() - counts.keys():
        counts[place] = _counted_singly(db, place, groups[place], mode, limit)
    refused = {place for place, group in groups.items() if len(counts[place]) < group.calls}
    why = _refused(db, refused, mode, limit) if refused else {}
    return [counts[place].pop() if counts[place] else why.get(place, UNKNOWN) for place in places]


def _counted(
    db: Connection, groups: Mapping[Place, Group], mode: Mode | None, limit: int
) -> dict[Place, list[CountedCall]]:
    """Count the groups that fit whole; return by place what was counted, the lowest count last."""
    given: list[Any] = [mode, limit]
    for (key_hash, day), group in groups.items():
        given += (key_hash, day, *group)
    rows = db.execute(_deciding(len(groups)), given).fetchall()
    return {
        (key_hash, day): [
            CountedCall("counted", used - earlier, label)
            for earlier in range(groups[key_hash, day].calls)
        ]
        for day, used, key_hash, label in rows
    }


def _counted_singly(
    db: Connection, place: Place, group: Group, mode: Mode | None, limit: int
) -> list[CountedCall]:
    """Count what still fits of a group that did not fit whole."""
    counted: list[CountedCall] = []
    while len(counted) < group.calls - 1:
        one = _counted(db, {place: Group(1, group.last_at)}, mode, limit).get(place)
        if one is None:
            break
        counted = one + counted
    return counted


def _refused(
    db: Connection, places: Collection[Place], mode: Mode | None, limit: int
) -> dict[Place, CountedCall]:
    """Return why calls were refused; nothing of a key that was not there when they were."""
    given = [value for place in places for value in place]
    why: dict[Place, CountedCall] = {}
    for key_hash, day, label, bought_in, is_revoked, used in db.execute(_why(len(places)), given):
        place = (key_hash, day)
        if is_revoked:
            why[place] = CountedCall("revoked", used, label, bought_in)
        elif None not in (bought_in, mode) and bought_in != mode:
            why[place] = CountedCall("wrong_mode", used, label, bought_in)
        elif used >= limit:
            why[place] = CountedCall("spent", used, label, bought_in)
    return why
