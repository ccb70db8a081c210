"""Watches which process computes on a database."""

import asyncio
import re
from contextlib import suppress
from typing import NamedTuple

import asyncpg

from store.postgres.market_engine import COMPUTE_LOCK_ID
from store.postgres.schema import DATABASE_ERRORS

LOOKS_EVERY_S = 0.02
HOLDERS = """
SELECT DISTINCT pid, application_name, state = 'idle in transaction'
FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND granted AND classid = 0 AND objid = $1
"""


class Leader(NamedTuple):
    """A session that holds the lock: its process, and whether it is in a transaction."""

    session: int
    pid: int
    is_writing: bool


class LeaderWatch:
    """The current leader, the sessions of all leaders, and the most leaders at a time."""

    def __init__(self, url: str) -> None:
        self.current: Leader | None = None
        self.sessions: list[int] = []
        self.max_at_once = 0
        self._url = url

    async def watch(self) -> None:
        """Poll until cancelled, also while the database is down."""
        while True:
            with suppress(*DATABASE_ERRORS):
                await self._look()
            self.current = None
            await asyncio.sleep(LOOKS_EVERY_S)

    async def _look(self) -> None:
        session = await asyncpg.connect(self._url)
        try:
            while True:
                self._record(await session.fetch(HOLDERS, COMPUTE_LOCK_ID))
                await asyncio.sleep(LOOKS_EVERY_S)
        finally:
            session.terminate()

    def _record(self, rows: list[asyncpg.Record]) -> None:
        self.max_at_once = max(self.max_at_once, len(rows))
        found = [Leader(session, parse_pid(name), writes) for session, name, writes in rows]
        self.current = found[0] if found else None
        if self.current is not None and self.current.session not in self.sessions[-1:]:
            self.sessions.append(self.current.session)


def parse_pid(name: str) -> int:
    """Return the process that a session is named after."""
    found = re.search(r"pid (\d+)", name)
    assert found is not None, name
    return int(found[1])
