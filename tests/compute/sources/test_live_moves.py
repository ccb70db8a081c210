"""Assets that move to another venue: one history never holds the bars of two."""

from contextlib import suppress
from pathlib import Path

import pytest

from compute.audit.audit import audit_market
from compute.bars import DAY_S, HOUR_S
from compute.hourly_loop import HourlyLoop
from compute.indicators.registry import INDICATORS
from compute.schedule import to_market_ms
from serving.freshness import build_freshness
from serving.snapshot import build_snapshot
from tests.doubles.scripted_source import AcceleratedClock, ClockEnded
from tests.doubles.venues.market import Market
from tests.doubles.venues.server import VenuesDouble
from tests.support.live_service import (
    START,
    UNIVERSE,
    LiveService,
    list_all_markets,
    open_live_service,
)

pytestmark = pytest.mark.clause("live")

BINANCE, OKX = "binance BTC/USDT", "okx BTC/USDT"
SHORT = 2 * DAY_S
RUN_S = to_market_ms(0) // 1000


@pytest.fixture
def clock() -> AcceleratedClock:
    return AcceleratedClock(START + RUN_S + 300, step_s=30)


async def list_two_markets(double: VenuesDouble, days_after: int = 2) -> dict[str, set[float]]:
    """List all markets, with other volumes of BTC at each venue; return these volumes."""
    made = await list_all_markets(double, days_after)
    bars = [bar._replace(volume=2 * bar.volume + 1) for bar in made["BTC"].all_bars()]
    double.get_venue("okx").add_listing("BTC/USDT", Market(bars, made["BTC"].settlements))
    return {
        BINANCE: {bar.volume for bar in made["BTC"].all_bars()},
        OKX: {bar.volume for bar in bars},
    }


def block(double: VenuesDouble, venue: str = "binance") -> None:
    """Answer every request to a venue with the page of a firewall."""
    double.get_venue(venue).add_failure("unavailable", status=403, times=None)


async def run_until(one: LiveService, clock: AcceleratedClock, until: int) -> None:
    """Run the loop of the service until some minutes after an hour (epoch seconds)."""
    clock.ends_at = until + RUN_S + 300
    loop = HourlyLoop(
        one.reopen_pipeline,
        one.store,
        clock,
        clock.sleep,
        pipeline=one.runs,
        has_source_moved=one.source.has_moved,
    )
    with suppress(ClockEnded):
        await loop.run()


async def check_sources(one: LiveService, volumes: dict[str, set[float]], *expected: str) -> None:
    """Assert that the revisions of BTC have these sources, and no bar of another one."""
    rows = [row for row in await one.store.sources() if row.ticker == "BTC"]
    assert [row.listing for row in rows] == list(expected)
    for revision, listing in enumerate(expected):
        blocks = await one.store.bars("BTC", revision=revision)
        assert {v for b in blocks for v in b.values[:, 4].tolist()} <= volumes[listing]
    coverage = (await one.store.snapshot()).coverage
    assert coverage is not None
    assert [a.listing for a in coverage.assets if a.ticker == "BTC"] == [expected[-1]]
    report = await audit_market(one.store, UNIVERSE, INDICATORS)
    assert (report.findings, dict(report.not_verifiable)) == ([], {})


@pytest.mark.prove
async def test_a_403_at_a_restart_replaces_no_history_and_its_assets_catch_up_after_it(
    double: VenuesDouble, clock: AcceleratedClock, tmp_path: Path
) -> None:
    volumes = await list_two_markets(double)
    async with open_live_service(double, clock, tmp_path, history_s=SHORT) as one:
        await one.runs.run_until(START)
    block(double)
    async with open_live_service(double, clock, tmp_path, history_s=SHORT) as one:
        await run_until(one, clock, START + HOUR_S)
        assert one.source.late_reasons["BTC"] == "binance answered HTTP 403"
        snapshot = build_snapshot(await one.store.snapshot())
        assert snapshot is not None
        assert "BTC" in build_freshness(snapshot, clock.now)["late_assets"]
        await check_sources(one, volumes, BINANCE)
        double.clear_failures()
        await run_until(one, clock, START + 2 * HOUR_S)
        assert await one.load_closes("BTC") == [START + HOUR_S, START + 2 * HOUR_S]
        assert one.source.late_reasons == {}
    async with open_live_service(double, clock, tmp_path, history_s=SHORT) as one:
        await run_until(one, clock, START + 3 * HOUR_S)
        await check_sources(one, volumes, BINANCE)


@pytest.mark.prove
async def test_a_403_that_lasts_for_hours_moves_the_assets_for_good_as_a_new_revision(
    double: VenuesDouble, clock: AcceleratedClock, tmp_path: Path
) -> None:
    volumes = await list_two_markets(double)
    async with open_live_service(double, clock, tmp_path, history_s=SHORT) as one:
        await one.runs.run_until(START)
        changes = await one.load_changes()
        block(double)
        await run_until(one, clock, START + 3 * HOUR_S)
        await check_sources(one, volumes, BINANCE)
        await run_until(one, clock, START + 6 * HOUR_S)
        await check_sources(one, volumes, BINANCE, OKX)
        assert await one.load_closes("BTC") == [START + n * HOUR_S for n in range(1, 7)]
        assert (await one.load_changes())[: len(changes)] == changes
        assert {"ETH", "XAU"} <= one.source.late_reasons.keys()
    double.clear_failures()
    async with open_live_service(double, clock, tmp_path, history_s=SHORT) as one:
        await run_until(one, clock, START + 7 * HOUR_S)
        await check_sources(one, volumes, BINANCE, OKX)
        assert await one.load_closes("ETH") == [START + n * HOUR_S for n in range(1, 8)]


@pytest.mark.prove
async def test_an_asset_that_moves_away_and_back_has_three_revisions(
    double: VenuesDouble, clock: AcceleratedClock, tmp_path: Path
) -> None:
    volumes = await list_two_markets(double)
    async with open_live_service(double, clock, tmp_path, history_s=SHORT) as one:
        await one.runs.run_until(START)
    for hour, venue in enumerate(["binance", "okx"], start=1):
        double.clear_failures()
        double.get_venue(venue).add_failure("restricted", status=451, times=None)
        async with open_live_service(double, clock, tmp_path, history_s=SHORT) as one:
            await run_until(one, clock, START + hour * HOUR_S)
            await check_sources(one, volumes, *[BINANCE, OKX, BINANCE][: hour + 1])
            reasons = [e.reason for e in await one.store.epochs() if e.revision == hour]
            expected = [OKX, BINANCE][hour - 1], [BINANCE, OKX][hour - 1]
            assert set(reasons) == {"bars of {} instead of {}".format(*expected)}


async def test_a_refusal_while_running_moves_the_assets_at_a_later_run(
    double: VenuesDouble, clock: AcceleratedClock, tmp_path: Path
) -> None:
    volumes = await list_two_markets(double)
    async with open_live_service(double, clock, tmp_path, history_s=SHORT) as one:
        await one.runs.run_until(START)
        double.get_venue("binance").add_failure("restricted", times=None)
        await run_until(one, clock, START + HOUR_S)
        await check_sources(one, volumes, BINANCE)
        await run_until(one, clock, START + 3 * HOUR_S)
        await check_sources(one, volumes, BINANCE, OKX)
        assert await one.load_closes("BTC") == [START + n * HOUR_S for n in (1, 2, 3)]


async def test_a_move_that_was_stopped_before_its_commit_leaves_the_old_source(
    double: VenuesDouble, clock: AcceleratedClock, tmp_path: Path
) -> None:
    volumes = await list_two_markets(double)
    async with open_live_service(double, clock, tmp_path, history_s=SHORT) as one:
        await one.runs.run_until(START)
    double.get_venue("binance").add_failure("restricted", times=None)
    async with open_live_service(double, clock, tmp_path, history_s=SHORT) as one:
        clock.now = to_market_ms(START + HOUR_S)
        fetched = await one.source.fetch("BTC", START, START + HOUR_S)
        assert (fetched.is_restated, one.source.get_listing("BTC")) == (True, OKX)
    double.clear_failures()
    async with open_live_service(double, clock, tmp_path, history_s=SHORT) as one:
        await run_until(one, clock, START + HOUR_S)
        await check_sources(one, volumes, BINANCE)


@pytest.mark.prove
async def test_a_venue_without_older_bars_replaces_no_history(
    double: VenuesDouble, clock: AcceleratedClock, tmp_path: Path
) -> None:
    volumes = await list_two_markets(double)
    okx = double.get_venue("okx")
    bars = [bar for bar in okx.get_market("BTC/USDT").all_bars() if bar.open_time >= START]
    okx.add_listing("BTC/USDT", Market(bars))
    async with open_live_service(double, clock, tmp_path, history_s=SHORT) as one:
        await one.runs.run_until(START)
    double.get_venue("binance").add_failure("restricted", times=None)
    async with open_live_service(double, clock, tmp_path, history_s=SHORT) as one:
        await run_until(one, clock, START + 2 * HOUR_S)
        assert "BTC" in one.source.late_reasons
        await check_sources(one, volumes, BINANCE)


@pytest.mark.prove
async def test_an_asset_that_a_refusal_left_uncovered_is_tried_again_daily(
    double: VenuesDouble, clock: AcceleratedClock, tmp_path: Path
) -> None:
    await list_all_markets(double, days_after=3)
    double.get_venue("binance").add_failure("restricted", times=None)
    async with open_live_service(double, clock, tmp_path, history_s=SHORT) as one:
        await one.runs.run_until(START)
        assert one.source.get_listing("ETH") is None
        double.clear_failures()
        await run_until(one, clock, START + 23 * HOUR_S)
        assert one.source.get_listing("ETH") is None
        await run_until(one, clock, START + 26 * HOUR_S)
        await one.build_histories()
        assert one.source.get_listing("BTC") == OKX
        assert (await one.load_closes("ETH"))[-1] == START + 26 * HOUR_S
        snapshot = build_snapshot(await one.store.snapshot())
        assert snapshot is not None
        assert snapshot.stored.last_closes["ETH"] == START + 26 * HOUR_S
        assert snapshot.stored.late == {}
        report = await audit_market(one.store, UNIVERSE, INDICATORS)
        assert report.findings == []


async def test_a_first_start_behind_a_403_takes_the_next_venue_and_never_mixes_them(
    double: VenuesDouble, clock: AcceleratedClock, tmp_path: Path
) -> None:
    volumes = await list_two_markets(double)
    block(double)
    async with open_live_service(double, clock, tmp_path, history_s=SHORT) as one:
        await one.runs.run_until(START)
        assert one.runs.building_tickers == ("ETH", "XAU")
        double.clear_failures()
        await run_until(one, clock, START + HOUR_S)
        await one.build_histories()
        assert one.runs.late == {}
        await check_sources(one, volumes, OKX)
        assert (await one.load_closes("ETH"))[-1] == START + HOUR_S
