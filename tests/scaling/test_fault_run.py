"""Faults: killed and halted processes, cut sessions, wrong clocks."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from signal import SIGKILL

import asyncpg
import httpx
import pytest

from compute.audit.audit import audit_market
from compute.bars import DAY_S, HOUR_S
from compute.indicators.registry import INDICATORS
from compute.schedule import find_last_run, to_market_ms
from compute.sources.simulated import format_source_name
from compute.universe import load_universe
from schemas.vocabulary import compute_midnight_s, format_instant
from service.config.settings import Settings
from service.config.stores import open_both
from store.opening import open_postgres_access, open_postgres_market
from tests.conftest import MAJORS
from tests.scaling.fleet import (
    Caller,
    CallTotals,
    FeedReader,
    Fleet,
    QuotaSpender,
    parse_ms,
    wait_until,
)
from tests.scaling.nodes import ServiceNode
from tests.support.postgres.server import PostgresServer, cut_sessions
from tests.support.running_service import OperatorKeys, Transport
from tests.support.store_homes import open_and_close

pytestmark = pytest.mark.clause("scaling")


MINUTE_MS, HOUR_MS = 60_000, 3_600_000

CUT_ONE = "SELECT pg_terminate_backend($1)"
SESSIONS = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY pid
"""


@dataclass
class FaultInjector:
    """Makes faults soon after a run is due."""

    fleet: Fleet
    totals: CallTotals
    rng: random.Random

    async def kill_serving(self, hour: int) -> None:
        self.rng.choice(self.fleet.serving).kill()

    async def kill_standby(self, hour: int) -> None:
        _, leader = await self.fleet.wait_for_leader()
        self._pick_other(leader).kill()

    async def kill_leader(self, hour: int) -> None:
        session, leader = await self.fleet.wait_for_leader()
        leader.kill()
        await self.fleet.wait_for_takeover(session)

    async def halt_leader(self, hour: int) -> None:
        session, leader = await self.fleet.wait_for_leader()
        with leader.halt():
            await self.fleet.wait_for_takeover(session)
            await self.fleet.wait_until_shown(hour)

    async def cut_all_sessions(self, hour: int) -> None:
        await cut_sessions(self.fleet.server.url())

    async def cut_some_sessions(self, hour: int) -> None:
        async with open_and_close(asyncpg.connect(self.fleet.server.url())) as session:
            pids = [row["pid"] for row in await session.fetch(SESSIONS)]
            for pid in self.rng.sample(pids, len(pids) // 2):
                await session.execute(CUT_ONE, pid)

    async def restart_database(self, hour: int) -> None:
        self.fleet.server.stop()
        failed = self.totals.failures["503"]
        await wait_until(lambda: self.totals.failures["503"] > failed, None)
        self.fleet.server.start()

    async def set_clock_ahead(self, hour: int) -> None:
        """Set the leader's clock ahead so that it computes future hours, then kill it."""
        hours, minutes = self.rng.choice([(3, 0), (0, 20), (0, 2)])
        _, leader = await self.fleet.wait_for_leader()
        leader.clock.be_off(hours * HOUR_MS + minutes * MINUTE_MS)
        await self.fleet.wait_until_shown(hour + hours * HOUR_S)
        leader.clock.be_off(0)
        leader.kill()

    async def set_clock_back(self, hour: int) -> None:
        """Set the standby's clock back, then let it take over."""
        _, leader = await self.fleet.wait_for_leader()
        other = self._pick_other(leader)
        other.clock.be_off(-self.rng.choice([2 * MINUTE_MS, 30 * MINUTE_MS, 3 * HOUR_MS]))
        await self.kill_leader(hour)
        other.clock.be_off(0)

    async def wait_until_writing(self, hour: int) -> None:
        """Wait until the leader commits, or until the run of the hour is over."""
        shown, leaders = (
            asyncio.create_task(self.fleet.wait_until_shown(hour)),
            self.fleet.leaders,
        )
        await wait_until(
            lambda: shown.done() or (leaders.current is not None and leaders.current.is_writing),
            None,
            every_s=0.005,
        )
        shown.cancel()

    def _pick_other(self, node: ServiceNode) -> ServiceNode:
        first, second = self.fleet.computing
        return second if node is first else first


# The last five are late in the days after it, but their bars arrive soon.
TICKERS = ("BTC", "SOL", "NVDA", "XAU", "TSLA", "GMX", "TAO", "HBAR", "AXL", "UNI")
Fault = tuple[str, bool] | None

START = "2026-08-12T22:03:10+00:00"
AFTER_DUE_MS = 10_000
FACES: tuple[Transport, ...] = ("mcp", "rest", "rest", "rest")
PUBLISHED = """
SELECT created_at FROM (
  SELECT created_at FROM signals_market.changes WHERE published = 1
  UNION ALL SELECT created_at FROM signals_market.alerts
) rows WHERE created_at > $1 ORDER BY 1
"""
PASSES = """
SELECT number, market_time, first_created_at, last_created_at FROM signals_market.passes ORDER BY 1
"""
LATE = """
SELECT FROM signals_market.watermarks
WHERE late > 0 AND pass = (SELECT max(number) FROM signals_market.passes)
"""
USED = "SELECT label, day, used FROM signals_access.usage JOIN signals_access.keys ON id = key_id"
ENDS_WITHIN_S, ANSWERS_WITHIN_S = 60, 30


@dataclass(frozen=True)
class Size:
    """The hours of the run, the days of history before it, and the daily limit of a key."""

    hours: int
    history_days: int
    daily_limit: int
    seed: int = 1

    def faults(self, rng: random.Random) -> Iterator[Fault]:
        """Yield the fault of each hour, and whether it waits until a batch is being committed."""
        if self.hours < len(KINDS):
            yield from SHORT
        while True:
            for kind in rng.sample(KINDS, len(KINDS)):
                yield from [None] * rng.randint(0, 4)
                yield kind, rng.random() < 0.5


SHORT = ("kill_leader", True), ("cut_all_sessions", False)
KINDS = (
    "kill_serving",
    "kill_standby",
    "kill_leader",
    "kill_leader",
    "halt_leader",
    "cut_all_sessions",
    "cut_some_sessions",
    "restart_database",
    "set_clock_ahead",
    "set_clock_back",
)


@pytest.mark.parametrize(
    ("postgres", "size"),
    [
        *(pytest.param(*major.values, Size(2, 40, 100)) for major in MAJORS[1:]),
        pytest.param(*MAJORS[0].values, Size(36, 60, 2000), marks=pytest.mark.long),
    ],
    indirect=["postgres"],
)
@pytest.mark.prove
async def test_no_fault_costs_a_client_a_row_or_a_call(
    private_postgres: PostgresServer, tmp_path: Path, size: Size
):
    async with ran(private_postgres, tmp_path, size) as (fleet, totals, readers, since):
        url = private_postgres.url()
        assert await fleet.stop(fleet.nodes) == [0] * len(fleet.nodes)
        rows = await published(url, since)
        assert len(rows) > size.hours
        for reader in readers:
            assert [row.created_at for row in reader.rows] == rows
            assert len({row.id for row in reader.rows}) == len(rows)
        await check_quota(url, totals, size.daily_limit)
        await check_passes(url)
        assert fleet.leaders.max_at_once == 1
        assert {status for does, status in fleet.ended if does == "serves"} <= {-SIGKILL}
        async with open_and_close(open_postgres_market(url)) as market:
            universe = load_universe(fleet.nodes[0].settings.universe)
            assert (await audit_market(market, universe, INDICATORS)).findings == []


@asynccontextmanager
async def ran(
    server: PostgresServer, folder: Path, size: Size
) -> AsyncIterator[tuple[Fleet, CallTotals, list[FeedReader], int]]:
    """Run all hours with their faults until the clients have read all rows.

    Yield the fleet, the responses to all clients, and the readers, which received the rows after a
    time (epoch ms).
    """
    rng, totals = random.Random(size.seed), CallTotals()
    start = parse_ms(START)
    first = find_last_run(start)
    await begin_history(server.url(), start, size.history_days)
    async with (
        httpx.AsyncClient(timeout=ANSWERS_WITHIN_S, verify=False) as client,
        Fleet(server, folder, client, start, TICKERS, size.daily_limit).run() as fleet,
    ):
        await fleet.wait_until_shown(first)
        since = (await published(server.url(), 0))[-1]
        spender, readers = await new_clients(fleet, totals, random.Random(size.seed), since)
        works = [fleet.supervise(), spender.spend(), *(reader.read() for reader in readers)]
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(work) for work in works]
            hours = range(first + HOUR_S, first + size.hours * HOUR_S + 1, HOUR_S)
            await go_through(hours, fleet, FaultInjector(fleet, totals, rng), size.faults(rng))
            newest = (await published(server.url(), since))[-1]
            await wait_until(
                lambda: bool(totals.refused) and all(r.has_read(newest) for r in readers),
                ENDS_WITHIN_S,
            )
            for task in beside:
                task.cancel()
        yield fleet, totals, readers, since


async def go_through(
    hours: Iterable[int], fleet: Fleet, injector: FaultInjector, faults: Iterator[Fault]
) -> None:
    """Let each hour become due with its fault, and wait until all processes serve it."""
    for hour in hours:
        fleet.clocks.now = to_market_ms(hour) + AFTER_DUE_MS
        if (fault := next(faults)) is not None:
            kind, is_amid_a_pass = fault
            if is_amid_a_pass:
                await injector.wait_until_writing(hour)
            await getattr(injector, kind)(hour)
        await fleet.wait_until_shown(hour)
        if await fetched(fleet.server.url(), LATE):
            await fleet.wait_for_late_bars()


async def begin_history(url: str, start: int, days: int) -> None:
    """Let the market begin only these days earlier, because each hour of history costs time."""
    origin = compute_midnight_s(datetime.fromtimestamp(start // 1000, UTC).date()) - days * DAY_S
    async with open_both(Settings(database_url=url)) as (market, _):
        await market.adopt_source(format_source_name(origin), start)


async def new_clients(
    fleet: Fleet, totals: CallTotals, rng: random.Random, since: int
) -> tuple[QuotaSpender, list[FeedReader]]:
    """Return a client that uses up its quota and the feed's readers, each with its own key."""
    clock = fleet.clocks.get_clock(0)
    labels = ["spender", *(f"reader {place}" for place in range(len(FACES)))]
    async with open_and_close(open_postgres_access(fleet.server.url())) as access:
        made = [(label, await OperatorKeys(access, clock).create(label)) for label in labels]
    first, *rest = [Caller(fleet.client, fleet.addresses, *key, totals, rng) for key in made]
    readers = [FeedReader(*given, format_instant(since)) for given in zip(rest, FACES, strict=True)]
    return QuotaSpender(first, clock), readers


async def fetched(url: str, query: str, *values: object) -> list[asyncpg.Record]:
    async with open_and_close(asyncpg.connect(url)) as session:
        return await session.fetch(query, *values)


async def published(url: str, since: int) -> list[int]:
    return [row["created_at"] for row in await fetched(url, PUBLISHED, since)]


async def check_quota(url: str, totals: CallTotals, limit: int) -> None:
    """Check that no key exceeded its quota, got uncounted responses, or was refused too early."""
    used = {(label, day): count for label, day, count in await fetched(url, USED)}
    assert max(used.values()) <= limit
    assert all(used[place] >= given for place, given in totals.answered.items())
    assert totals.refused
    assert all(used[place] == limit for place in totals.refused)
    assert {label for label, _ in totals.refused} == {"spender"}


async def check_passes(url: str) -> None:
    """Check that every commit and its rows follow the previous ones."""
    passes = await fetched(url, PASSES)
    assert [row["number"] for row in passes] == list(range(1, len(passes) + 1))
    assert all(a["market_time"] <= b["market_time"] for a, b in pairwise(passes))
    spans = [(r["first_created_at"], r["last_created_at"]) for r in passes]
    ends = [end for span in spans if None not in span for end in span]
    assert ends == sorted(ends)
