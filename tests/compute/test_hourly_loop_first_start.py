"""The store of a simulated market after its first start, at any time, and after a restart."""

from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from compute.audit.audit import audit_market
from compute.hourly_loop import HourlyLoop
from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.enzo import Enzo
from compute.sources.simulated import (
    MarketStart,
    SimulatedSource,
    compute_origin,
    parse_source_name,
)
from compute.universe import Universe, load_universe
from schemas.vocabulary import DAY_MS, TIMEFRAMES, compute_midnight_s
from service.config.settings import Settings
from service.config.sources import open_source
from store.market_rows import ChangeRow, StoredSnapshot
from store.sqlite.market_store import open_sqlite_market
from tests.doubles.scripted_source import AcceleratedClock, ClockEnded

pytestmark = pytest.mark.clause("sources")

INDICATORS = (Enzo(),)
EVERY_SESSION = (
    "BTC",
    "MATIC",
    "ALT",
    "NVDA",
    "IBM",
    "XAU",
)  # ALT, as ARM, came after the renaming


def only(*tickers: str) -> Universe:
    packaged = load_universe()
    chosen = tuple(packaged.by_ticker[ticker] for ticker in tickers)
    return Universe(assets=chosen, renamed_on=packaged.renamed_on)


def epoch(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def dexter_cells(snapshot: StoredSnapshot) -> set[tuple[str, str]]:
    return {
        (ticker, timeframe)
        for ticker, cells in snapshot.readings.items()
        for timeframe in cells.get("dexter", {})
    }


@pytest.mark.clause("2.1.18", "2.4.8", "3.2.1")
@pytest.mark.parametrize(
    ("start", "tickers"),
    [
        ("2026-11-21T17:22:32", EVERY_SESSION),
        pytest.param("2029-03-01T00:00:00", ("MATIC", "ARM"), marks=pytest.mark.prove),
    ],
)
@pytest.mark.prove
async def test_a_first_start_leaves_the_readings_that_follow_from_its_history(
    tmp_path: Path, start: str, tickers: tuple[str, ...]
):
    universe, clock = only(*tickers), AcceleratedClock(epoch(start))
    store = await open_sqlite_market(tmp_path / "m.db")
    try:
        source = SimulatedSource(universe, compute_origin(clock.now_s), clock)
        runs = await HourlyPipeline.open(store, source, universe, INDICATORS, clock)
        await runs.run_until(runs.due_hour)
        report = await audit_market(store, universe, INDICATORS)
        snapshot, published_from = await store.snapshot(), await store.publish_from()
        rows = [row async for row in store.changes()]
        alerts = [row async for row in store.alerts()]
        carries = await store.carries()
    finally:
        await store.close()
    assert report.findings == []
    for ticker in tickers:
        assert snapshot.readings[ticker]["enzo"].keys() == set(TIMEFRAMES)
    _check_dexter(universe, rows, snapshot)
    _check_removed(universe, rows, snapshot)
    assert max(row.close_time for row in carries if row.ticker == "MATIC") < epoch("2026-09-27")
    assert published_from == dict.fromkeys(sorted(tickers), clock.now - 30 * DAY_MS)
    published = [row.created_at for row in rows if row.published]
    assert clock.now - 30 * DAY_MS <= published[0] < clock.now - 28 * DAY_MS
    assert {row.indicator for row in rows if row.published} == {"enzo"}
    assert {row.ticker for row in alerts} == {"BTC", "NVDA"} & set(tickers)
    assert all(row.close_time * 1000 >= clock.now - 31 * DAY_MS for row in alerts)
    assert all(row.created_at >= clock.now - 30 * DAY_MS for row in alerts)


def _check_dexter(universe: Universe, rows: list[ChangeRow], snapshot: StoredSnapshot) -> None:
    """Compare `dexter` with `enzo` before the renaming, on the assets added before it."""
    renamed_at = compute_midnight_s(universe.renamed_on)
    old = {a.ticker for a in universe.assets if a.added_on < universe.renamed_on}
    enzo = [r for r in rows if r.indicator == "enzo" and r.close_time < renamed_at]
    dexter = [r for r in rows if r.indicator == "dexter"]
    assert [r[1:2] + r[3:9] for r in dexter] == [r[1:2] + r[3:9] for r in enzo if r.ticker in old]
    assert dexter_cells(snapshot) == {(r.ticker, r.timeframe) for r in enzo if r.ticker in old}
    assert dexter_cells(snapshot) == {(t, timeframe) for t in old for timeframe in TIMEFRAMES}
    assert "ARM" not in old


def _check_removed(universe: Universe, rows: list[ChangeRow], snapshot: StoredSnapshot) -> None:
    removed_on = universe.by_ticker["MATIC"].removed_on
    assert removed_on is not None
    own = [row for row in rows if row.ticker == "MATIC"]
    assert max(row.close_time for row in own) < compute_midnight_s(removed_on)
    last = {(row.indicator, row.timeframe): row.after for row in own}
    held = snapshot.readings["MATIC"]
    assert {(key, t): held[key][t] for key in held for t in held[key]} == last
    assert "MATIC" not in snapshot.late


@pytest.mark.clause("14.6")
async def test_a_store_of_an_earlier_version_keeps_its_prices(tmp_path: Path):
    universe, clock = only("NVDA"), AcceleratedClock(epoch("2026-06-10T10:20:00"))
    earlier = SimulatedSource(universe, compute_origin(clock.now_s), clock)
    store = await open_sqlite_market(tmp_path / "m.db")
    try:
        pipeline = await HourlyPipeline.open(store, earlier, universe, INDICATORS, clock)
        await pipeline.run_until(pipeline.due_hour)
        clock.now += 2 * DAY_MS
        async with open_source(Settings(), universe, store, clock) as source:
            assert source.name == earlier.name == f"simulated:{epoch('2025-07-15')}"
            pipeline = await HourlyPipeline.open(store, source, universe, INDICATORS, clock)
            await pipeline.run_until(pipeline.due_hour)
        (block,) = await store.bars()
        whole = (await earlier.fetch("NVDA", -1, clock.now_s)).bars
        assert block.open_time.tolist() == whole.open_time.tolist()
        assert block.values[:, 3].tobytes() == whole.close.tobytes()
        assert (await audit_market(store, universe, INDICATORS)).findings == []
    finally:
        await store.close()


@pytest.mark.prove
async def test_a_restart_continues_from_the_origin_that_the_store_remembers(tmp_path: Path):
    universe, clock = only("NVDA", "IBM"), AcceleratedClock(epoch("2026-06-10T10:20:00"), step_s=60)
    settings = Settings(source="simulated", universe=None)
    for start in ("2026-06-10T10:20:00", "2026-06-11T15:40:00", "2026-12-24T23:10:00"):
        clock.now, clock.ends_at = epoch(start) * 1000, epoch(start) + 7200
        store = await open_sqlite_market(tmp_path / "m.db")
        try:
            async with open_source(settings, universe, store, clock) as source:
                start_day = MarketStart(epoch("2025-07-15"), epoch("2026-06-10"))
                assert parse_source_name(source.name) == start_day
                open_pipeline = partial(
                    HourlyPipeline.open, store, source, universe, INDICATORS, clock
                )
                with pytest.raises(ClockEnded):
                    await HourlyLoop(open_pipeline, store, clock, clock.sleep).run()
            assert (await store.progress()).source == source.name
            first_feed = epoch("2026-06-10T10:20:00") * 1000 - 30 * DAY_MS
            assert set((await store.publish_from()).values()) == {first_feed}
        finally:
            await store.close()
    store = await open_sqlite_market(tmp_path / "m.db")
    try:
        assert (await audit_market(store, universe, INDICATORS)).findings == []
    finally:
        await store.close()
