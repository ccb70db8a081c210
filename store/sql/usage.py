"""The interface for counting calls, and the rules by which a call is refused."""

from collections.abc import Sequence
from typing import Protocol

from schemas.vocabulary import Mode
from store.access_rows import CallGroup, CountedGroup, Verdict
from store.sql.database import Row

# The second one writes a stored count again, unchanged.
TEST_WRITES = (
    "INSERT INTO events (id, handled_at) VALUES ('test write', 0) ON CONFLICT DO NOTHING",
    "UPDATE usage SET used = used "
    "WHERE (key_id, day) IN (SELECT key_id, day FROM usage ORDER BY key_id, day LIMIT 1)",
    "DELETE FROM events WHERE id = 'test write'",
)
# Parameters: day, key hash.
FIND_KEY_USAGE = """
SELECT k.label, k.mode, k.revoked_at, k.expires_at,
  coalesce((SELECT used FROM usage WHERE key_id = k.id AND day = ?), 0) AS used
FROM keys k WHERE k.key_hash = ?
"""


class UsageCounter(Protocol):
    """Counts calls against their daily quota; each engine has its own implementation."""

    async def count_calls(
        self, groups: Sequence[CallGroup], mode: Mode | None, limit: int
    ) -> list[CountedGroup]:
        """Admit and count groups of calls, at most MAX_CALL_GROUPS, and return their results.

        No two groups have the same key and day. A call is counted if its key is live and has not
        expired at the group's `last_at`, was not bought in another mode than the server's, and
        has fewer than `limit` calls on that day.
        """

    async def test_write(self) -> None:
        """Commit a write to the tables of counts that leaves no trace."""


def find_refusal(row: Row, at: int, mode: Mode | None, limit: int) -> Verdict | None:
    """Return why a call that arrived at a time (epoch ms) is refused, or None.

    `row` has the key's mode, revoked_at, expires_at and used.
    """
    if row["revoked_at"] is not None:
        return "revoked"
    if row["expires_at"] is not None and row["expires_at"] <= at:
        return "expired"
    # A key made by the operator has no mode and works in all; with billing off, all keys work.
    if None not in (row["mode"], mode) and row["mode"] != mode:
        return "wrong_mode"
    return "exhausted" if row["used"] >= limit else None


def build_uncounted(row: Row, verdict: Verdict) -> CountedGroup:
    """Return the result of a call that is not counted; `row` also has the key's label."""
    return CountedGroup(0, verdict, row["used"], row["label"], row["mode"], row["expires_at"])
