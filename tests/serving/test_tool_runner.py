"""Responses are rendered once per version, and again when their freshness fields change."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from access.keys import QuotaGuard
from mcp_server.tools.registry import TOOLS_BY_NAME
from schemas.vocabulary import format_instant
from serving.context import Context
from serving.response_cache import ResponseBody
from serving.snapshot_cache import SnapshotCache
from serving.tool_runner import ToolRunner
from store.opening import open_sqlite_market
from store.sql.market_store import MarketStore
from tests.support.example_market import (
    HOUR_MS,
    NOON,
    make_batch,
    make_change,
    make_coverage,
    seed_market,
)
from tests.support.running_service import ManualClock, OperatorKeys, open_stores

pytestmark = pytest.mark.clause("fresh")

NEWEST, LATER = format_instant(NOON + 50_000), format_instant(NOON + 50_001)


@dataclass
class Answering:
    """A runner on a seeded store, with a settable clock and two live keys."""

    calls: ToolRunner
    store: MarketStore
    clock: ManualClock
    mine: str
    theirs: str

    async def respond(
        self, tool: str, api_key: str | None = None, **arguments: Any
    ) -> ResponseBody:
        chosen = TOOLS_BY_NAME[tool]
        fields = {b"x-api-key": (api_key or self.mine).encode()}
        return (await self.calls.run(chosen, fields, lambda: arguments)).response

    async def answer(self, tool: str, api_key: str | None = None, **arguments: Any) -> Any:
        return json.loads((await self.respond(tool, api_key, **arguments)).text)


@pytest.fixture
async def answering(tmp_path: Path) -> AsyncIterator[Answering]:
    clock = ManualClock()
    async with open_stores(tmp_path) as (_, access):
        market = await open_sqlite_market(tmp_path / "market.db")
        try:
            await seed_market(market, make_coverage())
            keys = OperatorKeys(access, clock)
            quota_guard = QuotaGuard(access, clock, mode=None, daily_limit=100)
            context = Context(
                SnapshotCache(market), "http://x", "http://x/api/v1", clock, None, 100
            )
            calls = ToolRunner(quota_guard, context)
            mine, theirs = await keys.create("mine"), await keys.create("theirs")
            yield Answering(calls, market, clock, mine, theirs)
        finally:
            await market.close()


async def test_equal_arguments_give_one_page_a_version(answering: Answering):
    first = await answering.answer("signals_get_signals", limit=5)
    again = await answering.answer("signals_get_signals", limit=5)
    defaults = await answering.answer("signals_get_signals", limit=5, offset=0, tier="universe")
    assert first == again == defaults
    later = NOON + HOUR_MS
    row = make_change(later, "BTC", "enzo", "1h", 0, 1)
    await answering.store.commit(make_batch(later, [row]))
    assert (await answering.answer("signals_get_signals", limit=5))["signals"][0]["id"] == row.id


@pytest.mark.parametrize(
    ("tool", "arguments", "same"),
    [
        ("signals_get_state", {"ticker": "BTC"}, {"ticker": "BTC", "timeframe": None}),
        # Pollers that send another `since` get the same page if no row lies between the two.
        (
            "signals_get_signals",
            {"limit": 5, "since": "2026-01-02"},
            {"limit": 5, "since": "2026-01-01"},
        ),
        ("signals_get_signals", {"since": NEWEST}, {"since": LATER}),
        (
            "signals_get_signals",
            {"order": "oldest", "since": "2026-01-02"},
            {"order": "oldest", "since": "2026-01-01"},
        ),
        ("signals_get_signals", {"limit": 2, "order": "oldest"}, {"limit": 2, "order": "oldest"}),
        ("signals_get_signals", {"limit": 2, "offset": 1}, {"offset": 1, "limit": 2}),
    ],
)
async def test_a_call_with_a_cached_response_renders_nothing(
    answering: Answering, tool: str, arguments: dict[str, Any], same: dict[str, Any]
):
    first = await answering.respond(tool, **arguments)
    assert await answering.respond(tool, **arguments) is first
    assert await answering.respond(tool, **same) is first
    await answering.store.commit(make_batch(NOON + HOUR_MS, []))
    assert await answering.respond(tool, **arguments) is not first


async def test_a_cached_response_becomes_stale_as_time_passes(
    answering: Answering,
):
    overdue = NOON + HOUR_MS + 600_000
    for tool in ("signals_get_state", "signals_get_signals", "signals_get_confluence"):
        answering.clock.now = NOON + 200_000
        assert (await answering.answer(tool))["meta"].get("stale", False) is False
        answering.clock.now = overdue
        assert (await answering.answer(tool))["meta"].get("stale", False) is False
        answering.clock.now = overdue + 1
        assert (await answering.answer(tool))["meta"].get("stale", False) is True


async def test_the_next_update_is_rendered_again_as_time_passes(answering: Answering):
    reported = []
    for now in (NOON + 60_000, NOON + 180_000, NOON + HOUR_MS):  # ETH is late at NOON.
        answering.clock.now = now
        reported.append(
            (await answering.answer("signals_get_state"))["meta"].get("nothing_new_before")
        )
    assert reported == [None, "2026-09-30T13:03:00.000Z", None]


async def test_no_cached_response_has_the_label_of_a_key(answering: Answering):
    usages = [
        await answering.answer("signals_get_usage", key)
        for key in (answering.mine, answering.theirs, answering.mine)
    ]
    assert [usage["key"]["label"] for usage in usages] == ["mine", "theirs", "mine"]
    for tool in ("signals_get_state", "signals_get_signals", "signals_get_flips"):
        own = await answering.answer(tool, answering.mine)
        assert own == await answering.answer(tool, answering.theirs)
        assert "mine" not in json.dumps(own)


async def test_a_window_that_ends_now_is_never_cached(answering: Answering):
    first = await answering.answer("signals_get_flips", timeframe="1h")
    answering.clock.now += 1000
    assert (await answering.answer("signals_get_flips", timeframe="1h"))["as_of"] > first["as_of"]


async def test_concurrent_calls_get_the_same_response(answering: Answering):
    answers = await asyncio.gather(
        *(answering.answer("signals_get_signals", limit=5) for _ in range(20))
    )
    assert all(answer == answers[0] for answer in answers)
