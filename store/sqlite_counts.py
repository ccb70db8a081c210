"""The one statement that decides calls, and why it refused the rest."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any

from aiosqlite import Connection

from schemas.vocabulary import DAY_MS, Mode
from store.access_protocol import MOST_CALLS
from store.access_rows import ArrivedCall, CountedCall
from store.sqlite_reads import all_rows

# A key's hash, and a UTC day.
Place = tuple[bytes, int]

UNKNOWN = CountedCall("unknown")


@lru_cache(maxsize=MOST_CALLS)
def _deciding(calls: int) -> str:
    """Return the statement for so many calls; it counts those of one key one after the other."""
    rows = ", ".join(f"(?{3 * n + 3}, ?{3 * n + 4}, ?{3 * n + 5})" for n in range(calls))
    return f"""
INSERT INTO usage (key_id, day, used, last_at)
SELECT k.id, arrived.column2, 1, arrived.column3
FROM (VALUES {rows}) AS arrived CROSS JOIN keys AS k ON k.key_hash = arrived.column1
WHERE k.revoked_at IS NULL AND (k.mode IS NULL OR ?1 IS NULL OR k.mode = ?1)
ON CONFLICT (key_id, day) DO UPDATE
SET used = used + 1, last_at = max(last_at, excluded.last_at) WHERE used < ?2
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


async def count(
    db: Connection, calls: Sequence[ArrivedCall], mode: Mode | None, limit: int
) -> list[CountedCall]:
    """Decide and count calls, in their order."""
    places: list[Place] = [(call.key_hash, call.at // DAY_MS) for call in calls]
    counts = await _counted(db, calls, mode, limit)
    decided = [counts[place].pop() if counts[place] else None for place in places]
    refused = {place for place, counted in zip(places, decided, strict=True) if counted is None}
    why = await _refused(db, refused, mode, limit) if refused else {}
    return [
        counted or why.get(place, UNKNOWN) for place, counted in zip(places, decided, strict=True)
    ]


async def _counted(
    db: Connection, calls: Sequence[ArrivedCall], mode: Mode | None, limit: int
) -> defaultdict[Place, list[CountedCall]]:
    """Count what may be counted; return by place what was, the lowest count last."""
    given: list[Any] = [mode, limit]
    for call in calls:
        given += [call.key_hash, call.at // DAY_MS, call.at]
    counts: defaultdict[Place, list[CountedCall]] = defaultdict(list)
    for day, used, key_hash, label in await all_rows(db, _deciding(len(calls)), *given):
        counts[key_hash, day].append(CountedCall("counted", used, label))
    for counted in counts.values():
        counted.sort(key=lambda one: one.used, reverse=True)
    return counts


async def _refused(
    db: Connection, places: Collection[Place], mode: Mode | None, limit: int
) -> dict[Place, CountedCall]:
    """Return why calls were refused; nothing of a key that was not there when they were."""
    given = [value for place in places for value in place]
    why: dict[Place, CountedCall] = {}
    for key_hash, day, label, bought_in, is_revoked, used in await all_rows(
        db, _why(len(places)), *given
    ):
        place = (key_hash, day)
        if is_revoked:
            why[place] = CountedCall("revoked", used, label, bought_in)
        elif None not in (bought_in, mode) and bought_in != mode:
            why[place] = CountedCall("wrong_mode", used, label, bought_in)
        elif used >= limit:
            why[place] = CountedCall("spent", used, label, bought_in)
    return why
