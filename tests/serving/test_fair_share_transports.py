"""One key with many calls against the calls of others, over both transports and databases."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from access.keys import generate_key, hash_key
from schemas.vocabulary import TIMEFRAMES, format_instant
from serving.fair_share import (
    MAX_CALLS,
    PAST_BURST,
    PAST_PER_S,
    CallPlaces,
    FairShare,
    PastBudget,
)
from store.sql.database import MarketEngine
from store.sql.ledger_reads import FeedRows, LedgerReads
from store.sql.market_store import MarketStore
from tests.access.test_quota_transports import Called, call
from tests.serving.test_fair_share import ManualTimers
from tests.support.bad_inputs import CATALOG, SIGNALS, STATE, STATS, USAGE, build_path
from tests.support.example_market import ASSETS, NOON, make_coverage
from tests.support.running_service import RunningService, Transport, run_service
from tests.support.store_homes import DEADLINE_S, SqliteHome, StoreHome

pytestmark = pytest.mark.clause("access")

# Arguments of the calls that the store holds back, no two alike.
HELD_CALLS = [
    {"detail": "changes", "ticker": ",".join(tickers), "timeframe": timeframe}
    for timeframe in TIMEFRAMES
    for count in (2, 3)
    for tickers in combinations([asset.ticker for asset in ASSETS], count)
]


class HeldReads(LedgerReads):
    """Reads of the feed that can be held back until they are released."""

    holds: asyncio.Event | None = None

    async def load_rows(self, after: int, until: int) -> FeedRows:
        if self.holds is not None:
            await self.holds.wait()
        return await super().load_rows(after, until)


class HeldMarket(MarketStore):
    """Holds back the closes of calls with `detail` until they are released."""

    def __init__(self, engine: MarketEngine) -> None:
        super().__init__(engine)
        self.released = asyncio.Event()
        self.ledger_reads = self.held_reads = HeldReads(engine)

    async def closes(self, closed_at: Mapping[int, Iterable[str]]) -> dict[str, float]:
        await self.released.wait()
        return await super().closes(closed_at)


@dataclass
class Contested:
    """A service, one key that makes many calls at a time, and the key of another client."""

    served: RunningService
    market: HeldMarket
    places: CallPlaces
    budget: PastBudget
    timers: ManualTimers
    transport: Transport
    greedy_key: str
    outcomes: list[str]
    tasks: list["asyncio.Task[Called]"] = field(default_factory=list)

    async def call(self, tool: str, api_key: str | None = None, **arguments: Any) -> Called:
        """Make a call of the other client, or of a key."""
        headers = {"Authorization": f"Bearer {api_key or self.served.api_key}"}
        return await call(self.served, self.transport, tool, headers, **arguments)

    async def hold(self, calls: int) -> None:
        """Make calls of the greedy key that are held back, no two alike."""
        for _ in range(calls):
            made = self.call(STATE, self.greedy_key, **HELD_CALLS[len(self.tasks)])
            self.tasks.append(asyncio.create_task(made))
        at_a_time = min(len(self.tasks), MAX_CALLS)
        await self.wait_for(at_a_time, len(self.tasks) - at_a_time)

    async def wait_for(self, in_progress: int, waiting: int, caller: Any = None) -> None:
        """Wait until the greedy key, or another caller, has so many calls."""
        caller = caller or hash_key(self.greedy_key)
        async with asyncio.timeout(DEADLINE_S):
            while self.places.count(caller) != (in_progress, waiting):  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def release(self) -> list[Called]:
        """Let all held calls end; return their results."""
        self.market.released.set()
        return await asyncio.gather(*self.tasks)

    async def count_used(self) -> int:
        """Return how many calls of the greedy key were counted."""
        headers = {"Authorization": f"Bearer {self.greedy_key}"}
        response = await self.served.client.get(f"/api/v1{build_path(USAGE, {})}", headers=headers)
        return int(response.json()["quota"]["used_today"]) - 1


@pytest.fixture
async def contested(home: StoreHome, transport: Transport) -> AsyncIterator[Contested]:
    timers, outcomes = ManualTimers(), list[str]()
    places = CallPlaces(call_later=timers.call_later)
    budget = PastBudget(timers.clock, timers.call_later)
    address = Path(home.address) if isinstance(home, SqliteHome) else home.address
    async with run_service(
        address,
        make_coverage(),
        store_class=HeldMarket,
        fair_share=FairShare(places, budget),
        on_call=lambda tool, outcome, seconds: outcomes.append(outcome),
    ) as served:
        assert isinstance(served.market, HeldMarket)
        greedy_key = await served.keys.create("greedy")
        try:
            yield Contested(
                served, served.market, places, budget, timers, transport, greedy_key, outcomes
            )
        finally:
            served.market.released.set()


@pytest.mark.clause("8.54", "8.57")
async def test_a_key_with_all_its_places_taken_delays_no_call_of_another_key(
    contested: Contested,
) -> None:
    await contested.call(STATE, ticker="BTC")
    await contested.hold(MAX_CALLS + 8)
    cached = await contested.call(STATE, ticker="BTC")
    rendered = await contested.call(STATE, ticker="ETH")
    read = await contested.call(SIGNALS, limit=3)
    past = await contested.call(STATE, as_of=format_instant(NOON + 100_000))
    assert [one.status for one in (cached, rendered, read, past)] == [200] * 4
    assert (await contested.served.client.get("/readyz")).status_code == 200
    assert not any(task.done() for task in contested.tasks)
    assert {one.status for one in await contested.release()} == {200}
    assert len(contested.places) == 0


@pytest.mark.clause("8.55")
async def test_a_call_beyond_the_places_of_a_key_waits_and_is_served(contested: Contested) -> None:
    await contested.hold(MAX_CALLS + 1)
    assert {one.status for one in await contested.release()} == {200}
    assert await contested.count_used() == MAX_CALLS + 1
    assert len(contested.places) == 0


@pytest.mark.clause("8.52", "8.55", "8.58")
async def test_a_call_that_waits_too_long_for_a_place_is_refused_and_not_counted(
    contested: Contested,
) -> None:
    # In two steps, because connections are not accepted in the order in which they were opened.
    await contested.hold(MAX_CALLS)
    await contested.hold(1)
    contested.timers.move(2)
    refused = await contested.tasks.pop()
    assert (refused.status, refused.code, refused.retry_after_s) == (429, "rate_limited", 1)
    # The quota is not known, because it is looked up when the call is counted.
    assert refused.quota is None
    for words in ("32 are in progress", "was not counted", "retry after 1 second"):
        assert words in refused.message
    assert contested.outcomes == ["too_many_calls"]
    await contested.release()
    assert await contested.count_used() == MAX_CALLS


@pytest.mark.clause("8.55")
async def test_a_client_that_disconnects_leaves_the_line_uncounted(contested: Contested) -> None:
    await contested.hold(MAX_CALLS)
    _, writer = await send_alone(contested, STATE, HELD_CALLS[-1])
    await contested.wait_for(MAX_CALLS, 1)
    writer.close()
    await contested.wait_for(MAX_CALLS, 0)
    await contested.release()
    assert await contested.count_used() == MAX_CALLS
    assert len(contested.places) == 0


@pytest.mark.clause("8.54")
async def test_a_client_that_disconnects_while_its_call_is_in_progress_frees_the_place(
    contested: Contested,
) -> None:
    _, writer = await send_alone(contested, STATE, HELD_CALLS[-1])
    await contested.wait_for(1, 0)
    writer.close()
    await writer.wait_closed()
    contested.market.released.set()
    await contested.wait_for(0, 0)
    assert len(contested.places) == 0


async def send_alone(
    contested: Contested, tool: str, arguments: dict[str, str]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a call of the greedy key on a connection of its own."""
    address = urlsplit(contested.served.base_url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    head = f"Host: {address.netloc}\r\nAuthorization: Bearer {contested.greedy_key}\r\n"
    if contested.transport == "rest":
        path = build_path(tool, arguments)
        writer.write(f"GET /api/v1{path} HTTP/1.1\r\n{head}\r\n".encode())
    else:
        params = {"name": tool, "arguments": arguments}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"POST /api/v1/mcp HTTP/1.1\r\n{head}\r\n{body}".encode())
    return reader, writer


@pytest.mark.clause("8.54")
async def test_an_unknown_key_is_refused_as_before_and_not_remembered(contested: Contested) -> None:
    refused = await asyncio.gather(
        *(contested.call(STATE, generate_key()) for _ in range(MAX_CALLS + 1))
    )
    assert {(one.status, one.code) for one in refused} == {(401, "invalid_key")}
    past = await contested.call(STATE, generate_key(), as_of=format_instant(NOON + 100_000))
    assert past.status == 401
    contested.timers.move(10)
    assert len(contested.places) == len(contested.budget) == 0


@pytest.mark.clause("8.54")
async def test_calls_without_a_key_have_places_by_client_address(contested: Contested) -> None:
    contested.market.held_reads.holds = contested.market.released
    made = [asyncio.create_task(contested.call(STATS)) for _ in range(MAX_CALLS)]
    await contested.wait_for(MAX_CALLS, 0, "127.0.0.1")
    made.append(asyncio.create_task(contested.call(CATALOG, ticker="BTC")))
    await contested.wait_for(MAX_CALLS, 1, "127.0.0.1")
    assert (await contested.call(STATE)).status == 200
    contested.market.released.set()
    assert {one.status for one in await asyncio.gather(*made)} == {200}


@pytest.mark.clause("8.52", "8.56", "8.58")
async def test_too_many_calls_with_as_of_are_refused(
    contested: Contested,
) -> None:
    key, past = contested.greedy_key, format_instant(NOON + 100_000)
    first = await contested.call(STATE, key, as_of=past)
    assert first.status == 200
    for _ in range(PAST_BURST - 1 + PAST_PER_S):
        contested.budget.reserve(hash_key(key))
    refused = await contested.call(STATE, key, as_of=format_instant(NOON + 100_001))
    assert (refused.status, refused.code, refused.retry_after_s) == (429, "rate_limited", 1)
    for words in ("10 per second", "burst of 20", "Retry after 1 second"):
        assert words in refused.message
    assert contested.outcomes[-1] == "too_many_past"
    # Other calls, bad instants and other keys are not limited.
    assert (await contested.call(STATE, key)).status == 200
    assert (await contested.call(STATE, key, as_of="2020-01-01T00:00:00Z")).status == 400
    assert (await contested.call(STATE, as_of=format_instant(NOON + 100_002))).status == 200
    contested.timers.move(2)
    assert (await contested.call(STATE, key, as_of=format_instant(NOON + 100_003))).status == 200
