"""The memory of a serving process grows neither with hours nor with calls."""

import asyncio
import gc
import tracemalloc
from itertools import product

import httpx
import pytest

from mcp_server.tools.registry import TOOLS
from schemas.vocabulary import format_instant
from tests.service.commands.test_serve import HOUR_MS, MovedClock, served_here, stored
from tests.support.signals_command import run_signals

pytestmark = pytest.mark.clause("operation")

# After this many hours the bounded caches of sessions are full.
WARM_H = 12
HOURS = 24
CALLS_AN_HOUR = 5
GROWTH_BYTES = 150_000
ARGUMENTS = {
    "signals_get_state": [{}, {"ticker": "BTC"}],
    "signals_get_signals": [{}, {"limit": 9}],
}


@pytest.mark.prove
async def test_memory_does_not_grow_over_a_day_of_runs_and_calls(market):
    made = await asyncio.to_thread(run_signals, market, "keys", "create", "--label", "tests")
    headers = {"X-Api-Key": made.stdout.strip()}
    clock = MovedClock(stored(market)[0] + 60_000)
    async with (
        served_here(market, clock) as (address, _),
        httpx.AsyncClient(headers=headers) as client,
    ):
        tracemalloc.start()
        try:
            held = [await held_after_an_hour(clock, client, address) for _ in range(WARM_H + HOURS)]
        finally:
            tracemalloc.stop()
    assert held[-1] - held[WARM_H - 1] < GROWTH_BYTES, held


async def held_after_an_hour(clock: MovedClock, client: httpx.AsyncClient, address: str) -> int:
    """Return the allocated bytes after an hour was computed and all tools were called."""
    clock.now_ms += HOUR_MS
    await computed(client, address, clock.now_ms)
    for tool, _ in product(TOOLS, range(CALLS_AN_HOUR)):
        for arguments in ARGUMENTS.get(tool.name, [{}]):
            call = {"name": tool.name, "arguments": arguments}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
            answer = await client.post(f"{address}/mcp", json=body)
            assert not answer.raise_for_status().json()["result"]["isError"]
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def computed(client: httpx.AsyncClient, address: str, now_ms: int) -> None:
    """Wait for the run of the hour that contains a time."""
    due = format_instant(now_ms // HOUR_MS * HOUR_MS + 180_000)
    async with asyncio.timeout(30):
        while True:
            state = await client.get(f"{address}/state")
            if state.raise_for_status().json()["meta"]["as_of"] >= due:
                return
            await asyncio.sleep(0.02)
