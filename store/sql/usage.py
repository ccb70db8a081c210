"""How calls are counted: what an engine has to do, and why a key's calls are refused."""

from collections.abc import Sequence
from typing import Protocol

from schemas.vocabulary import Mode
from store.access_rows import CallGroup, CountedGroup, Verdict
from store.sql.database import Row


class UsageCounter(Protocol):
    """How an engine decides and counts calls."""

    async def count_calls(
        self, groups: Sequence[CallGroup], mode: Mode | None, limit: int
    ) -> list[CountedGroup]:
        """Decide and count groups of calls; at most MAX_CALL_GROUPS of them.

        Each is of another key or day. A call counts if its key is live, was not bought in another
        mode than the server's, and has fewer than `limit` calls on the day of arrival.
        """


def find_refusal(row: Row, mode: Mode | None, limit: int) -> Verdict | None:
    """Return why a call of a key is refused; a row has its mode, revoked_at and used."""
    if row["revoked_at"] is not None:
        return "revoked"
    if None not in (row["mode"], mode) and row["mode"] != mode:
        return "wrong_mode"
    return "spent" if row["used"] >= limit else None
