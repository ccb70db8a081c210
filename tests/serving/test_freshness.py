import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from access.keys_and_quota import QuotaGuard
from mcp_server.tools.tool_table import TOOLS_BY_NAME
from schemas.result import Freshness
from schemas.vocabulary import format_instant
from serving.context import Context
from serving.freshness import build_freshness, find_expiry, find_next_run
from serving.response_cache import ResponseBody
from serving.snapshot import build_snapshot
from serving.snapshot_cache import SnapshotCache
from serving.tool_runner import ToolRunner
from store.market_rows import StoredSnapshot
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

READINGS = {"MATIC": {"enzo": {"1d": 1}}}


def delayed(published, delay_s):
    first, *rest = published.assets
    assets = (first.model_copy(update={"delay_s": delay_s}), *rest)
    return published.model_copy(update={"assets": assets})


def meta(
    market_time=NOON,
    now=NOON,
    source="simulated",
    recorded_until=None,
    late=MappingProxyType({}),
    timeframe=None,
    delay_s=0,
):
    published = delayed(make_coverage(source, recorded_until), delay_s)
    snapshot = StoredSnapshot(published, market_time, market_time, READINGS, late)
    # All fields, also those that are absent from a response.
    return dict(Freshness(**build_freshness(build_snapshot(snapshot), now, timeframe=timeframe)))


@pytest.mark.parametrize(
    ("timeframe", "market_time", "expected"),
    [
        ("1h", NOON, "2026-09-30T13:03:00.000Z"),
        ("1h", NOON - 1, "2026-09-30T12:03:00.000Z"),
        ("1h", NOON + 120_000, "2026-09-30T13:03:00.000Z"),
        ("4h", NOON, "2026-09-30T16:03:00.000Z"),
        ("4h", NOON - HOUR_MS, "2026-09-30T12:03:00.000Z"),
        ("1d", NOON, "2026-10-01T00:03:00.000Z"),
    ],
)
def test_the_next_run_is_the_next_minute_three_of_the_timeframe(timeframe, market_time, expected):
    assert format_instant(find_next_run(timeframe, market_time)) == expected


def test_simulated_data_say_so():
    answer = meta()
    assert (answer["source"], answer["simulated"], answer["note"]) == ("simulated", True, None)
    assert Freshness(**answer).page_note == "Simulated market data: no price is real."


OVERDUE = NOON + HOUR_MS + 600_000
AHEAD = NOON - 60_000
AT_ONE, AT_FOUR = "2026-09-30T13:03:00.000Z", "2026-09-30T16:03:00.000Z"
LATE, DELAYED = {"late": {"ETH": ("1d",)}}, {"delay_s": 900}
FINISHED = {"source": "recorded", "recorded_until": NOON}
RECORDING = {"source": "recorded", "recorded_until": NOON + HOUR_MS}
MIDNIGHT = NOON - 3 * 24 * HOUR_MS - 12 * HOUR_MS - 180_000
RECORDED_NOTE = "Recorded market data, up to 2026-09-30T12:03:00.000Z."


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        # Stale once the next run is overdue beyond the grace, and while it is ahead of the clock.
        ({"source": "live"}, {"stale": False, "note": None}),
        ({"now": OVERDUE}, {"stale": False}),
        ({"now": OVERDUE + 1}, {"stale": True}),
        ({"now": AHEAD - 1, "source": "live"}, {"stale": True, "nothing_new_before": None}),
        ({"now": AHEAD, "source": "live"}, {"stale": False}),
        ({"now": NOON - 90 * 24 * HOUR_MS}, {"stale": True}),
        # A recording may be dated ahead of the clock, and is never stale.
        ({"now": NOON - 999 * HOUR_MS, **FINISHED}, {"stale": False}),
        ({"now": NOON - 999 * HOUR_MS, **RECORDING}, {"stale": False}),
        (
            {"now": NOON + 999 * HOUR_MS, **FINISHED},
            {"next_update": {}, "stale": False, "note": RECORDED_NOTE},
        ),
        (
            RECORDING,
            {"next_update": {"1h": AT_ONE, "4h": AT_FOUR, "1d": "2026-10-01T00:03:00.000Z"}},
        ),
        # An asset counts as removed from its day on.
        ({"market_time": MIDNIGHT - 1}, {"removed_assets": []}),
        ({"market_time": MIDNIGHT}, {"removed_assets": ["MATIC"]}),
        # Nothing new comes before the next run, but at any moment once that is due.
        ({}, {"nothing_new_before": AT_ONE, "most_delay_seconds": 0}),
        ({"timeframe": "4h"}, {"nothing_new_before": AT_FOUR}),
        ({"timeframe": "1d"}, {"nothing_new_before": "2026-10-01T00:03:00.000Z"}),
        ({"now": NOON + HOUR_MS - 1}, {"nothing_new_before": AT_ONE}),
        ({"now": NOON + HOUR_MS}, {"nothing_new_before": None}),
        ({"now": NOON + HOUR_MS + 700_000, "timeframe": "1d"}, {"nothing_new_before": None}),
        (FINISHED, {"nothing_new_before": None}),
        # Late assets are tried again for three minutes, and delayed bars come after their delay.
        (
            {"now": NOON + 179_999, **LATE},
            {"nothing_new_before": None, "late_assets": {"ETH": ["1d"]}},
        ),
        ({"now": NOON + 180_000, **LATE}, {"nothing_new_before": AT_ONE}),
        (
            DELAYED,
            {"nothing_new_before": "2026-09-30T12:18:00.000Z", "most_delay_seconds": 900},
        ),
        ({"now": NOON + 900_000, **DELAYED}, {"nothing_new_before": None}),
        ({"now": NOON + 1_079_999, **DELAYED}, {"nothing_new_before": None}),
        ({"now": NOON + 1_080_000, **DELAYED}, {"nothing_new_before": AT_ONE}),
    ],
)
def test_meta_says_whether_data_are_stale_and_when_new_ones_come(given, expected):
    answer = meta(**given)
    assert {name: answer[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("now", "reason", "other"),
    [(OVERDUE + 1, "overdue", "future"), (AHEAD - 1, "as_of is in the future", "overdue")],
)
def test_the_note_says_why_data_are_stale(now, reason, other):
    note = meta(now=now, source="live")["note"]
    assert ("Stale" in note, reason in note, other in note) == (True, True, False)


def test_a_response_that_is_stale_because_it_is_ahead_expires_when_it_no_longer_is():
    snapshot = build_snapshot(StoredSnapshot(make_coverage("live"), NOON, NOON, READINGS, ()))
    assert find_expiry(snapshot, NOON - 999 * HOUR_MS) == NOON - 60_000


def test_the_note_counts_assets_with_a_proxy():
    published = make_coverage("live")
    assets = [
        asset.model_copy(update={"listing": f"binance {asset.ticker}/USDT:USDT"})
        for asset in published.assets
    ]
    board = build_snapshot(
        StoredSnapshot(published.model_copy(update={"assets": tuple(assets)}), NOON, NOON, READINGS)
    )
    stocks = sorted(a.ticker for a in published.tracked if a.asset_class != "crypto")
    assert sorted(board.coverage.stand_ins) == stocks
    note = build_freshness(board, NOON)["note"]
    assert note.startswith(f"{len(stocks)} stocks or metals ({stocks[0]}, ")
    assert "use the bars of a perpetual as a proxy" in note
    assert build_freshness(board, NOON, tickers=["BTC"])["note"] is None
    assert build_freshness(board, NOON, tickers=[stocks[0]])["note"].startswith(
        f"{stocks[0]} uses the bars of a perpetual as a proxy"
    )


def test_a_field_at_its_usual_value_is_absent():
    fields = build_freshness(
        build_snapshot(StoredSnapshot(make_coverage("live"), NOON, NOON, READINGS)), NOON
    )
    answer = Freshness(**fields | {"removed_assets": []}).model_dump()
    assert set(answer) == {"source", "as_of", "next_update", "nothing_new_before"}


def test_lists_have_only_the_assets_of_the_result():
    stored = StoredSnapshot(make_coverage(), NOON, NOON, READINGS, {"ETH": ("1d",), "BTC": ("4h",)})
    fields = build_freshness(build_snapshot(stored), NOON, timeframe="4h", tickers={"BTC"})
    assert (fields["late_assets"], fields["removed_assets"]) == ({"BTC": ["4h"]}, [])


@pytest.mark.parametrize(("source", "has_past"), [("simulated", True), ("live", False)])
def test_incomplete_history_is_not_served(source, has_past):
    published = make_coverage(source).model_copy(update={"served_from": NOON})
    earlier = StoredSnapshot(published, NOON - HOUR_MS, NOON, READINGS)
    assert build_snapshot(earlier) is None
    assert (build_snapshot(earlier, is_past=True) is not None) is has_past
    assert build_snapshot(StoredSnapshot(published, NOON, NOON, READINGS)) is not None


@pytest.mark.parametrize("delay_s", [0, 900])
@pytest.mark.parametrize("late", [{}, {"ETH": ("1d",)}])
@pytest.mark.parametrize("timeframe", [None, "1h", "4h", "1d"])
@pytest.mark.parametrize("market_time", [NOON, NOON + 3 * HOUR_MS, NOON + 11 * HOUR_MS])
def test_freshness_changes_only_at_its_expiry_times(late, timeframe, market_time, delay_s):
    published = delayed(make_coverage(), delay_s)
    snapshot = StoredSnapshot(published, market_time, market_time, READINGS, late)
    board, now = build_snapshot(snapshot), market_time
    given = {"late": late, "timeframe": timeframe, "delay_s": delay_s}
    while (then := find_expiry(board, now)) is not None:
        said = meta(market_time, now, **given)
        assert meta(market_time, then - 1, **given) == said
        now = then
    said = meta(market_time, now, **given)
    assert said["stale"] is True
    assert meta(market_time, now + 10**9, **given) == said


def test_there_is_no_snapshot_before_the_first_compute():
    assert build_snapshot(StoredSnapshot(make_coverage(), None, 0, {})) is None
    assert build_snapshot(StoredSnapshot(None, NOON, 0, {})) is None


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
        fields = {b"x-api-key": (api_key or self.mine).encode()}
        return (await self.calls.run(TOOLS_BY_NAME[tool], fields, lambda: arguments)).response

    async def answer(self, tool: str, api_key: str | None = None, **arguments: Any) -> Any:
        return json.loads((await self.respond(tool, api_key, **arguments)).text)


@pytest.fixture
async def answering(tmp_path: Path) -> AsyncIterator[Answering]:
    clock = ManualClock()
    async with open_stores(tmp_path) as (market, access):
        await seed_market(market, make_coverage())
        keys = OperatorKeys(access, clock)
        quota_guard = QuotaGuard(access, clock, mode=None, daily_limit=100)
        context = Context(SnapshotCache(market), "http://x", "http://x/api/v1", clock, None, 100)
        calls = ToolRunner(quota_guard, context)
        mine, theirs = await keys.create("mine"), await keys.create("theirs")
        yield Answering(calls, market, clock, mine, theirs)


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
        for now, is_stale in ((NOON + 200_000, False), (overdue, False), (overdue + 1, True)):
            answering.clock.now = now
            assert (await answering.answer(tool))["meta"].get("stale", False) is is_stale


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
