"""A store that is far behind is served while it catches up, marked stale."""

import asyncio
import threading

import httpx
import pytest

from service.commands import compute_command as computing
from service.commands.compute_command import compute
from service.commands.console import ProgressLog
from tests.service.commands.test_serve import (
    HOUR_MS,
    MovedClock,
    served_here,
    settings_of,
    stored,
    wait_for_output,
)
from tests.support.signals_command import run_signals

pytestmark = pytest.mark.clause("operation", "fresh")

BEHIND_H = 50


@pytest.fixture
def serve_at_once(monkeypatch):
    """Start serving at once if there is a snapshot."""
    monkeypatch.setattr(computing, "MAX_CATCH_UP_WAIT_S", 0.01)


async def key_of(folder) -> dict[str, str]:
    made = await asyncio.to_thread(run_signals, folder, "keys", "create", "--label", "tests")
    return {"X-Api-Key": made.stdout.strip()}


async def until_current(client: httpx.AsyncClient, address: str, headers: dict[str, str]) -> str:
    """Return the as_of of the first response that is not stale."""
    async with asyncio.timeout(30):
        while True:
            answer = await client.get(f"{address}/state", headers=headers)
            meta = answer.raise_for_status().json()["meta"]
            if not meta["stale"]:
                return str(meta["as_of"])
            await asyncio.sleep(0.01)


def in_the_thread_that_steps() -> bool:
    return threading.current_thread() is not threading.main_thread()


@pytest.mark.prove
async def test_responses_are_stale_while_it_catches_up_and_live_after(market, serve_at_once):
    computed, _ = stored(market)
    clock, may_step = MovedClock(computed + BEHIND_H * HOUR_MS + 60_000), threading.Event()
    headers = await key_of(market)

    def on_read() -> None:
        if in_the_thread_that_steps():
            may_step.wait(30)

    clock.on_read = on_read
    async with served_here(market, clock) as (address, _), httpx.AsyncClient() as client:
        try:
            before = await client.get(f"{address}/state", headers=headers)
            kept = stored(market)[0]
        finally:
            may_step.set()
        after = await until_current(client, address, headers)
    assert (kept, before.json()["meta"]["stale"]) == (computed, True)
    assert after > before.json()["meta"]["as_of"]
    assert stored(market)[0] == computed + BEHIND_H * HOUR_MS


async def test_a_catch_up_that_fails_while_serving_is_retried(market, serve_at_once, capsys):
    computed, _ = stored(market)
    clock, may_fail = MovedClock(computed + BEHIND_H * HOUR_MS + 60_000), threading.Event()
    headers = await key_of(market)

    def on_read() -> None:
        if in_the_thread_that_steps() and not may_fail.is_set():
            may_fail.wait(30)
            raise OSError("the disk is gone")

    clock.on_read = on_read
    async with served_here(market, clock) as (address, _), httpx.AsyncClient() as client:
        await wait_for_output(capsys, "Still catching up: ")
        may_fail.set()
        await until_current(client, address, headers)
    assert "run_failed" in capsys.readouterr().out
    assert stored(market)[0] == computed + BEHIND_H * HOUR_MS


async def test_a_catch_up_that_fails_before_serving_ends_the_command(market):
    clock = MovedClock(stored(market)[0] + BEHIND_H * HOUR_MS + 60_000)

    def on_read() -> None:
        if in_the_thread_that_steps():
            raise OSError("the disk is gone")

    clock.on_read = on_read
    with pytest.raises(OSError, match="the disk is gone"):
        await compute(settings_of(market), clock)


def test_progress_lines_estimate_the_remaining_time(capsys):
    clock = MovedClock(0)
    lines = ProgressLog("building history", clock)
    for done, minutes in ((1, 2), (2, 4), (8, 16), (9, 18)):
        clock.now_ms = minutes * 60_000
        lines(done, 9)
    assert capsys.readouterr().err.splitlines() == [
        "building history: 10%, about 16 min left",
        "building history: 20%, about 14 min left",
        "building history: 80%, about 2 min left",
        "building history: 100%",
    ]
