"""Who computes on a database, asked of it all the time."""

import asyncio
import re
from contextlib import suppress
from typing import NamedTuple

import asyncpg

from store.postgres.engine import FAILURES
from store.postgres.market_engine import COMPUTING

LOOKS_EVERY_S = 0.02
HOLDERS = """
SELECT DISTINCT pid, application_name, state = 'idle in transaction'
FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND granted AND classid = 0 AND objid = $1
"""


class Leader(NamedTuple):
    """A session that holds the lock: its process, and whether it is amid a transaction."""

    session: int
    pid: int
    is_writing: bool


class Leaders:
    """What was seen: the leader of the moment, all leaders' sessions, the most at a time."""

    def __init__(self, url: str) -> None:
        self.now: Leader | None = None
        self.sessions: list[int] = []
        self.most = 0
        self._url = url

    async def watch(self) -> None:
        """Look until cancelled, also where the database goes away for a while."""
        while True:
            with suppress(*FAILURES):
                await self._look()
            self.now = None
            await asyncio.sleep(LOOKS_EVERY_S)

    async def _look(self) -> None:
        session = await asyncpg.connect(self._url)
        try:
            while True:
                self._saw(await session.fetch(HOLDERS, COMPUTING))
                await asyncio.sleep(LOOKS_EVERY_S)
        finally:
            session.terminate()

    def _saw(self, rows: list[asyncpg.Record]) -> None:
        self.most = max(self.most, len(rows))
        found = [Leader(session, pid_in(name), writes) for session, name, writes in rows]
        self.now = found[0] if found else None
        if self.now is not None and self.now.session not in self.sessions[-1:]:
            self.sessions.append(self.now.session)


def pid_in(name: str) -> int:
    """Return the process that a session is named after."""
    found = re.search(r"pid (\d+)", name)
    assert found is not None, name
    return int(found[1])
