"""Histories of assets that were set aside are built between the runs."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from compute.audit.audit import audit_market
from compute.bars import DAY_S, HOUR_S
from compute.hourly_loop import HourlyLoop
from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.contract import Indicator
from compute.indicators.registry import INDICATORS as ALL_INDICATORS
from compute.universe import Session, Universe
from schemas.vocabulary import ENGINE_KEYS, TIMEFRAMES
from tests.doubles.scripted_source import (
    ALTERNATING,
    AcceleratedClock,
    ClockEnded,
    LateHistory,
    ScriptedSource,
    list_hours,
    list_stepped_closes,
    load_changes,
    march_s,
)
from tests.support.row_builders import list_changes, list_epochs, to_rows
from tests.support.small_market import open_store

pytestmark = pytest.mark.clause("steps")

# Two of them, which take a third of the time: one of them has a legacy key.
INDICATORS = [one for one in ALL_INDICATORS if one.id in ("enzo", "reversals")]
SESSIONS: dict[str, Session] = {"BTC": "24x7", "ETH": "24x7", "NVDA": "XNAS", "XAU": "24x5"}
START = march_s("09:40")
# Two batches of a first start, and longer than the longest warmup of 1h and 4h.
BEGINS = START // DAY_S * DAY_S - 42 * DAY_S
UNTIL = march_s("13:30", day=5)
FAILING = ("ETH", "NVDA")


Content = dict[str, Any]


def script(clock: AcceleratedClock, *tickers: str) -> ScriptedSource:
    """A source that, as live markets, shows nothing from before its first start."""
    sessions = {ticker: SESSIONS[ticker] for ticker in tickers or SESSIONS}
    source = ScriptedSource(clock, sessions, BEGINS)
    source.shown_history_s = 0
    assets = tuple(asset.model_copy(update={"alerts": True}) for asset in source.universe.assets)
    source.universe = Universe(assets=assets, renamed_on=date(2026, 3, 4))
    return source


async def run(
    path: Path,
    source: ScriptedSource,
    clock: AcceleratedClock,
    until: int,
    watched: LateHistory | None = None,
    indicators: Sequence[Indicator] = INDICATORS,
) -> None:
    """Start the loop, and kill it when the clock reaches a time."""
    clock.ends_at = until
    async with open_store(path) as store:
        clock.watch = None if watched is None else partial(watched.record, clock, store)
        opener = partial(HourlyPipeline.open, store, source, source.universe, indicators, clock)
        with suppress(ClockEnded):
            await HourlyLoop(opener, store, clock, clock.sleep).run()


async def load_content(path: Path) -> Content:
    """Return what a store holds, without the times at which its rows were written."""
    async with open_store(path) as store:
        return {
            "readings": await store.readings(),
            "carries": await store.carries(),
            "epochs": sorted(map(repr, await list_epochs(store))),
            "publish_from": await store.publish_from(),
            "bars": [to_rows([block]) for block in await store.bars()],
            "changes": sorted([row[1:] for row in await list_changes(store)], key=repr),
            "alerts": sorted([row[1:] async for row in store.alerts()], key=repr),
        }


async def check_clean(
    path: Path, universe: Universe, indicators: Sequence[Indicator] = INDICATORS
) -> None:
    async with open_store(path) as store:
        assert (await audit_market(store, universe, indicators)).findings == []
        times = [row.created_at for row in await list_changes(store)]
        times += [row.created_at async for row in store.alerts()]
    assert len(times) == len(set(times))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Content:
    path = tmp_path_factory.mktemp("undisturbed") / "m.db"
    clock = AcceleratedClock(START, step_s=60)
    source = script(clock)

    async def load() -> Content:
        await run(path, source, clock, UNTIL)
        return await load_content(path)

    return asyncio.run(load())


@pytest.mark.clause("2.1.18")
@pytest.mark.parametrize(
    "outage_s",
    [2 * HOUR_S, *(pytest.param(n, marks=pytest.mark.prove) for n in (20, 180, 26 * HOUR_S))],
)
@pytest.mark.prove
async def test_a_first_start_with_an_outage_ends_as_one_without(
    tmp_path: Path, undisturbed: Content, outage_s: int
):
    path, clock = tmp_path / "m.db", AcceleratedClock(START, step_s=20)
    source = script(clock)
    source.outages = dict.fromkeys(FAILING, START + outage_s)
    watched = LateHistory()
    await run(path, source, clock, START + outage_s + 600, watched)
    assert (FAILING, ()) in [state[1:] for state in watched.states]
    assert watched.states[-1][1:] == ((), ())
    # All timeframes are there within two minutes after the outage, whatever the hour is.
    assert watched.states[-1][0] <= START + outage_s + 120
    clock.now = max(clock.now, 1000 * START)
    await run(path, source, clock, UNTIL)
    assert await load_content(path) == undisturbed
    await check_clean(path, source.universe)
    rows = await load_changes(path)
    assert [row.created_at for row in rows] == sorted(row.created_at for row in rows)
    late = [row for row in rows if row.ticker in FAILING and row.close_time <= START + outage_s]
    assert all(row.created_at >= 1000 * (START + outage_s) for row in late)
    shown = {row.published for row in late if row.close_time > START and row.before is not None}
    assert shown <= {True}
    assert not [row for row in late if row.close_time <= START and row.published]
    assert {row.indicator for row in late} >= {"dexter"}
    # The carries of alert engines hold their cooldowns, which are compared too.
    assert ENGINE_KEYS["enzo"] in {row.indicator for row in undisturbed["carries"]}


@pytest.mark.prove
async def test_a_first_start_that_is_killed_during_an_outage_ends_as_one_without(
    tmp_path: Path, undisturbed: Content
):
    path, clock = tmp_path / "m.db", AcceleratedClock(START, step_s=20)
    source, over = script(clock), START + 2 * HOUR_S
    source.outages = dict.fromkeys(FAILING, over)
    for killed_at in (START, START + 40, over - HOUR_S, over + 20, over + 40, over + 60, UNTIL):
        await run(path, source, clock, killed_at)
    assert await load_content(path) == undisturbed
    await check_clean(path, source.universe)


class Fetches:
    """Counts the fetches of a source, and fails or hangs those of one asset."""

    def __init__(self, source: ScriptedSource, ticker: str) -> None:
        self.calls: list[tuple[str, int]] = []
        self.error: Exception | None = None
        self.hangs = False
        self.cancelled = 0
        self._ticker = ticker
        source.before_fetch = self._on_fetch

    async def _on_fetch(self, ticker: str, until: int) -> None:
        self.calls.append((ticker, until))
        if ticker != self._ticker:
            return
        if self.error is not None:
            raise self.error
        if self.hangs:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise


async def test_a_first_start_waits_for_no_asset(tmp_path: Path):
    clock = AcceleratedClock(START)
    source = script(clock)
    source.outages["ETH"] = START + HOUR_S
    fetches = Fetches(source, "ETH")
    async with open_store(tmp_path / "m.db") as store:
        runs = await HourlyPipeline.open(store, source, source.universe, ALTERNATING, clock)
        await runs.run_until(runs.due_hour)
        assert (fetches.calls, runs.done_hour) == ([], runs.due_hour)
        async with asyncio.timeout(30):
            while runs.untried_tickers:
                await runs.build_history()
                await asyncio.sleep(0)
        # Coins come first, and none is asked twice.
        assert sorted(ticker for ticker, _ in fetches.calls[:2]) == ["BTC", "ETH"]
        assert sorted(ticker for ticker, _ in fetches.calls) == sorted(SESSIONS)
        assert runs.building_tickers == ("ETH",)
        assert (await store.snapshot()).unbuilt_tickers == ("ETH",)


@pytest.mark.prove
async def test_runs_keep_their_time_while_the_fetch_of_a_history_hangs(tmp_path: Path):
    path, clock = tmp_path / "m.db", AcceleratedClock(START)
    source = script(clock)
    source.outages["ETH"] = START + 60
    fetches = Fetches(source, "ETH")
    await run(path, source, clock, START + 30, indicators=ALTERNATING)
    fetches.hangs = True
    await run(path, source, clock, march_s("13:30"), indicators=ALTERNATING)
    assert fetches.cancelled == 1
    rows = [row for row in await load_changes(path) if row.ticker == "BTC"]
    hours = {row.close_time: row.created_at // 1000 for row in rows if row.close_time > START}
    assert hours == {hour: hour + 180 for hour in list_hours("10:00", "13:00")}
    assert list_stepped_closes(await load_changes(path), "ETH") == []
    fetches.hangs = False
    await run(path, source, clock, march_s("14:30"), indicators=ALTERNATING)
    await check_clean(path, source.universe, ALTERNATING)
    for timeframe in TIMEFRAMES:
        steps = list_stepped_closes(await load_changes(path), "ETH", timeframe)
        assert steps == list_stepped_closes(await load_changes(path), "BTC", timeframe)


@pytest.mark.prove
async def test_an_error_in_the_fetch_of_a_history_costs_that_asset_and_is_logged(tmp_path: Path):
    path, clock = tmp_path / "m.db", AcceleratedClock(START)
    source = script(clock)
    source.outages["ETH"] = START + 60
    fetches = Fetches(source, "ETH")
    await run(path, source, clock, START + 30, indicators=ALTERNATING)
    fetches.error = TypeError("no number")
    with capture_logs() as logs:
        await run(path, source, clock, march_s("11:30"), indicators=ALTERNATING)
    failed = [line for line in logs if line["event"] == "history_fetch_failed"]
    assert [(one["ticker"], one["failure"]) for one in failed] == [("ETH", "TypeError: no number")]
    assert not [line for line in logs if line["event"] == "run_failed"]
    asked = [at for at, (ticker, _) in enumerate(fetches.calls) if ticker == "ETH"]
    assert 60 < len(asked) < 130  # waits grow to a minute, over 110 minutes
    fetches.error = None
    await run(path, source, clock, march_s("11:40"), indicators=ALTERNATING)
    assert list_stepped_closes(await load_changes(path), "ETH")[-1] == march_s("11:00")


async def test_an_asset_that_is_new_to_a_store_is_built_at_once_and_publishes_nothing_older(
    tmp_path: Path,
):
    path, clock = tmp_path / "m.db", AcceleratedClock(START)
    await run(path, script(clock, "BTC"), clock, march_s("13:30"), indicators=ALTERNATING)
    source = script(clock, "BTC", "ETH")
    source.outages["ETH"] = march_s("13:50")
    watched = LateHistory()
    await run(path, source, clock, march_s("13:52"), watched, indicators=ALTERNATING)
    # Nothing is committed for a new asset alone before its first bar.
    assert watched.states[-1][1:] == ((), ())
    rows = await load_changes(path)
    for timeframe in TIMEFRAMES:
        steps = list_stepped_closes(rows, "ETH", timeframe)
        assert steps[-1] == list_stepped_closes(rows, "BTC", timeframe)[-1]
    await run(path, source, clock, march_s("16:30"), indicators=ALTERNATING)
    await check_clean(path, source.universe, ALTERNATING)
    own = [row for row in await load_changes(path) if row.ticker == "ETH"]
    assert {row.close_time for row in own if row.published} == set(list_hours("14:00", "16:00"))


@pytest.mark.parametrize("ratio", [None, 4])
@pytest.mark.prove
async def test_a_catch_up_with_a_failing_venue_ends_as_one_without(
    tmp_path: Path, ratio: int | None
):
    contents = []
    for name, outage_s in (("whole", 0), ("failing", 1800)):
        path, clock = tmp_path / f"{name}.db", AcceleratedClock(START)
        source = script(clock, "BTC", "ETH")
        await run(path, source, clock, march_s("12:30"), indicators=ALTERNATING)
        clock.now = 1000 * march_s("09:40", day=7)
        source.outages["ETH"] = clock.now_s + outage_s
        if ratio is not None:
            source.splits["ETH"] = [(march_s("15:00", day=5), ratio)]
        watched = LateHistory()
        await run(path, source, clock, march_s("12:30", day=7), watched, ALTERNATING)
        # Readings of before the stop are there, so the asset is late.
        assert (("ETH",), ("ETH",)) in [state[1:] for state in watched.states] or not outage_s
        await check_clean(path, source.universe, ALTERNATING)
        contents.append(drop_publication_times(await load_content(path)))
    assert contents[0] == contents[1]


def drop_publication_times(content: Content) -> Content:
    """Return the content without the times from which cooldowns count, when rows were written."""
    engines = set(ENGINE_KEYS.values())
    carries = [
        row._replace(data=row.data[:-72] + row.data[-48:]) if row.indicator in engines else row
        for row in content["carries"]
    ]
    return content | {"carries": carries}
