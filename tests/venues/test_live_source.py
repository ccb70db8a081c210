"""The live source on venues that behave and on ones that do not: what feed and `meta` show."""

from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from compute.audit.audit import Audit
from compute.bars import DAY_S, HOUR_S, RawBar
from compute.hourly_loop import LATE_PASSES_S
from compute.indicators.registry import INDICATORS
from compute.schedule import market_ms
from compute.sources.source import NotReadyError
from compute.sources.venue import VenueError
from compute.universe import Universe
from schemas.vocabulary import midnight_s
from service.config.settings import Settings
from service.config.venues import opened_venues
from serving.freshness import freshness
from serving.snapshot_cache import computed_board
from store.market_rows import ChangeRow
from tests.serving import ManualClock
from tests.venues.double import VenuesDouble
from tests.venues.live import HISTORY_S, START, UNIVERSE, live, markets
from tests.venues.market import Market
from tests.venues.recording import replay, written
from tests.venues.scripted import Waiting

pytestmark = pytest.mark.clause("live")

ALWAYS = ("BTC", "ETH", "OKB", "XAU")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(market_ms(START) + 5000)


def told(rows: list[ChangeRow]) -> list[tuple[object, ...]]:
    """Return what changed, apart from when it was written and to whom it was shown."""
    return [(r.ticker, r.indicator, r.timeframe, r.close_time, r.before, r.after) for r in rows]


async def test_a_first_start_builds_history_in_silence_and_shows_what_changes_from_then_on(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    await markets(double)
    async with live(double, clock, tmp_path) as one:
        await one.runs.catch_up(START)
        board = computed_board(await one.store.snapshot())
        assert board is not None
        assert set(board.snapshot.readings) == set(ALWAYS)
        for hour in range(START + HOUR_S, START + 7 * HOUR_S, HOUR_S):
            await one.run(hour, after_s=905)
        changes = await one.changes()
    shown = [row for row in changes if row.published]
    assert shown
    assert [row for row in changes if row.close_time > START and row not in shown] == [
        row for row in changes if row.close_time > START and row.indicator == "perpkit"
    ]
    assert min(row.close_time for row in shown) > START
    assert min(row.created_at for row in shown) >= market_ms(START + HOUR_S)


async def test_an_asset_whose_first_calls_fail_still_warms_up_in_silence(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    await markets(double)
    async with live(double, clock, tmp_path) as one:
        binance("unavailable", times=3)(double, {})
        await one.runs.catch_up(START)
        assert set((await one.store.snapshot()).readings) == set(ALWAYS)
        assert set((await one.store.publish_from()).values()) == {clock.now}
        assert [row for row in await one.changes() if row.published] == []


async def test_an_asset_that_has_no_bars_yet_is_late_until_they_come(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    await markets(double)
    binance("unavailable", times=None)(double, {})
    async with live(double, clock, tmp_path, history_s=9 * DAY_S) as one:
        await one.runs.catch_up(START)
        board = computed_board(await one.store.snapshot())
        assert board is not None
        assert "ETH" not in board.snapshot.readings
        assert freshness(board, one.clock.now)["late_assets"] == ["ETH"]
        assert (await one.store.snapshot_at(one.clock.now)).late == ("ETH",)
        double.behaves()
        await one.again(60)
        assert one.runs.late == ()
        assert "ETH" in (await one.store.snapshot()).readings
        assert [row for row in await one.changes() if row.published] == []
        report = await Audit(one.store, UNIVERSE, INDICATORS).run()
    assert report.findings == []


async def test_what_was_removed_before_anything_came_is_neither_late_nor_awaited(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    await markets(double)
    binance("unavailable", times=None)(double, {})
    universe = where("ETH", removed_on=date(2026, 9, 30))
    async with live(double, clock, tmp_path, universe, history_s=2 * DAY_S) as one:
        await one.runs.catch_up(START)
        assert (one.runs.late, one.runs.awaited) == ((), ())
        assert (await one.store.snapshot()).late == ()


async def test_nothing_is_served_before_history_is_whole(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    await markets(double)
    async with live(double, clock, tmp_path) as one:
        await one.runs.catch_up(START - 10 * DAY_S)
        assert not one.runs.has_board
        assert computed_board(await one.store.snapshot()) is None
        built = len(double.venue("binance").requests)
    async with live(double, clock, tmp_path) as one:
        await one.runs.catch_up(START)
        assert one.runs.has_board
        assert computed_board(await one.store.snapshot()) is not None
    asked = [one for one in double.venue("binance").requests[built:] if "klines" in one.path]
    assert asked
    assert min(one.seconds("startTime", 0) for one in asked) >= START - 13 * DAY_S


@pytest.mark.prove
async def test_readings_and_changes_are_those_of_a_replay_of_the_same_bars(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    made = await markets(double)
    end = START + 6 * HOUR_S
    async with live(double, clock, tmp_path) as one:
        await one.runs.catch_up(START)
        for hour in range(START + HOUR_S, end + 1, HOUR_S):
            await one.run(hour, after_s=905)
        served, changes = await one.store.snapshot(), await one.changes()
        report = await Audit(one.store, UNIVERSE, INDICATORS).run()
    assert report.findings == []
    begin = (clock.now // 1000 - HISTORY_S) // DAY_S * DAY_S
    recorded = {ticker: made[ticker] for ticker in ("BTC", "ETH", "OKB")}
    folder = written(tmp_path / "bars", recorded, ["BTC"], begin, end)
    replayed = await replay(folder, tmp_path / "replayed.db", UNIVERSE, end)
    for ticker in recorded:
        assert served.readings[ticker] == replayed.snapshot.readings[ticker], ticker
    assert [row for row in told(changes) if row[0] in recorded] == told(replayed.changes)


async def test_the_funding_of_a_history_is_asked_for_once(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    made = await markets(double)
    async with live(double, clock, tmp_path) as one:
        await one.runs.catch_up(START)
        assert double.venue("binance").count("klines", symbol="BTC/USDT") > 1
        assert double.venue("binance").count("fundingRate") == 1
        stored = [(row.settled_at, row.funding_rate) for row in await one.store.funding("BTC")]
    begin = (clock.now // 1000 - HISTORY_S) // DAY_S * DAY_S - DAY_S
    assert stored == [row for row in made["BTC"].settlements if begin < row[0] <= START]


Trouble = Callable[[VenuesDouble, dict[str, Market]], None]
NEXT = START + HOUR_S
OPENS = START


def eth(trouble: Callable[[Market], None]) -> Trouble:
    return lambda double, made: trouble(made["ETH"])


def binance(kind: str, **more: object) -> Trouble:
    return lambda double, made: double.venue("binance").misbehaves(
        kind, symbol="ETH/USDT", path="klines", **more
    )


def some_of(troubles: dict[str, Trouble], count: int) -> list[Any]:
    """Return the troubles as parameters: the first few always, all of them in a proof."""
    return [
        pytest.param(one, id=name, marks=() if place < count else pytest.mark.prove)
        for place, (name, one) in enumerate(troubles.items())
    ]


HARMLESS = {
    "a bar told twice": eth(lambda market: market.repeat(OPENS)),
    "a 429 that says how long to wait": binance("rate_limited", retry_after_s=7),
    "bars in the wrong order": eth(lambda market: market.shuffle()),
    "a 429 that does not": binance("rate_limited"),
    "a 418": binance("banned"),
    "a 500": binance("unavailable", status=500),
    "truncated JSON": binance("truncated"),
    "a connection that is cut": binance("dropped"),
}


@pytest.mark.parametrize("trouble", some_of(HARMLESS, 3))
async def test_a_passing_trouble_leaves_no_trace(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path, trouble: Trouble
) -> None:
    made = await markets(double)
    async with live(double, clock, tmp_path, history_s=2 * DAY_S) as one:
        await one.runs.catch_up(START)
        trouble(double, made)
        await one.run(NEXT)
        assert one.runs.late == ()
        assert await one.closes("ETH") == [NEXT]


LASTING = {
    "a bar that is late": eth(lambda market: market.delay(OPENS, 200)),
    "429 without end": binance("rate_limited", times=None),
    "a wait of ten minutes": binance("rate_limited", retry_after_s=600),
    "503 without end": binance("unavailable", times=None),
    "truncated JSON without end": binance("truncated", times=None),
    "a delisted symbol": lambda double, made: double.venue("binance").misbehaves(
        "unavailable", symbol="ETH/USDT", path="klines", times=None, status=400
    ),
}


@pytest.mark.parametrize("trouble", some_of(LASTING, 3))
async def test_an_asset_whose_venue_fails_is_late_with_a_reason_and_loses_no_bar(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path, trouble: Trouble
) -> None:
    made = await markets(double)
    async with live(double, clock, tmp_path, history_s=2 * DAY_S) as one:
        await one.runs.catch_up(START)
        trouble(double, made)
        await one.run(NEXT)
        assert "ETH" in one.runs.late
        assert one.source.reasons["ETH"]
        board = computed_board(await one.store.snapshot())
        assert board is not None
        assert "ETH" in freshness(board, one.clock.now)["late_assets"]
        assert await one.closes("OKB") == [NEXT]
        assert await one.closes("ETH") == []
        double.behaves()
        await one.again(700)
        assert one.runs.late == ()
        assert one.source.reasons == {}
        assert await one.closes("ETH") == [NEXT]


async def test_requests_that_hang_are_given_up_and_lose_no_bar(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    made = await markets(double)
    async with live(double, clock, tmp_path, history_s=2 * DAY_S) as one:
        await one.runs.catch_up(START)
    async with live(double, clock, tmp_path, history_s=2 * DAY_S, timeout_s=0.5) as one:
        binance("hanging", times=None)(double, made)
        await one.run(NEXT)
        assert one.runs.late == ("ETH",)
        assert one.source.reasons == {"ETH": "binance did not answer in time"}
        double.behaves()
        await one.again(700)
        assert one.runs.late == ()
        assert await one.closes("ETH") == [NEXT]


async def test_a_bar_that_never_comes_is_passed_over_when_the_next_one_does(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    made = await markets(double)
    made["ETH"].withhold(OPENS)
    async with live(double, clock, tmp_path, history_s=2 * DAY_S) as one:
        await one.runs.catch_up(START)
        await one.run(NEXT)
        assert one.runs.late == ("ETH",)
        await one.run(NEXT + HOUR_S)
        assert one.runs.late == ()
        assert await one.closes("ETH") == [NEXT + HOUR_S]


async def test_a_forming_bar_is_never_used(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    made = await markets(double)
    async with live(double, clock, tmp_path, history_s=2 * DAY_S) as one:
        await one.runs.catch_up(START)
        await one.run(NEXT, after_s=3500)
        for ticker in ("BTC", "ETH", "OKB"):
            [block] = await one.store.bars(ticker, START - 1)
            bar = made[ticker].page(2**40, OPENS, OPENS, 1)[0]
            assert block.open_time.tolist() == [OPENS]
            assert RawBar(OPENS, *block.values[0].tolist()) == bar


async def test_a_restricted_country_falls_back_to_the_next_venue_at_the_first_start(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    await markets(double)
    double.venue("binance").misbehaves("restricted", times=None)
    async with live(double, clock, tmp_path, history_s=2 * DAY_S) as one:
        await one.runs.catch_up(START)
        assert one.source.listing("BTC") == "okx BTC/USDT"
        assert one.source.native("ETH") is None
        readings = (await one.store.snapshot()).readings
        assert set(readings) <= {"BTC", "OKB", "NVDA"}
        assert one.runs.late == ()


async def test_an_asset_stays_where_its_stored_bars_are_from(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    await markets(double)
    double.venue("binance").misbehaves("restricted", times=None)
    async with live(double, clock, tmp_path, history_s=2 * DAY_S) as one:
        await one.runs.catch_up(START)
    double.behaves()
    clock.now += 60_000
    async with live(double, clock, tmp_path, history_s=2 * DAY_S) as one:
        assert one.source.listing("BTC") == "okx BTC/USDT"
        assert one.source.listing("ETH") == "binance ETH/USDT"


async def test_what_no_venue_lists_is_not_covered_and_never_late(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    await markets(double)
    double.venue("binance").delists("ETH/USDT")
    async with live(double, clock, tmp_path, history_s=2 * DAY_S) as one:
        await one.runs.catch_up(START)
        assert one.source.native("ETH") is None
        assert one.runs.late == ()
        coverage = (await one.store.snapshot()).coverage
        assert coverage is not None
        assert [a.ticker for a in coverage.assets if not a.timeframes] == ["ETH"]


async def test_an_asset_that_is_delisted_later_is_late_from_then_on(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    await markets(double)
    async with live(double, clock, tmp_path, history_s=2 * DAY_S) as one:
        await one.runs.catch_up(START)
    double.venue("binance").delists("ETH/USDT")
    clock.now += DAY_S * 1000
    async with live(double, clock, tmp_path, history_s=2 * DAY_S) as one:
        await one.runs.catch_up(one.runs.due)
        assert one.runs.late == ("ETH",)
        assert one.source.reasons == {"ETH": "binance does not list ETH/USDT, or no longer"}


@pytest.mark.parametrize("is_corrected", [True, False], ids=["corrected", "back"])
async def test_a_symbol_that_is_renamed_is_late_until_the_universe_says_so_or_it_is_back(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path, is_corrected: bool
) -> None:
    venue, made = double.venue("binance"), await markets(double)
    async with live(double, clock, tmp_path, history_s=2 * DAY_S) as one:
        await one.runs.catch_up(START)
        venue.delists("ETH/USDT")
        venue.lists("ETHER/USDT", made["ETH"])
        asked = venue.count(symbol="ETH/USDT")
        with capture_logs() as logged:
            await one.run(NEXT)
            for after_s in LATE_PASSES_S:
                await one.again(after_s)
        assert venue.count(symbol="ETH/USDT") == asked + 1 + len(LATE_PASSES_S)
        [missing] = [line for line in logged if line["event"] == "bars_missing"]
        assert missing["ticker"] == "ETH"
        assert missing["reason"] == "binance does not list ETH/USDT, or no longer"
        board = computed_board(await one.store.snapshot())
        assert board is not None
        assert freshness(board, one.clock.now)["late_assets"] == ["ETH"]
        assert await one.closes("BTC") == await one.closes("XAU") == [NEXT]
    universe = where("ETH", symbol="ETHER/USDT") if is_corrected else UNIVERSE
    if not is_corrected:
        venue.lists("ETH/USDT", made["ETH"])
    async with live(double, clock, tmp_path, universe, history_s=2 * DAY_S) as one:
        await one.run(NEXT + HOUR_S, after_s=905)
        assert one.runs.late == ()
        assert await one.closes("ETH") == [NEXT, NEXT + HOUR_S]
        assert (await one.store.generations()).get("ETH", 0) == 0
        report = await Audit(one.store, universe, INDICATORS).run()
    assert report.findings == []


def where(ticker: str, **fields: object) -> Universe:
    """Return the universe with other fields of one asset."""
    assets = [
        asset.model_copy(update=fields) if asset.ticker == ticker else asset
        for asset in UNIVERSE.assets
    ]
    return Universe(assets=tuple(assets), renamed_on=UNIVERSE.renamed_on)


async def test_equities_come_with_the_delay_of_their_source_which_is_not_late(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    await markets(double)
    first = START + 3 * HOUR_S
    async with live(double, clock, tmp_path, history_s=2 * DAY_S) as one:
        await one.runs.catch_up(START)
        await one.run(first)
        assert (one.runs.late, one.runs.awaited) == ((), ("NVDA",))
        assert one.runs.delays == (900,)
        asked = double.venue("alpaca").count("bars")
        await one.again(120)
        assert double.venue("alpaca").count("bars") == asked
        await one.again(900)
        assert (one.runs.late, one.runs.awaited) == ((), ())
        assert await one.closes("NVDA") == [first]
        board = computed_board(await one.store.snapshot())
        assert board is not None
        assert freshness(board, one.clock.now)["most_delay_seconds"] == 900


async def test_a_wait_that_a_venue_asks_for_goes_by_no_clock_that_is_set(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    await markets(double)
    settings, waiting = Settings(live_api_base=double.base_url), Waiting()
    opening = opened_venues(
        settings, UNIVERSE, clock, waiting, waiting.sleep, lambda: 1.0, tmp_path
    )
    async with opening as found:
        double.venue("binance").misbehaves("rate_limited", path="time", retry_after_s=600)
        for set_by_ms in (0, DAY_S * 1000, -2 * DAY_S * 1000):
            clock.now += set_by_ms
            with pytest.raises(VenueError):
                await found["binance"].clock()
        assert double.venue("binance").count("time") == 1
        waiting.now += 600_000
        assert await found["binance"].clock() == clock.now


async def test_nothing_is_asked_while_a_session_is_closed(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    await markets(double, days_after=5)
    saturday = midnight_s(np.datetime64("2026-10-03").item())
    async with live(double, clock, tmp_path, history_s=2 * DAY_S) as one:
        await one.runs.catch_up(START)
        await one.run(saturday, after_s=905)
        equities, crypto = double.venue("alpaca"), double.venue("binance")
        asked = equities.count("bars"), crypto.count(symbol="XAU/USDT:USDT")
        for hour in range(1, 4):
            await one.run(saturday + hour * HOUR_S, after_s=905)
        assert one.runs.late == one.runs.awaited == ()
        assert (equities.count("bars"), crypto.count(symbol="XAU/USDT:USDT")) == asked


@pytest.mark.parametrize("skew_ms", [-45_000, 45_000])
async def test_a_wrong_clock_stops_computing_and_says_so(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path, skew_ms: int
) -> None:
    await markets(double)
    async with live(double, clock, tmp_path, history_s=2 * DAY_S) as one:
        await one.runs.catch_up(START)
        for name in ("binance", "okx"):
            double.venue(name).skew_ms = skew_ms
        direction = "behind" if skew_ms > 0 else "ahead of"
        with pytest.raises(NotReadyError, match=f"45 s {direction} that of the venues"):
            await one.run(NEXT)
        assert await one.closes("ETH") == []


async def test_one_venue_with_a_wrong_clock_stops_nothing(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    await markets(double)
    async with live(double, clock, tmp_path, history_s=2 * DAY_S) as one:
        await one.runs.catch_up(START)
        double.venue("okx").skew_ms = 45_000
        await one.run(NEXT)
        assert one.runs.late == ()


async def test_a_revised_bar_stands_as_it_was_stepped_and_is_logged_once(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    made = await markets(double)
    bar = made["ETH"].page(2**40, OPENS, OPENS, 1)[0]
    async with live(double, clock, tmp_path, history_s=2 * DAY_S) as one:
        await one.runs.catch_up(START)
        await one.run(NEXT)
        made["ETH"].revise(bar._replace(close=bar.low), NEXT + 1800)
        with capture_logs() as logged:
            await one.run(NEXT + HOUR_S)
            await one.run(NEXT + 2 * HOUR_S)
        [block] = await one.store.bars("ETH", START - 1)
        assert RawBar(OPENS, *block.values[0].tolist()) == bar
        assert len(block) == 3
        revised = [line for line in logged if line["event"] == "bar_revised"]
        assert [line["ticker"] for line in revised] == ["ETH"]
        report = await Audit(one.store, UNIVERSE, INDICATORS).run()
    assert report.findings == []


async def test_a_bar_that_comes_after_later_ones_is_refused_and_logged(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    made = await markets(double)
    made["ETH"].delay(OPENS, 2 * HOUR_S)
    async with live(double, clock, tmp_path, history_s=2 * DAY_S) as one:
        await one.runs.catch_up(START)
        with capture_logs() as logged:
            for hour in range(NEXT, NEXT + 4 * HOUR_S, HOUR_S):
                await one.run(hour)
        assert [line["ticker"] for line in logged if line["event"] == "bar_belated"] == ["ETH"]
        assert await one.closes("ETH") == [NEXT + n * HOUR_S for n in (1, 2, 3)]


async def test_funding_that_is_not_listed_any_more_makes_no_asset_late(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    await markets(double)
    double.venue("binance").delists("BTC/USDT:USDT")
    async with live(double, clock, tmp_path, history_s=2 * DAY_S) as one:
        await one.runs.catch_up(START)
        await one.run(NEXT)
        assert one.runs.late == ()
        assert await one.store.funding("BTC") == []


async def test_rates_are_asked_for_anew_with_bars_that_were_late(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    made = await markets(double)
    async with live(double, clock, tmp_path, history_s=2 * DAY_S) as one:
        await one.runs.catch_up(START)
        made["BTC"].delay(OPENS, 200)
        await one.run(NEXT)
        asked = double.venue("binance").count("fundingRate")
        await one.again(700)
        assert double.venue("binance").count("fundingRate") == asked + 1
        assert await one.closes("BTC") == [NEXT]


async def test_nothing_is_computed_while_no_venue_answers(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    await markets(double)
    async with live(double, clock, tmp_path, history_s=2 * DAY_S) as one:
        await one.runs.catch_up(START)
        for name in ("binance", "okx", "alpaca"):
            double.venue(name).misbehaves("unavailable", times=None)
        with pytest.raises(NotReadyError, match="no venue answers: is this machine online"):
            await one.run(NEXT)
        double.behaves()
        await one.run(NEXT)
        assert await one.closes("ETH") == [NEXT]


async def test_a_split_replaces_the_history_and_touches_no_published_row(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    made = await markets(double)
    first = START + 3 * HOUR_S
    async with live(double, clock, tmp_path) as one:
        await one.runs.catch_up(START)
        await one.run(first, after_s=905)
        before = await one.changes()
        made["NVDA"].split(4.0, at=first + 1800)
        with capture_logs() as logged:
            for hour in range(1, 5):
                await one.run(first + hour * HOUR_S, after_s=905)
        [replaced] = [line for line in logged if line["event"] == "history_replaced"]
        assert (replaced["ticker"], replaced["why"]) == ("NVDA", "split 4:1")
        assert (await one.changes())[: len(before)] == before
        old = await one.store.bars("NVDA", generation=0)
        new = await one.store.bars("NVDA")
        count = len(old[0])
        assert np.allclose(old[0].values[:, :4], 4 * new[0].values[:count, :4])
        assert one.runs.late == ()
        reasons = {row.reason for row in await one.store.epochs() if row.ticker == "NVDA"}
        assert "split 4:1" in reasons
        report = await Audit(one.store, UNIVERSE, INDICATORS).run()
    assert report.findings == []


async def test_a_venue_that_begins_to_refuse_is_left_for_the_next_with_a_history_of_its_own(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    made = await markets(double)
    bars = [bar._replace(volume=2 * bar.volume) for bar in made["BTC"].bars()]
    double.venue("okx").lists("BTC/USDT", Market(bars, made["BTC"].settlements))
    async with live(double, clock, tmp_path, history_s=9 * DAY_S) as one:
        await one.runs.catch_up(START)
        assert one.source.listing("BTC") == "binance BTC/USDT"
    double.venue("binance").misbehaves("restricted", times=None)
    async with live(double, clock, tmp_path, history_s=9 * DAY_S) as one:
        await one.run(NEXT)
        [block] = await one.store.bars("BTC")
        doubled = {bar.open_time: 2 * bar.volume for bar in made["BTC"].bars()}
        assert block.values[:, 4].tolist() == [doubled[at] for at in block.open_time.tolist()]
        assert block.open_time[-1] == OPENS
        assert set(one.source.reasons) == {"ETH", "XAU"}
        epochs = [row for row in await one.store.epochs() if row.ticker == "BTC"]
        assert {row.reason for row in epochs if row.generation} == {
            "bars of okx BTC/USDT instead of binance BTC/USDT"
        }
        await one.run(NEXT + HOUR_S)
        assert (await one.store.generations())["BTC"] == 1
    async with live(double, clock, tmp_path, history_s=9 * DAY_S) as one:
        assert one.source.listing("BTC") == "okx BTC/USDT"
        await one.run(NEXT + 2 * HOUR_S)
        assert (await one.store.generations())["BTC"] == 1
        report = await Audit(one.store, UNIVERSE, INDICATORS).run()
    assert report.findings == []
