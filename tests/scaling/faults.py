"""Faults: killed and halted processes, cut sessions, wrong clocks."""

import asyncio
import random
from collections import Counter
from time import monotonic

import asyncpg

from tests.scaling.clients import CallTotals, wait_until
from tests.scaling.fleet import Fleet
from tests.scaling.nodes import ServiceNode
from tests.support.postgres.databases import cut_sessions

MINUTE_MS, HOUR_S, HOUR_MS = 60_000, 3_600, 3_600_000
CUT_ONE = "SELECT pg_terminate_backend($1)"
SESSIONS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY pid
"""


class FaultInjector:
    """Makes a fault soon after a run is due; counts faults, and measures takeovers."""

    def __init__(self, fleet: Fleet, totals: CallTotals, rng: random.Random) -> None:
        self.made: Counter[str] = Counter()
        self.takeovers_s: list[float] = []
        self._fleet = fleet
        self._totals = totals
        self._rng = rng

    async def inject(self, kind: str, hour: int, *, is_amid_a_pass: bool) -> None:
        """Make a fault when the run of an hour is due, or while it is being committed."""
        if is_amid_a_pass:
            await self._wait_until_writing(hour)
        await getattr(self, kind)(hour)
        self.made[kind] += 1

    async def kill_serving(self, hour: int) -> None:
        self._rng.choice(self._fleet.serving).kill()

    async def kill_standby(self, hour: int) -> None:
        _, leader = await self._fleet.wait_for_leader()
        self._pick_other(leader).kill()

    async def kill_leader(self, hour: int) -> None:
        session, leader = await self._fleet.wait_for_leader()
        leader.kill()
        await self._wait_for_takeover(session)

    async def halt_leader(self, hour: int) -> None:
        session, leader = await self._fleet.wait_for_leader()
        with leader.halt():
            await self._wait_for_takeover(session)
            await self._fleet.wait_until_shown(hour)

    async def cut_all_sessions(self, hour: int) -> None:
        await cut_sessions(self._fleet.server.url())

    async def cut_some_sessions(self, hour: int) -> None:
        session = await asyncpg.connect(self._fleet.server.url())
        pids = [row["pid"] for row in await session.fetch(SESSIONS)]
        for pid in self._rng.sample(pids, len(pids) // 2):
            await session.execute(CUT_ONE, pid)
        await session.close()

    async def restart_database(self, hour: int) -> None:
        """Stop the database, and start it again once clients have failed."""
        self._fleet.server.stop()
        failed = self._totals.failures["503"]
        await wait_until(lambda: self._totals.failures["503"] > failed, None)
        self._fleet.server.start()

    async def set_clock_ahead(self, hour: int) -> None:
        """Set the leader's clock ahead so that it computes future hours, then kill it."""
        hours, minutes = self._rng.choice([(3, 0), (0, 20), (0, 2)])
        _, leader = await self._fleet.wait_for_leader()
        leader.clock.be_off(hours * HOUR_MS + minutes * MINUTE_MS)
        await self._fleet.wait_until_shown(hour + hours * HOUR_S)
        leader.clock.be_off(0)
        leader.kill()

    async def set_clock_back(self, hour: int) -> None:
        """Set the standby's clock back, then let it take over."""
        _, leader = await self._fleet.wait_for_leader()
        other = self._pick_other(leader)
        other.clock.be_off(-self._rng.choice([2 * MINUTE_MS, 30 * MINUTE_MS, 3 * HOUR_MS]))
        await self.kill_leader(hour)
        other.clock.be_off(0)

    async def _wait_until_writing(self, hour: int) -> None:
        """Wait until the leader commits, or until the run of the hour is over."""
        shown = asyncio.create_task(self._fleet.wait_until_shown(hour))
        await wait_until(lambda: shown.done() or self._is_writing, None, every_s=0.005)
        shown.cancel()
        self.made["amid a pass"] += self._is_writing

    @property
    def _is_writing(self) -> bool:
        leader = self._fleet.leaders.current
        return leader is not None and leader.is_writing

    def _pick_other(self, node: ServiceNode) -> ServiceNode:
        first, second = self._fleet.computing
        return second if node is first else first

    async def _wait_for_takeover(self, session: int) -> None:
        began = monotonic()
        await self._fleet.wait_for_takeover(session)
        self.takeovers_s.append(monotonic() - began)
