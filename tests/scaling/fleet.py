"""Serving and computing processes of one database, the current leader, and clients.

If a process fails, clients use another.
"""

import asyncio
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import asyncpg
import httpx

from compute.schedule import to_market_ms
from schemas.vocabulary import DAY_MS, Clock
from service.commands.compute_command import compute
from service.commands.serve import serve
from service.config.settings import Settings
from store.postgres.market_engine import COMPUTE_LOCK_ID
from store.postgres.schema import DATABASE_ERRORS
from tests.scaling.nodes import ProcessClocks, ServiceNode
from tests.support.bad_inputs import SIGNALS, build_call
from tests.support.postgres.server import PostgresServer
from tests.support.running_service import Transport
from tests.support.signals_command import find_free_port, write_cut_universe

PACE_S = 0.2
PAGE = 40
PARALLEL_CALLS = 8
UNREACHABLE_ERRORS = httpx.TransportError, httpx.TimeoutException


class Row(NamedTuple):
    created_at: int
    id: str


def parse_ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


# Status, body, and the end of the quota's day (epoch ms, 0 if the response has no quota).
Reply = tuple[int, Any, int]


@dataclass
class CallTotals:
    """Responses and failures of all clients."""

    answered: Counter[tuple[str, int]] = field(default_factory=Counter)
    refused: Counter[tuple[str, int]] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)


@dataclass
class Caller:
    """Calls with the key of this label, and counts the responses in `totals`."""

    client: httpx.AsyncClient
    addresses: Sequence[str]
    label: str
    api_key: str
    totals: CallTotals
    rng: random.Random

    async def call(self, transport: Transport, arguments: dict[str, Any]) -> Reply:
        """Call processes until one replies with another status than 503; return the reply."""
        ask = self._call_mcp if transport == "mcp" else self._call_rest
        while True:
            try:
                reply = await ask(self.rng.choice(self.addresses), arguments)
            except UNREACHABLE_ERRORS as error:
                self.totals.failures[type(error).__name__] += 1
            else:
                status, _, resets_at = reply
                if status != 503:
                    noted = {200: self.totals.answered, 429: self.totals.refused}[status]
                    noted[self.label, resets_at // DAY_MS - 1] += 1
                    return reply
                self.totals.failures["503"] += 1
            await asyncio.sleep(PACE_S)

    async def _call_rest(self, address: str, arguments: dict[str, Any]) -> Reply:
        url = f"{address}/api/v1/signals"
        response = await self.client.get(url, params=arguments, headers={"X-Api-Key": self.api_key})
        return response.status_code, response.json(), parse_reset(response)

    async def _call_mcp(self, address: str, arguments: dict[str, Any]) -> Reply:
        url, body = f"{address}/api/v1/mcp", build_call(SIGNALS, arguments)
        response = await self.client.post(url, json=body, headers={"X-Api-Key": self.api_key})
        result = response.json()["result"]
        status = result["_meta"]["signals/status"] if result["isError"] else 200
        return status, result.get("structuredContent"), parse_reset(response)


def parse_reset(response: httpx.Response) -> int:
    reset = response.headers.get("X-RateLimit-Reset")
    return 0 if reset is None else parse_ms(reset)


@dataclass
class FeedReader:
    """Pages both tiers of the feed by `since`; `rows` are all rows received, in order."""

    caller: Caller
    transport: Transport
    since: str
    rows: list[Row] = field(default_factory=list)

    async def read(self) -> None:
        """Read all rows and then new ones, until cancelled."""
        while True:
            asked = {"tier": "all", "order": "oldest", "limit": PAGE, "since": self.since}
            status, page, _ = await self.caller.call(self.transport, asked)
            assert status == 200, page
            self.rows += [Row(parse_ms(r["created_at"]), r["id"]) for r in page["signals"]]
            self.since = page["pagination"]["next_cursor"] or self.since
            if not page["pagination"]["has_more"]:
                await asyncio.sleep(PACE_S)

    def has_read(self, created_at: int) -> bool:
        return bool(self.rows) and self.rows[-1].created_at == created_at


@dataclass
class QuotaSpender:
    """Uses up a key's quota each day, with several calls at a time."""

    caller: Caller
    clock: Clock

    async def spend(self) -> None:
        """Call until refused, wait for the next day, and repeat until cancelled."""
        while True:
            calls = [self.caller.call("rest", {"limit": 1}) for _ in range(PARALLEL_CALLS)]
            replies = await asyncio.gather(*calls)
            if all(status == 429 for status, *_ in replies):
                *_, resets_at = replies[0]
                await wait_until(lambda ends=resets_at: self.clock() >= ends, within_s=None)


async def wait_until(
    is_so: Callable[[], bool | Awaitable[bool]], within_s: float | None, every_s: float = 0.02
) -> None:
    """Poll until a condition is true; TimeoutError if it is not true in time."""
    async with asyncio.timeout(within_s):
        while True:
            found = is_so()
            if found is True or (not isinstance(found, bool) and await found):
                return
            await asyncio.sleep(every_s)


WATCHES_EVERY_S = 0.02
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


@dataclass
class LeaderWatch:
    """The current leader, and the most leaders at a time."""

    url: str
    current: Leader | None = None
    max_at_once: int = 0

    async def watch(self) -> None:
        """Poll until cancelled, also while the database is down."""
        while True:
            with suppress(*DATABASE_ERRORS):
                await self._look()
            self.current = None
            await asyncio.sleep(WATCHES_EVERY_S)

    async def _look(self) -> None:
        session = await asyncpg.connect(self.url)
        try:
            while True:
                rows = await session.fetch(HOLDERS, COMPUTE_LOCK_ID)
                self.max_at_once = max(self.max_at_once, len(rows))
                # A session is named after its process.
                found = [
                    Leader(session_pid, int(re.search(r"pid (\d+)", name)[1]), writes)
                    for session_pid, name, writes in rows
                ]
                self.current = found[0] if found else None
                await asyncio.sleep(WATCHES_EVERY_S)
        finally:
            session.terminate()


SERVING, COMPUTING = 3, 2
# A loop fetches late bars again up to two minutes after a run.
REFETCHED_AFTER_MS = 130_000
# The documented limit for a takeover.
TAKES_OVER_WITHIN_S = 10.0
SHOWS_WITHIN_S, LOOKS_EVERY_S = 90.0, 0.1


class Fleet:
    """The processes, their clocks, their database, and the current leader."""

    def __init__(
        self,
        server: PostgresServer,
        folder: Path,
        client: httpx.AsyncClient,
        now: int,
        tickers: Iterable[str],
        daily_limit: int,
    ) -> None:
        """Prepare processes for a market of some tickers at a time (epoch ms); start none."""
        self.server = server
        self.client = client
        self.clocks = ProcessClocks(now, SERVING + COMPUTING)
        self.leaders = LeaderWatch(server.url())
        self.ended: Counter[tuple[str, int]] = Counter()
        universe = Path(write_cut_universe(folder, set(tickers)))
        nodes = []
        for place in range(SERVING + COMPUTING):
            settings = Settings(
                database_url=server.url(),
                universe=universe,
                log_key_file=folder / "log-key.json",
                billing="off",
                port=int(find_free_port()),
                daily_limit=daily_limit,
            )
            work = partial(serve, computes=False) if place < SERVING else compute
            log = folder / f"{place}.log"
            nodes.append(ServiceNode(work, settings, self.clocks.get_clock(place), log))
        self.serving, self.computing = nodes[:SERVING], nodes[SERVING:]

    @property
    def nodes(self) -> list[ServiceNode]:
        return [*self.serving, *self.computing]

    @property
    def addresses(self) -> list[str]:
        return [node.settings.address for node in self.serving]

    @asynccontextmanager
    async def run(self) -> AsyncIterator[Self]:
        """Run all processes and watch the leader until the block ends."""
        watching = asyncio.create_task(self.leaders.watch())
        try:
            for node in self.nodes:
                node.start()
            yield self
        finally:
            watching.cancel()
            await asyncio.wait([watching])
            for node in self.nodes:
                node.kill()

    async def supervise(self) -> None:
        """Restart processes that ended, and count their exit statuses, until cancelled."""
        while True:
            for node in self.nodes:
                if node.status is not None:
                    does = "serves" if node in self.serving else "computes"
                    self.ended[does, node.status] += 1
                    node.start()
            await asyncio.sleep(0.1)

    async def wait_for_leader(self) -> tuple[int, ServiceNode]:
        await wait_until(lambda: self.leaders.current is not None, SHOWS_WITHIN_S)
        now = self.leaders.current
        return now.session, next(node for node in self.computing if node.pid == now.pid)

    async def wait_for_takeover(self, ended: int) -> None:
        await wait_until(
            lambda: self.leaders.current is not None and self.leaders.current.session != ended,
            TAKES_OVER_WITHIN_S,
        )

    async def wait_until_shown(self, hour: int) -> None:
        for address in self.addresses:
            await wait_until(
                lambda url=address: self._shows(url, hour), SHOWS_WITHIN_S, LOOKS_EVERY_S
            )

    async def wait_for_late_bars(self) -> None:
        """Move the clock to when late bars have come, and wait until the leader fetches them."""
        _, leader = await self.wait_for_leader()
        self.clocks.now += REFETCHED_AFTER_MS
        looks = leader.clock.looks
        await wait_until(lambda: leader.clock.looks > looks + 2, SHOWS_WITHIN_S)

    async def _shows(self, address: str, hour: int) -> bool:
        try:
            response = await self.client.get(f"{address}/api/v1/catalog")
        except UNREACHABLE_ERRORS:
            return False
        as_of = response.json()["meta"].get("as_of") if response.status_code == 200 else None
        return as_of is not None and parse_ms(as_of) >= to_market_ms(hour)

    async def stop(self, nodes: list[ServiceNode]) -> list[int | None]:
        return [await node.stop() for node in nodes]
