"""Places, past calls, turns at the work, and strangers: random callers, and one greedy key."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given, strategies as st

from access.keys_and_quota import generate_key, hash_key
from schemas.errors import ApiError
from schemas.vocabulary import TIMEFRAMES, format_instant
from serving.fair_share import (
    MAX_CALLS,
    MAX_LIVE_KEYS,
    MAX_WAIT_S,
    PAUSES_END_S,
    STRANGER_PAUSE_S,
    TURNS_BEFORE_WORK,
    FairShare,
    KeysFirstMiddleware,
    Turns,
)
from serving.feed_ledger import Readings
from serving.http import IS_KEY_LIVE, ON_DISCONNECT_KEY
from store.market_rows import PastKey, StoredSnapshot
from store.sql.database import MarketEngine
from tests.access.test_quota_transports import Called, call as call_tool
from tests.support.bad_inputs import (
    CATALOG,
    FLIPS,
    SIGNALS,
    STATE,
    STATS,
    USAGE,
    build_call,
    build_path,
)
from tests.support.example_market import ASSETS, NOON, make_coverage
from tests.support.running_service import RunningService, Transport, fetch, run_service
from tests.support.store_homes import DEADLINE_S, GatedMarket, SqliteHome, StoreHome

INDEXES = st.integers(0, 50)
SLOTS, PLACES = 2, 4
TURNS = 12


@dataclass
class ManualTimers:
    """A monotonic clock that tests move, and the timers that are set on it."""

    now: float = 0.0
    timers: list[tuple[float, Callable[[], object]]] = field(default_factory=list)

    def clock(self) -> float:
        return self.now

    def call_later(self, delay_s: float, callback: Callable[[], object], /) -> None:
        self.timers.append((self.now + delay_s, callback))

    def move(self, seconds: float) -> None:
        """Move the clock, and fire the timers that are due by then, in order."""
        until = self.now + seconds
        while due := [one for one in self.timers if one[0] <= until]:
            first = min(due, key=lambda one: one[0])
            self.timers.remove(first)
            self.now = max(self.now, first[0])
            first[1]()
        self.now = until


@dataclass(eq=False)
class Call:
    """A call that is worked on from `is_started` until it is ended."""

    caller: str
    number: int
    scope: dict[str, Any] = field(default_factory=dict)
    end: asyncio.Event = field(default_factory=asyncio.Event)
    is_started: bool = False
    is_over: bool = False
    task: "asyncio.Task[None] | None" = None


@dataclass
class Calls:
    """All calls of a test, by arrival, and the order in which they started."""

    enter: Callable[[Call], Awaitable[Callable[[], None]]]
    made: list[Call] = field(default_factory=list)
    started: list[Call] = field(default_factory=list)

    def make(self, caller: str) -> None:
        call = Call(caller, len(self.made))
        self.made.append(call)
        call.task = asyncio.create_task(self._run(call))

    async def _run(self, call: Call) -> None:
        try:
            leave = await self.enter(call)
        except (ApiError, asyncio.CancelledError):
            call.is_over = True
            return
        call.is_started = True
        self.started.append(call)
        try:
            await call.end.wait()
        except asyncio.CancelledError:
            pass
        finally:
            call.is_over = True
            leave()

    @property
    def working(self) -> list[Call]:
        return [call for call in self.made if call.is_started and not call.is_over]

    @property
    def waiting(self) -> list[Call]:
        return [call for call in self.made if not call.is_started and not call.is_over]

    def take_step(self, step: str, value: Any) -> None:
        """Make a call, or end one, or let one leave; or two of it in the same turn of the loop."""
        if step == "call":
            self.make(value)
        if step == "disconnect" and (call := pick(self.waiting, value)):
            call.scope.get(ON_DISCONNECT_KEY, call.task.cancel)()
        if step.startswith("end") and (call := pick(self.working, value)):
            call.end.set()
        if step.endswith("cancel") and (call := pick(self.waiting or self.working, value)):
            call.task.cancel()

    async def end_all(self) -> None:
        while self.working or self.waiting:
            for call in self.working:
                call.end.set()
            await settle()


async def settle() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def pick(calls: list[Call], index: int) -> Call | None:
    return calls[index % len(calls)] if calls else None


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.sampled_from("abc")),
        st.tuples(st.sampled_from(["end", "cancel", "disconnect", "end and cancel"]), INDEXES),
    ),
    max_size=60,
)


def describe(share: FairShare, caller: str) -> tuple[bool, int]:
    """Return whether all places of a caller are taken, and how many of its calls wait."""
    places = share.places.get(caller)
    return (False, 0) if places is None else (not places.free, len(places.line))


def check_order(calls: Calls) -> None:
    for caller in "abc":
        numbers = [call.number for call in calls.started if call.caller == caller]
        assert numbers == sorted(numbers)


@pytest.mark.clause("8.54", "8.55")
@given(steps=STEPS)
def test_places_are_never_exceeded_or_lost_and_are_given_in_order(steps) -> None:
    async def check() -> None:
        share = FairShare(PLACES)

        async def enter(call: Call) -> Callable[[], None]:
            return (await share.take_place(call.caller, call.scope)).release

        calls = Calls(enter)
        for step, value in steps:
            calls.take_step(step, value)
            await settle()
            working = Counter(call.caller for call in calls.working)
            waiting = Counter(call.caller for call in calls.waiting)
            for caller in "abc":
                assert working[caller] <= PLACES
                assert not waiting[caller] or working[caller] == PLACES
                is_all_taken, in_line = describe(share, caller)
                assert (caller in share.places) is (working[caller] > 0)
                assert is_all_taken is (working[caller] == PLACES)
                assert in_line == waiting[caller]
        check_order(calls)
        await calls.end_all()
        assert not share.places

    asyncio.run(check())


@pytest.mark.clause("8.55")
def test_a_call_that_waits_is_refused_after_a_second_and_a_bit_for_each_one_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert MAX_WAIT_S == 1
    monkeypatch.setattr("serving.fair_share.MAX_WAIT_S", 0.0)

    async def check() -> None:
        share, clock = FairShare(1), asyncio.get_running_loop().time
        places, began = await share.take_place("a"), clock()

        async def wait() -> float:
            with pytest.raises(ApiError, match="1 are in progress") as refused:
                await share.take_place("a")
            error = refused.value
            assert (error.code, error.status, error.retry_after_s) == ("rate_limited", 429, 1)
            return clock() - began

        waited = await asyncio.gather(*(wait() for _ in range(3)))
        assert all(seconds >= 0.004 * before for before, seconds in enumerate(waited))
        assert waited == sorted(waited)
        # Another caller has places of its own.
        await share.take_place("b")
        places.release()
        assert await share.take_place("a") is places

    asyncio.run(check())


@pytest.mark.clause("8.57")
@given(steps=STEPS)
def test_a_backlog_delays_another_caller_by_one_piece_of_work(steps) -> None:
    async def check() -> None:
        turns = Turns(SLOTS)

        async def enter(call: Call) -> Callable[[], None]:
            await turns.begin(call.caller)
            return lambda: turns.end(call.caller)

        calls = Calls(enter)
        # By waiting call: how many of its own caller were before it, and the starts since.
        ahead: dict[Call, int] = {}
        since: dict[Call, Counter[str]] = {}
        checked = 0
        for step, value in steps:
            before = len(calls.made)
            calls.take_step(step, value)
            held = {call.caller for call in calls.working}
            await settle()
            for call in calls.started[checked:]:
                for other, starts in since.items():
                    # A call whose own caller has a slot waits for that, not for others.
                    if other is not call and not other.is_over and other.caller not in held:
                        starts[call.caller] += 1
                since.pop(call, None)
            checked = len(calls.started)
            for call in calls.made[before:]:
                if call in calls.waiting:
                    ahead[call] = sum(one.caller == call.caller for one in calls.waiting) - 1
                    since[call] = Counter()
            working = [call.caller for call in calls.working]
            assert len(working) == len(set(working)) <= SLOTS
            if len(working) < SLOTS:
                assert all(call.caller in working for call in calls.waiting)
            for call in calls.waiting:
                others = {name: count for name, count in since[call].items() if name != call.caller}
                assert not others or max(others.values()) <= ahead[call] + 1
        check_order(calls)
        await calls.end_all()
        # All slots are free again.
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*(turns.begin(str(slot)) for slot in range(SLOTS)))

    asyncio.run(check())


@pytest.mark.clause("8.57")
async def test_work_starts_some_turns_of_the_event_loop_after_the_work_before_it() -> None:
    share, turns, starts = FairShare(), 0, list[int]()

    async def work() -> None:
        async with share.take_turn("a"):
            starts.append(turns)

    tasks = [asyncio.create_task(work()) for _ in range(4)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        turns += 1
    gaps = [later - earlier for earlier, later in zip([0, *starts], starts, strict=False)]
    assert min(gaps) >= TURNS_BEFORE_WORK - 1


ONE, OTHER = "192.0.2.1", "198.51.100.1"
KEY, OTHER_KEY = "Bearer ek_live", "Bearer ek_other"


@dataclass
class Doorway:
    """The middleware before an app that notes what starts and ends when it is told to."""

    timers: ManualTimers = field(default_factory=ManualTimers)
    started: list[str] = field(default_factory=list)
    live_keys: set[str] = field(default_factory=lambda: {KEY})

    def __post_init__(self) -> None:
        share = FairShare(clock=self.timers.clock, call_later=self.timers.call_later)
        self._middleware = KeysFirstMiddleware(self._app, share)
        self._tasks: list[asyncio.Task[None]] = []

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.started.append(scope["path"])
        key = dict(scope["headers"]).get(b"authorization", b"").decode()
        scope[IS_KEY_LIVE] = key in self.live_keys

    async def send(self, path: str, client: str = ONE, key: str = "") -> dict[str, Any]:
        """Send a request, and let it go as far as it can."""
        scope: dict[str, Any] = {
            "type": "http",
            "path": path,
            "client": (client, 1),
            "headers": [(b"authorization", key.encode())] if key else [],
        }

        async def pass_on() -> None:
            await self._middleware(scope, None, None)

        self._tasks.append(asyncio.create_task(pass_on()))
        await settle()
        return scope

    async def pause(self) -> None:
        """Let the pause after the work that started last go by."""
        self.timers.move(STRANGER_PAUSE_S)
        await settle()

    async def end(self) -> None:
        while not all(task.done() for task in self._tasks):
            await self.pause()
        await asyncio.gather(*self._tasks)


@pytest.fixture
async def doorway() -> AsyncIterator[Doorway]:
    """A doorway that a live key has just passed twice."""
    doorway = Doorway()
    for _ in range(2):
        await doorway.send("/key", key=KEY)
    doorway.started.clear()
    yield doorway
    await doorway.end()


@pytest.mark.clause("8.59")
async def test_requests_need_no_pause_while_no_live_key_makes_calls() -> None:
    doorway = Doorway()
    for path in ("/1", "/2", "/3"):
        await doorway.send(path)
    assert (doorway.started, doorway.timers.timers) == (["/1", "/2", "/3"], [])


# Requests in their order, each with its client or key, and seconds that go by in between.
ARRIVALS: dict[str, tuple[list[str | float], list[str]]] = {
    "one after another": (["/1", "/2", "/3"], ["/1"]),
    "the next after a pause": (["/1", "/2", "/3", STRANGER_PAUSE_S], ["/1", "/2"]),
    "each after its pause": (["/1", "/2", STRANGER_PAUSE_S, STRANGER_PAUSE_S], ["/1", "/2"]),
    "at once after a pause": (["/1", STRANGER_PAUSE_S, "/2"], ["/1", "/2"]),
    "no pause a second after the last call of a live key": (
        ["/1", "/2", PAUSES_END_S, "/3", "/4"],
        ["/1", "/2", "/3", "/4"],
    ),
    "a key that was live waits for nobody": (["/1", "/2", f"/known {KEY}"], ["/1", "/known"]),
    "a key that was refused waits": ([f"/first {OTHER_KEY}", f"/again {OTHER_KEY}"], ["/first"]),
}


@pytest.mark.clause("8.59")
@pytest.mark.parametrize(("arrivals", "started"), ARRIVALS.values(), ids=ARRIVALS)
@pytest.mark.sampled(1)
async def test_requests_without_a_live_key_start_one_after_another_with_pauses(
    doorway: Doorway, arrivals: list[str | float], started: list[str]
) -> None:
    for arrival in arrivals:
        if isinstance(arrival, str):
            path, _, key = arrival.partition(" ")
            await doorway.send(path, key=key)
        else:
            doorway.timers.move(arrival)
            await settle()
    assert doorway.started == started


@pytest.mark.clause("8.59")
@pytest.mark.parametrize(
    ("others", "latest"), [([("/other", OTHER)], 2), ([("/readyz", ONE), ("/healthz", ONE)], 3)]
)
async def test_a_network_with_many_requests_delays_another_and_each_health_check_by_one_turn(
    doorway: Doorway, others: list[tuple[str, str]], latest: int
) -> None:
    for path, client in [("/1", ONE), ("/2", ONE), ("/3", ONE), *others]:
        await doorway.send(path, client)
    await doorway.end()
    assert all(doorway.started.index(path) <= latest for path, _ in others)


@pytest.mark.clause("8.59")
async def test_health_checks_of_a_network_delay_those_of_another_by_one_turn(
    doorway: Doorway,
) -> None:
    for _ in range(4):
        await doorway.send("/readyz")
    scope = await doorway.send("/readyz", OTHER)
    for _ in range(2):
        await doorway.pause()
    assert IS_KEY_LIVE in scope


@pytest.mark.clause("8.59")
@pytest.mark.prove
async def test_the_keys_used_last_are_remembered(doorway: Doorway) -> None:
    keys = [f"Bearer {number}" for number in range(MAX_LIVE_KEYS + 1)]
    doorway.live_keys.update(keys)
    # The first is used again in between, so the second is forgotten.
    for key in (*keys[:-1], keys[0], keys[-1]):
        await doorway.send("/known", key=key)
        await doorway.pause()
    doorway.started.clear()
    await doorway.send("/stranger")
    await doorway.send("/first", key=keys[0])
    await doorway.send("/second", key=keys[1])
    assert doorway.started == ["/stranger", "/first"]


@pytest.mark.clause("8.59")
async def test_a_client_that_leaves_the_line_is_not_served(doorway: Doorway) -> None:
    # One that leaves during its request does not end that.
    assert (await doorway.send("/1"))[ON_DISCONNECT_KEY] is None
    scope = await doorway.send("/2")
    await doorway.send("/3")
    scope[ON_DISCONNECT_KEY]()
    await doorway.end()
    assert doorway.started == ["/1", "/3"]


@pytest.mark.clause("8.54")
async def test_a_response_that_no_cache_has_waits_for_a_turn_and_usage_does_not(
    home: StoreHome, transport: Transport
) -> None:
    share = FairShare()
    address = Path(home.address) if isinstance(home, SqliteHome) else home.address
    async with run_service(address, make_coverage(), fair_share=share) as served:
        assert (await call_tool(served, transport, FLIPS, served.key_headers)).status == 200
        async with share.take_turn("a"), share.take_turn("b"):
            waiting = asyncio.create_task(call_tool(served, transport, FLIPS, served.key_headers))
            for _ in range(3):
                assert (await call_tool(served, transport, USAGE, served.key_headers)).status == 200
            assert not waiting.done()
        assert (await waiting).status == 200


@pytest.fixture
async def paused(home: StoreHome) -> AsyncIterator[tuple[RunningService, ManualTimers]]:
    """A service in which no pause ends by itself."""
    timers = ManualTimers()
    address = Path(home.address) if isinstance(home, SqliteHome) else home.address
    share = FairShare(clock=timers.clock, call_later=timers.call_later)
    async with run_service(address, make_coverage(), fair_share=share) as served:
        yield served, timers


@pytest.mark.clause("8.59")
async def test_a_counted_call_makes_its_key_one_that_waits_for_nobody(
    paused: tuple[RunningService, ManualTimers], transport: Transport
) -> None:
    served, timers = paused
    for ticker in ("BTC", "ETH"):
        answer = await call_tool(served, transport, STATE, served.key_headers, ticker=ticker)
        assert answer.status == 200
    assert (await served.client.get("/feed")).status_code == 200
    # Nothing ends the pause after this page, so the next one waits for good.
    waiting = asyncio.create_task(served.client.get("/feed"))
    async with asyncio.timeout(DEADLINE_S):
        assert (await call_tool(served, transport, STATE, served.key_headers)).status == 200
    assert not waiting.done()
    while not waiting.done():
        timers.move(STRANGER_PAUSE_S)
        await asyncio.sleep(0)
    assert waiting.result().status_code == 200


@pytest.mark.clause("8.59")
async def test_a_revoked_key_waits_as_a_stranger(
    paused: tuple[RunningService, ManualTimers], transport: Transport
) -> None:
    served, timers = paused
    revoked = {"Authorization": f"Bearer {await served.keys.create('revoked')}"}
    assert (await call_tool(served, transport, STATE, revoked)).status == 200
    await served.keys.revoke((await served.keys.list())[-1].id)
    # The address for OAuth refuses before anything is counted.
    address, status = ("/mcp", 401) if transport == "mcp" else ("/api/v1/state", 403)
    await fetch(served.client, "POST" if status == 401 else "GET", address, status, headers=revoked)
    timers.move(PAUSES_END_S)
    for _ in range(2):
        assert (await call_tool(served, transport, STATE, served.key_headers)).status == 200
    assert (await served.client.get("/feed")).status_code == 200
    waiting = asyncio.create_task(call_tool(served, transport, STATE, revoked))
    # More than one call, because the refusal would take as long as one.
    async with asyncio.timeout(DEADLINE_S):
        for _ in range(5):
            assert (await call_tool(served, transport, STATE, served.key_headers)).status == 200
    assert not waiting.done()
    while not waiting.done():
        timers.move(STRANGER_PAUSE_S)
        await asyncio.sleep(0)
    assert waiting.result().status == 403


# Arguments of the calls that the store holds back, no two alike.
HELD_CALLS = [
    {"detail": "changes", "ticker": ",".join(tickers), "timeframe": timeframe}
    for timeframe in TIMEFRAMES
    for count in (2, 3)
    for tickers in combinations([asset.ticker for asset in ASSETS], count)
]


class HeldMarket(GatedMarket):
    """Holds back the closes of calls with `detail` until they are released."""

    def __init__(self, engine: MarketEngine) -> None:
        super().__init__(engine)
        self.released = asyncio.Event()
        self.past_reads = 0

    async def past_snapshot(self, key: PastKey, readings: Readings) -> StoredSnapshot:
        self.past_reads += 1
        return await super().past_snapshot(key, readings)

    async def closes(self, closed_at: Mapping[int, Iterable[str]]) -> dict[str, float]:
        await self.released.wait()
        return await super().closes(closed_at)


@dataclass
class Contested:
    """A service, one key that makes many calls at a time, and the key of another client."""

    served: RunningService
    market: HeldMarket
    share: FairShare
    timers: ManualTimers
    transport: Transport
    greedy_key: str
    outcomes: list[str]
    tasks: list["asyncio.Task[Called]"] = field(default_factory=list)

    async def call(self, tool: str, api_key: str | None = None, **arguments: Any) -> Called:
        headers = {"Authorization": f"Bearer {api_key or self.served.api_key}"}
        return await call_tool(self.served, self.transport, tool, headers, **arguments)

    async def hold(self, calls: int) -> None:
        """Make calls of the greedy key that are held back, no two alike."""
        for _ in range(calls):
            made = self.call(STATE, self.greedy_key, **HELD_CALLS[len(self.tasks)])
            self.tasks.append(asyncio.create_task(made))
        at_a_time = min(len(self.tasks), MAX_CALLS)
        await self.wait_for(at_a_time, len(self.tasks) - at_a_time)

    async def wait_for(self, in_progress: int, waiting: int, caller: Any = None) -> None:
        """Wait until the greedy key, or another caller, has so many calls: none, one or all."""
        caller = caller or hash_key(self.greedy_key)
        async with asyncio.timeout(DEADLINE_S):
            while self.count_calls(caller) != (in_progress, waiting):
                await asyncio.sleep(0)

    def count_calls(self, caller: Any) -> tuple[int, int]:
        """Return how many calls of a caller are in progress, for one in between, and wait."""
        places = self.share.places.get(caller)
        if places is None:
            return 0, 0
        return MAX_CALLS if not places.free else 1, len(places.line)

    async def release(self) -> list[Called]:
        self.market.released.set()
        return await asyncio.gather(*self.tasks)

    async def count_used(self) -> int:
        """Return how many calls of the greedy key were counted."""
        headers = {"Authorization": f"Bearer {self.greedy_key}"}
        response = await self.served.client.get(f"/api/v1{build_path(USAGE, {})}", headers=headers)
        return int(response.json()["quota"]["used_today"]) - 1


@pytest.fixture
async def contested(
    home: StoreHome, transport: Transport, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Contested]:
    # A call that waits for a place is not refused, however slow the test is.
    monkeypatch.setattr("serving.fair_share.MAX_WAIT_S", DEADLINE_S)
    timers, outcomes = ManualTimers(), list[str]()
    share = FairShare(clock=timers.clock)
    address = Path(home.address) if isinstance(home, SqliteHome) else home.address
    async with run_service(
        address,
        make_coverage(),
        store_class=HeldMarket,
        fair_share=share,
        on_call=lambda tool, outcome, seconds: outcomes.append(outcome),
    ) as served:
        greedy_key = await served.keys.create("greedy")
        try:
            yield Contested(served, served.market, share, timers, transport, greedy_key, outcomes)
        finally:
            served.market.released.set()


@pytest.mark.clause("access", "8.54", "8.55", "8.57")
@pytest.mark.prove
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
    assert await contested.count_used() == MAX_CALLS + 8
    assert not contested.share.places


@pytest.mark.clause("access", "8.52", "8.55", "8.58")
@pytest.mark.prove
async def test_a_call_that_waits_too_long_for_a_place_is_refused_and_not_counted(
    contested: Contested, monkeypatch: pytest.MonkeyPatch
) -> None:
    await contested.hold(MAX_CALLS)
    monkeypatch.setattr("serving.fair_share.MAX_WAIT_S", 0.0)
    refused = await contested.call(STATE, contested.greedy_key, **HELD_CALLS[-1])
    assert (refused.status, refused.code, refused.retry_after_s) == (429, "rate_limited", 1)
    # The quota is not known, because it is looked up when the call is counted.
    assert refused.quota is None
    for words in ("32 are in progress", "was not counted", "retry after 1 second"):
        assert words in refused.message
    assert contested.outcomes == ["too_many_calls"]
    await contested.release()
    assert await contested.count_used() == MAX_CALLS


@pytest.mark.clause("access", "8.55")
async def test_a_client_that_disconnects_leaves_the_line_uncounted(contested: Contested) -> None:
    await contested.hold(MAX_CALLS)
    _, writer = await send_alone(contested, STATE, HELD_CALLS[-1])
    await contested.wait_for(MAX_CALLS, 1)
    writer.close()
    await contested.wait_for(MAX_CALLS, 0)
    await contested.release()
    assert await contested.count_used() == MAX_CALLS
    assert not contested.share.places


@pytest.mark.clause("access", "8.54")
@pytest.mark.prove
async def test_a_client_that_disconnects_while_its_call_is_in_progress_frees_the_place(
    contested: Contested,
) -> None:
    _, writer = await send_alone(contested, STATE, HELD_CALLS[-1])
    await contested.wait_for(1, 0)
    writer.close()
    await writer.wait_closed()
    contested.market.released.set()
    await contested.wait_for(0, 0)
    assert not contested.share.places


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
        body = json.dumps(build_call(tool, arguments))
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"POST /api/v1/mcp HTTP/1.1\r\n{head}\r\n{body}".encode())
    return reader, writer


@pytest.mark.clause("access", "8.54")
@pytest.mark.prove
async def test_an_unknown_key_is_refused_as_before_and_not_remembered(contested: Contested) -> None:
    refused = await asyncio.gather(
        *(contested.call(STATE, generate_key()) for _ in range(MAX_CALLS + 1))
    )
    assert {(one.status, one.code) for one in refused} == {(401, "invalid_key")}
    past = await contested.call(STATE, generate_key(), as_of=format_instant(NOON + 100_000))
    assert past.status == 401
    assert not contested.share.places


@pytest.mark.clause("access", "8.54")
@pytest.mark.prove
async def test_calls_without_a_key_have_places_by_client_address(contested: Contested) -> None:
    contested.market.gated_reads.before = contested.market.released.wait
    made = [asyncio.create_task(contested.call(STATS)) for _ in range(MAX_CALLS)]
    await contested.wait_for(MAX_CALLS, 0, "127.0.0.1")
    made.append(asyncio.create_task(contested.call(CATALOG, ticker="BTC")))
    await contested.wait_for(MAX_CALLS, 1, "127.0.0.1")
    assert (await contested.call(STATE)).status == 200
    contested.market.released.set()
    assert {one.status for one in await asyncio.gather(*made)} == {200}


@pytest.mark.clause("8.56")
async def test_a_repeated_call_with_as_of_reads_nothing_again_until_the_next_run(
    contested: Contested,
) -> None:
    past = {"ticker": "BTC", "as_of": format_instant(NOON + 100_000)}
    answers = [await contested.call(STATE, **past) for _ in range(2)]
    assert [one.status for one in answers] == [200, 200]
    assert contested.market.past_reads == 1
    await contested.call(STATE, ticker="BTC", as_of=format_instant(NOON + 100_001))
    assert contested.market.past_reads == 2
