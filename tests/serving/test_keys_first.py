"""Who waits for a turn to start: requests in order, one network after another, never live keys."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from serving.fair_share import PAUSES_END_S, STRANGER_PAUSE_S, FairShare
from serving.http import IS_KEY_LIVE, ON_DISCONNECT_KEY
from serving.keys_first import MAX_LIVE_KEYS, KeysFirstMiddleware
from tests.access.test_quota_transports import call
from tests.serving.test_fair_share import ManualTimers
from tests.support.bad_inputs import STATE
from tests.support.example_market import make_coverage
from tests.support.running_service import RunningService, Transport, run_service
from tests.support.store_homes import DEADLINE_S, SqliteHome, StoreHome

pytestmark = pytest.mark.clause("8.59")

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
            await self._middleware(scope, None, None)  # type: ignore[arg-type]

        self._tasks.append(asyncio.create_task(pass_on()))
        await self.settle()
        return scope

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)

    async def pause(self) -> None:
        """Let the pause after the work that started last go by."""
        self.timers.move(STRANGER_PAUSE_S)
        await self.settle()

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


async def test_requests_need_no_pause_while_no_live_key_makes_calls() -> None:
    doorway = Doorway()
    for path in ("/1", "/2", "/3"):
        await doorway.send(path)
    assert doorway.started == ["/1", "/2", "/3"]
    assert doorway.timers.timers == []


async def test_the_pauses_end_a_second_after_the_last_call_of_a_live_key(doorway: Doorway) -> None:
    await doorway.send("/1")
    await doorway.send("/2")
    assert doorway.started == ["/1"]
    doorway.timers.move(PAUSES_END_S)
    for path in ("/3", "/4"):
        await doorway.send(path)
    assert doorway.started == ["/1", "/2", "/3", "/4"]


async def test_requests_without_a_key_start_one_after_another(doorway: Doorway) -> None:
    for path in ("/1", "/2", "/3"):
        await doorway.send(path)
    assert doorway.started == ["/1"]
    await doorway.pause()
    assert doorway.started == ["/1", "/2"]
    await doorway.pause()
    assert doorway.started == ["/1", "/2", "/3"]


async def test_a_request_after_a_pause_starts_at_once(doorway: Doorway) -> None:
    await doorway.send("/1")
    await doorway.pause()
    await doorway.send("/2")
    assert doorway.started == ["/1", "/2"]


async def test_a_network_with_many_requests_delays_another_by_one_turn(doorway: Doorway) -> None:
    for path in ("/1", "/2", "/3"):
        await doorway.send(path)
    await doorway.send("/other", OTHER)
    await doorway.end()
    assert doorway.started.index("/other") <= 2


async def test_a_health_check_takes_turns_with_the_network_it_comes_from(doorway: Doorway) -> None:
    for path in ("/1", "/2", "/3", "/readyz", "/healthz"):
        await doorway.send(path)
    await doorway.end()
    assert {"/readyz", "/healthz"} <= set(doorway.started[:4])


async def test_a_key_that_was_live_waits_for_nobody(doorway: Doorway) -> None:
    for path in ("/1", "/2"):
        await doorway.send(path)
    await doorway.send("/known", key=KEY)
    assert doorway.started == ["/1", "/known"]


async def test_a_key_that_was_refused_waits_as_a_stranger(doorway: Doorway) -> None:
    await doorway.send("/first", key=OTHER_KEY)
    await doorway.send("/again", key=OTHER_KEY)
    assert doorway.started == ["/first"]


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


async def test_a_client_that_leaves_the_line_is_not_served(doorway: Doorway) -> None:
    await doorway.send("/1")
    scope = await doorway.send("/2")
    await doorway.send("/3")
    scope[ON_DISCONNECT_KEY]()
    await doorway.end()
    assert doorway.started == ["/1", "/3"]


async def test_a_client_that_leaves_during_its_request_does_not_end_it(doorway: Doorway) -> None:
    scope = await doorway.send("/1")
    assert scope[ON_DISCONNECT_KEY] is None


@dataclass
class Contested:
    """A service in which no pause ends by itself."""

    served: RunningService
    timers: ManualTimers


@pytest.fixture
async def contested(home: StoreHome) -> AsyncIterator[Contested]:
    timers = ManualTimers()
    address = Path(home.address) if isinstance(home, SqliteHome) else home.address
    share = FairShare(clock=timers.clock, call_later=timers.call_later)
    async with run_service(address, make_coverage(), fair_share=share) as served:
        yield Contested(served, timers)


async def test_a_counted_call_makes_its_key_one_that_waits_for_nobody(
    contested: Contested, transport: Transport
) -> None:
    served, timers = contested.served, contested.timers
    for ticker in ("BTC", "ETH"):
        answer = await call(served, transport, STATE, served.key_headers, ticker=ticker)
        assert answer.status == 200
    assert (await served.client.get("/feed")).status_code == 200
    # Nothing ends the pause after this page, so the next one waits for good.
    waiting = asyncio.create_task(served.client.get("/feed"))
    async with asyncio.timeout(DEADLINE_S):
        assert (await call(served, transport, STATE, served.key_headers)).status == 200
    assert not waiting.done()
    while not waiting.done():
        timers.move(STRANGER_PAUSE_S)
        await asyncio.sleep(0)
    assert waiting.result().status_code == 200
