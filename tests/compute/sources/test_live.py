"""The live source on venues that behave or fail: the resulting feed and `meta`."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from compute.bars import DAY_S, HOUR_S, RawBar, Series
from compute.hourly_loop import LATE_RETRY_DELAYS_S
from compute.schedule import to_market_ms
from compute.sources.live import VenueStatus, choose_listing, join_session_bars
from compute.sources.source import NotReadyError
from compute.sources.venue import VenueError
from compute.universe import Listing, Universe
from schemas.vocabulary import compute_midnight_s
from service.commands.compute_command import CatchUp
from service.config.settings import Settings
from service.config.sources import open_live_venues
from serving.snapshot import build_snapshot
from store.failure_log import FailureLog
from tests.compute.sources.conftest import Open
from tests.doubles.scripted_source import AcceleratedClock, SleepClock
from tests.doubles.venues.market import Market
from tests.doubles.venues.server import VenuesDouble
from tests.support.live_service import (
    HISTORY_S,
    START,
    UNIVERSE,
    LiveService,
    list_all_markets,
    make_asset,
)
from tests.support.row_builders import list_epochs, to_rows
from tests.support.small_market import load_past

pytestmark = pytest.mark.clause("live")


ALWAYS = ("BTC", "ETH", "OKB", "XAU")


@pytest.fixture
def clock() -> AcceleratedClock:
    return AcceleratedClock(START + RUN_S + 5, step_s=30)


DAY = int(compute_midnight_s(date(2026, 9, 30)))
HALF_S = HOUR_S // 2
OPENING, CLOSING = DAY + 13 * HOUR_S + HALF_S, DAY + 20 * HOUR_S


def half(opened: int, price: float = 100.0, volume: float = 10.0) -> RawBar:
    return RawBar(opened, price, price + 1, price - 1, price + 0.5, volume)


def join(*halves: RawBar, end: int = DAY + DAY_S) -> list[RawBar]:
    joined = join_session_bars(Series.from_rows(halves, HALF_S), "XNAS", DAY, end)
    columns = (joined.open, joined.high, joined.low, joined.close, joined.volume)
    assert (joined.close_time == joined.open_time + HOUR_S).all()
    return [RawBar(at, *row) for at, *row in zip(joined.open_time.tolist(), *columns, strict=True)]


def test_half_hours_are_joined_by_clock_hour_and_the_first_one_is_a_bar_itself() -> None:
    first = RawBar(OPENING, 10.0, 12.0, 9.0, 11.0, 300.0)
    second = RawBar(OPENING + HALF_S, 11.0, 11.5, 8.0, 8.5, 40.0)
    third = RawBar(OPENING + HOUR_S, 8.5, 8.75, 8.25, 8.5, 2.0)
    assert join(first, second, third) == [
        first._replace(open_time=DAY + 13 * HOUR_S),
        RawBar(DAY + 14 * HOUR_S, 11.0, 11.5, 8.0, 8.5, 42.0),
    ]


def test_half_hours_outside_trading_hours_are_left_out() -> None:
    around_the_clock = [half(at, 100.0 + n) for n, at in enumerate(range(DAY, DAY + DAY_S, HALF_S))]
    joined = join(*around_the_clock)
    assert [bar.open_time for bar in joined] == [*range(DAY + 13 * HOUR_S, CLOSING, HOUR_S)]
    assert [bar.volume for bar in joined] == [10.0] + [20.0] * 6
    opens = {bar.open_time: bar.open for bar in around_the_clock}
    assert (joined[0].open, joined[1].open) == (opens[OPENING], opens[OPENING + HALF_S])
    assert joined[-1].close == opens[CLOSING - HALF_S] + 0.5


@pytest.mark.parametrize("missing", [0, 1])
def test_an_hour_with_one_half_that_never_traded_is_still_a_bar(missing: int) -> None:
    hour = DAY + 15 * HOUR_S
    pair = [half(hour, 10.0), half(hour + HALF_S, 20.0)]
    there = pair[1 - missing]
    later = [half(hour + HOUR_S), half(hour + HOUR_S + HALF_S)]
    assert join(there, *later)[0] == there._replace(open_time=hour)


def test_the_newest_hour_waits_for_its_second_half() -> None:
    hour = DAY + 15 * HOUR_S
    pair = [half(hour, 10.0), half(hour + HALF_S, 20.0)]
    assert join(*pair, end=hour + HOUR_S) != []
    assert join(*pair[:1], end=hour + HOUR_S) == []
    assert join(*pair, end=hour + HOUR_S - 1) == []


async def test_a_first_start_builds_history_in_silence_and_publishes_later_changes(
    open_service: Open,
) -> None:
    async with open_service(history_s=HISTORY_S) as one:
        await one.start()
        assert set((await one.store.snapshot()).readings) == set(ALWAYS)
        for hour in range(START + HOUR_S, START + 7 * HOUR_S, HOUR_S):
            await one.run_hour(hour, after_s=905)
        changes = await one.load_changes()
    shown = [row for row in changes if row.published]
    assert shown
    assert [row for row in changes if row.close_time > START and row not in shown] == [
        row for row in changes if row.close_time > START and row.indicator == "perpkit"
    ]
    assert min(row.close_time for row in shown) > START
    assert min(row.created_at for row in shown) >= to_market_ms(START + HOUR_S)


@pytest.mark.prove
async def test_an_asset_whose_history_could_not_be_fetched_is_being_built_until_it_comes(
    open_service: Open, double: VenuesDouble, clock: AcceleratedClock
) -> None:
    binance("unavailable", times=None)(double, {})
    async with open_service(history_s=9 * DAY_S) as one:
        await one.start()
        assert "ETH" not in (await one.store.snapshot()).readings
        meta = await one.load_freshness()
        assert (meta.get("building_assets", []), meta.get("late_assets", {})) == (["ETH"], {})
        assert meta.get("nothing_new_before") is None
        assert "The history of ETH is still being built" in meta.get("note", "")
        assert (await load_past(one.store, one.clock.now)).building_tickers == ("ETH",)
        double.clear_failures()
        one.clock.now += 60_000
        await one.build_histories()
        assert one.runs.late == {}
        readings = (await one.store.snapshot()).readings
        assert {key: set(cells) for key, cells in readings["ETH"].items()} == {
            key: set(cells) for key, cells in readings["OKB"].items()
        }
        assert set((await one.store.publish_from()).values()) == {clock.now - 60_000}
        assert [row for row in await one.load_changes() if row.published] == []
        await one.check_audit()


@pytest.mark.parametrize(("after_s", "building"), [(5, ("ETH",)), (901, ()), (3541, ("ETH",))])
async def test_a_start_builds_histories_unless_an_asset_is_late_or_the_next_run_is_near(
    open_service: Open, double: VenuesDouble, after_s: int, building: tuple[str, ...]
) -> None:
    binance("unavailable", times=None)(double, {})
    async with open_service() as one:
        await one.start()
        # NVDA comes 900 seconds after the run.
        await one.run_hour(START + 2 * HOUR_S)
        if after_s > 900:
            await one.run_late(after_s)
        one.clock.now = to_market_ms(one.runs.done_hour) + 1000 * after_s
        double.clear_failures()
        runs = await one.reopen_pipeline()
        catch_up = CatchUp(
            runs, one.store, one.clock, FailureLog(), lambda are_failing: None, is_long=True
        )
        waiting = catch_up.wait_until_ready(lambda label, report: nullcontext(report))
        await asyncio.gather(catch_up.run(), waiting)
        assert runs.building_tickers == building


@pytest.mark.prove
async def test_an_asset_removed_before_its_first_bar_is_neither_late_nor_pending(
    open_service: Open, double: VenuesDouble
) -> None:
    binance("unavailable", times=None)(double, {})
    universe = universe_with("ETH", removed_on=date(2026, 9, 30))
    async with open_service(universe) as one:
        await one.start()
        assert (tuple(one.runs.late), one.runs.pending_tickers) == ((), ())
        assert (await one.store.snapshot()).late == {}


@pytest.mark.prove
async def test_a_first_start_serves_each_asset_as_soon_as_its_own_history_is_complete(
    open_service: Open, double: VenuesDouble
) -> None:
    hanging = double.get_venue("binance").add_failure("hanging", path="klines", times=None)
    async with open_service(history_s=HISTORY_S) as one:
        await one.runs.run_until(START)
        assert build_snapshot(await one.store.snapshot()) is None
        async with asyncio.timeout(30):
            while "OKB" in one.runs.building_tickers:
                await one.runs.build_history()
                await asyncio.sleep(0)
        assert set((await one.store.snapshot()).readings) == {"OKB"}
        building = (await one.load_freshness())["building_assets"]
        assert {"BTC", "ETH", "XAU"} <= set(building) <= {"BTC", "ETH", "NVDA", "XAU"}
    double.get_venue("binance").end_failure(hanging)
    asked = double.get_venue("okx").count_requests("candles")
    async with open_service(history_s=HISTORY_S) as one:
        await one.start()
        assert set((await one.store.snapshot()).readings) == set(ALWAYS)
        assert (await one.load_freshness())["building_assets"] == []
        # What was built before the restart is not fetched again.
        assert double.get_venue("okx").count_requests("candles") == asked
        await one.run_hour(NEXT)
        # No row takes so many milliseconds that the clock falls behind.
        assert max(row.created_at for row in await one.load_changes()) < one.clock.now + 1000
        await one.check_audit()


@pytest.mark.prove
async def test_the_funding_of_a_history_is_fetched_once(
    open_service: Open, double: VenuesDouble, made: dict[str, Market], clock: AcceleratedClock
) -> None:
    async with open_service(history_s=HISTORY_S) as one:
        await one.start()
        assert double.get_venue("binance").count_requests("klines", symbol="BTC/USDT") > 1
        assert double.get_venue("binance").count_requests("fundingRate") == 1
        stored = [(row.settled_at, row.funding_rate) for row in await one.store.funding("BTC")]
    begin = (clock.now // 1000 - HISTORY_S) // DAY_S * DAY_S - DAY_S
    assert stored == [row for row in made["BTC"].settlements if begin < row[0] <= START]


Trouble = Callable[[VenuesDouble, dict[str, Market]], None]
NEXT = START + HOUR_S
OPENS = START


def eth(trouble: Callable[[Market], None]) -> Trouble:
    return lambda double, made: trouble(made["ETH"])


def binance(kind: str, **more: object) -> Trouble:
    return lambda double, made: double.get_venue("binance").add_failure(
        kind, symbol="ETH/USDT", path="klines", **more
    )


def some_of(troubles: dict[str, Trouble], count: int) -> list[Any]:
    """Return the failures as parameters: the first few always, the rest marked `prove`."""
    return [
        pytest.param(one, id=name, marks=() if place < count else pytest.mark.prove)
        for place, (name, one) in enumerate(troubles.items())
    ]


HARMLESS = {
    "a bar sent twice": eth(lambda market: market.repeat(OPENS)),
    "a 429 that says how long to wait": binance("rate_limited", retry_after_s=7),
    "bars in the wrong order": eth(lambda market: market.shuffle()),
    "a 429 that does not": binance("rate_limited"),
    "a 418": binance("banned"),
    "a 500": binance("unavailable", status=500),
    "truncated JSON": binance("truncated"),
    "a connection that is cut": binance("dropped"),
}


@pytest.mark.parametrize("trouble", some_of(HARMLESS, 3))
@pytest.mark.prove
async def test_a_passing_trouble_leaves_no_trace(
    live: LiveService, double: VenuesDouble, made: dict[str, Market], trouble: Trouble
) -> None:
    trouble(double, made)
    await live.run_hour(NEXT)
    assert live.runs.late == {}
    assert await live.load_closes("ETH") == [NEXT]


BAD_ANSWERS: dict[str, Callable[[Any], Any]] = {
    "null volumes": lambda rows: [[*row[:5], None, *row[6:]] for row in rows],
    "no rows": lambda rows: {},
    "null": lambda rows: None,
    "null closes": lambda rows: [[*row[:4], None, *row[5:]] for row in rows],
    "rows of text": lambda rows: ["x"] * len(rows),
    "a number": lambda rows: 1e308,
    "times out of range": lambda rows: [[10**18, *row[1:]] for row in rows],
}
LASTING = {
    "a bar that is late": eth(lambda market: market.delay(OPENS, 200)),
    "429 without end": binance("rate_limited", times=None),
    "a wait of ten minutes": binance("rate_limited", retry_after_s=600),
    "503 without end": binance("unavailable", times=None),
    "truncated JSON without end": binance("truncated", times=None),
    "a delisted symbol": lambda double, made: double.get_venue("binance").add_failure(
        "unavailable", symbol="ETH/USDT", path="klines", times=None, status=400
    ),
    **{name: binance("garbled", times=None, garble=bad) for name, bad in BAD_ANSWERS.items()},
}


@pytest.mark.parametrize("trouble", some_of(LASTING, 3))
@pytest.mark.sampled(7)
async def test_if_a_venue_fails_its_asset_is_late_with_a_reason_and_loses_no_bar(
    live: LiveService,
    double: VenuesDouble,
    made: dict[str, Market],
    clock: AcceleratedClock,
    trouble: Trouble,
) -> None:
    trouble(double, made)
    with capture_logs() as logged:
        await live.run_hour(NEXT)
    assert len([line for line in logged if line["event"] == "bars_rejected"]) <= 1
    # A wait holds for all assets of a venue.
    assert {"ETH"} <= set(live.runs.late) <= {"ETH", "XAU"}
    assert live.source.late_reasons["ETH"]
    assert "ETH" in (await live.load_freshness())["late_assets"]
    assert await live.load_closes("OKB") == [NEXT]
    assert await live.load_closes("ETH") == []
    double.clear_failures()
    await live.run_late(700)
    assert live.runs.late == {}
    assert live.source.late_reasons == {}
    assert await live.load_closes("ETH") == [NEXT]


async def test_a_forming_bar_is_never_used(live: LiveService, made: dict[str, Market]) -> None:
    await live.run_hour(NEXT, after_s=3500)
    for ticker in ("BTC", "ETH", "OKB"):
        [block] = await live.store.bars(ticker, START - 1)
        assert block.open_time.tolist() == [OPENS]
        assert RawBar(OPENS, *block.values[0].tolist()) == made[ticker].get_bar(OPENS)


async def test_a_restricted_country_falls_back_to_the_next_venue_at_the_first_start(
    open_service: Open, double: VenuesDouble
) -> None:
    double.get_venue("binance").add_failure("restricted", times=None)
    async with open_service() as one:
        await one.start()
        assert one.source.get_listing("BTC") == "okx BTC/USDT"
        assert one.source.get_native_timeframe("ETH") is None
        coverage = (await one.store.snapshot()).coverage
        assert coverage is not None
        assert [a.ticker for a in coverage.assets if not a.timeframes] == ["ETH", "XAU"]
        readings = (await one.store.snapshot()).readings
        assert set(readings) <= {"BTC", "OKB", "NVDA"}
        assert one.runs.late == {}


@pytest.mark.parametrize("is_corrected", [True, False], ids=["corrected", "back"])
@pytest.mark.sampled(2)
@pytest.mark.prove
async def test_an_asset_with_a_renamed_symbol_is_late_until_the_universe_names_it_or_it_is_back(
    open_service: Open,
    double: VenuesDouble,
    made: dict[str, Market],
    clock: AcceleratedClock,
    is_corrected: bool,
) -> None:
    venue, made = double.get_venue("binance"), await list_all_markets(double)
    async with open_service() as one:
        await one.start()
        venue.remove_listing("ETH/USDT")
        venue.add_listing("ETHER/USDT", made["ETH"])
        request_count = venue.count_requests(symbol="ETH/USDT")
        with capture_logs() as logged:
            await one.run_hour(NEXT)
            for after_s in LATE_RETRY_DELAYS_S:
                await one.run_late(after_s)
        # The first answer is believed, once a new list of markets confirms it.
        assert venue.count_requests(symbol="ETH/USDT") == request_count + 1
        [missing] = [line for line in logged if line["event"] == "bars_missing"]
        assert missing["ticker"] == "ETH"
        assert missing["reason"] == "binance does not list ETH/USDT, or no longer does"
        assert (await one.load_freshness())["late_assets"] == {"ETH": ["1h"]}
        assert await one.load_closes("BTC") == await one.load_closes("XAU") == [NEXT]
    universe = universe_with("ETH", symbol="ETHER/USDT") if is_corrected else UNIVERSE
    if not is_corrected:
        venue.add_listing("ETH/USDT", made["ETH"])
    async with open_service(universe) as one:
        await one.run_hour(NEXT + HOUR_S, after_s=905)
        assert one.runs.late == {}
        assert await one.load_closes("ETH") == [NEXT, NEXT + HOUR_S]
        sources = [row.listing for row in await one.store.sources() if row.ticker == "ETH"]
        former, renamed = "binance ETH/USDT", "binance ETHER/USDT"
        assert sources == ([former, renamed] if is_corrected else [former])
        await one.check_audit()


def universe_with(ticker: str, **fields: object) -> Universe:
    assets = [
        asset.model_copy(update=fields) if asset.ticker == ticker else asset
        for asset in UNIVERSE.assets
    ]
    return Universe(assets=tuple(assets), renamed_on=UNIVERSE.renamed_on)


@pytest.mark.prove
async def test_equities_come_with_the_delay_of_their_source_which_is_not_late(
    live: LiveService, double: VenuesDouble
) -> None:
    first = START + 2 * HOUR_S
    await live.run_hour(first)
    assert (tuple(live.runs.late), live.runs.pending_tickers) == ((), ("NVDA",))
    assert live.runs.delays == (900,)
    request_count = double.get_venue("alpaca").count_requests("bars")
    await live.run_late(120)
    assert double.get_venue("alpaca").count_requests("bars") == request_count
    await live.run_late(900)
    assert (tuple(live.runs.late), live.runs.pending_tickers) == ((), ())
    assert await live.load_closes("NVDA") == [first]
    assert (await live.load_freshness())["most_delay_seconds"] == 900


async def test_setting_the_wall_clock_does_not_change_a_wait_that_a_venue_requests(
    double: VenuesDouble, clock: AcceleratedClock, tmp_path: Path
) -> None:
    await list_all_markets(double)
    settings, waiting = Settings(live_api_base=double.base_url), SleepClock()
    parts = waiting, waiting.sleep, lambda: 1.0
    opening = open_live_venues(settings, UNIVERSE, clock, tmp_path, *parts)
    async with opening as found:
        double.get_venue("binance").add_failure("rate_limited", path="time", retry_after_s=600)
        for set_by_ms in (0, DAY_S * 1000, -2 * DAY_S * 1000):
            clock.now += set_by_ms
            with pytest.raises(VenueError):
                await found["binance"].fetch_time_ms()
        assert double.get_venue("binance").count_requests("time") == 1
        waiting.now += 600_000
        assert await found["binance"].fetch_time_ms() == clock.now


@pytest.mark.prove
async def test_no_request_is_sent_while_a_session_is_closed(
    live: LiveService, double: VenuesDouble
) -> None:
    await list_all_markets(double, days_after=5)
    saturday = compute_midnight_s(np.datetime64("2026-10-03").item())
    await live.run_hour(saturday, after_s=905)
    equities, crypto = double.get_venue("alpaca"), double.get_venue("binance")
    request_count = (
        equities.count_requests("bars"),
        crypto.count_requests(symbol="XAU/USDT:USDT"),
    )
    for hour in range(1, 4):
        await live.run_hour(saturday + hour * HOUR_S, after_s=905)
    assert (tuple(live.runs.late), live.runs.pending_tickers) == ((), ())
    assert (
        equities.count_requests("bars"),
        crypto.count_requests(symbol="XAU/USDT:USDT"),
    ) == request_count


def skew(by_ms: int) -> Trouble:
    def turn_clocks(double: VenuesDouble, made: dict[str, Market]) -> None:
        for name in ("binance", "okx"):
            double.get_venue(name).skew_ms = by_ms

    return turn_clocks


def silence(double: VenuesDouble, made: dict[str, Market]) -> None:
    for name in ("binance", "okx", "alpaca"):
        double.get_venue(name).add_failure("unavailable", times=None)


@pytest.mark.parametrize(
    ("trouble", "reason"),
    [
        (skew(-45_000), "45 s ahead of that of the venues"),
        (skew(45_000), "45 s behind that of the venues"),
        (silence, "no venue answers: check that this machine is online"),
    ],
    ids=["behind", "ahead", "silent"],
)
@pytest.mark.prove
async def test_nothing_is_computed_while_no_venue_confirms_the_clock(
    live: LiveService, double: VenuesDouble, made: dict[str, Market], trouble: Trouble, reason: str
) -> None:
    trouble(double, made)
    with pytest.raises(NotReadyError, match=reason):
        await live.run_hour(NEXT)
    double.clear_failures()
    skew(0)(double, made)
    await live.run_hour(NEXT)
    assert await live.load_closes("ETH") == [NEXT]


RATES = [None, "x", 1e308, -1.0000001, {}, [], True]


@pytest.mark.prove
async def test_a_bad_funding_rate_costs_that_settlement_and_is_logged_once_per_reason(
    open_service: Open, double: VenuesDouble
) -> None:
    bad = dict(enumerate(RATES))
    double.get_venue("binance").add_failure(
        "garbled",
        path="fundingRate",
        times=None,
        garble=lambda rows: [
            row | {"fundingRate": bad.get(place, row["fundingRate"])}
            for place, row in enumerate(rows)
        ],
    )
    async with open_service(history_s=4 * DAY_S) as one:
        with capture_logs() as logged:
            await one.start()
            await one.run_hour(NEXT)
        assert one.runs.late == {}
        rejected = [x for x in logged if x["event"] == "settlements_rejected"]
        assert {(x["ticker"], x["reason"]) for x in rejected} == {
            ("BTC", "a rate is NaN or infinite"),
            ("BTC", "a rate is above 100 % of the position"),
        }
        assert len(rejected) == 2
        assert await one.store.funding("BTC")


@pytest.mark.parametrize("event", ["bar_revised", "bar_backfilled"])
@pytest.mark.prove
async def test_a_bar_that_is_revised_or_comes_after_later_ones_is_refused_and_logged_once(
    live: LiveService, made: dict[str, Market], event: str
) -> None:
    market, is_late = made["ETH"], event == "bar_backfilled"
    bar = market.get_bar(OPENS)
    if is_late:
        market.delay(OPENS, 2 * HOUR_S)
    else:
        market.revise(bar._replace(close=bar.low), NEXT + 1800)
    with capture_logs() as logged:
        for hour in range(NEXT, NEXT + 4 * HOUR_S, HOUR_S):
            await live.run_hour(hour)
    [block] = await live.store.bars("ETH", START - 1)
    stepped = [RawBar(*row[2:]) for row in to_rows([block])]
    assert [row.open_time for row in stepped] == [OPENS + n * HOUR_S for n in range(is_late, 4)]
    assert (bar in stepped) != is_late
    assert [line["ticker"] for line in logged if line["event"] == event] == ["ETH"]
    await live.check_audit()


@pytest.mark.prove
async def test_a_delisted_perpetual_does_not_make_its_asset_late(
    open_service: Open, double: VenuesDouble
) -> None:
    double.get_venue("binance").remove_listing("BTC/USDT:USDT")
    async with open_service() as one:
        await one.start()
        await one.run_hour(NEXT)
        assert one.runs.late == {}
        assert await one.store.funding("BTC") == []


@pytest.mark.prove
async def test_rates_are_fetched_again_with_bars_that_were_late(
    live: LiveService, double: VenuesDouble, made: dict[str, Market]
) -> None:
    made["BTC"].delay(OPENS, 200)
    await live.run_hour(NEXT)
    request_count = double.get_venue("binance").count_requests("fundingRate")
    await live.run_late(700)
    assert double.get_venue("binance").count_requests("fundingRate") == request_count + 1
    assert await live.load_closes("BTC") == [NEXT]


ASSET = make_asset(
    "BTC",
    "a",
    "BTC/USDT",
    fallbacks=(
        Listing(venue="b", symbol="BTC/USDT"),
        Listing(venue="c", symbol="BTC/USDC"),
        Listing(venue="d", symbol="BTC/USDT", until=date(1970, 1, 2)),
    ),
)
A, B, C, ENDED = "a BTC/USDT", "b BTC/USDT", "c BTC/USDC", "d BTC/USDT"
LISTS = VenueStatus(frozenset({"BTC/USDT", "BTC/USDC"}))
LACKS = VenueStatus(frozenset())
SILENT = VenueStatus(frozenset(), VenueError("down"))
REFUSES = VenueStatus(frozenset(), VenueError("451", is_permanent=True))


@pytest.mark.parametrize(
    ("source", "statuses", "expected"),
    [
        # Without bars, the first venue that answers.
        (None, (LISTS, LISTS, LISTS), A),
        (None, (LACKS, LISTS, LISTS), B),
        (None, (REFUSES, LISTS, LISTS), B),
        (None, (SILENT, LISTS, LISTS), B),
        (None, (SILENT, LACKS, LISTS), C),
        (None, (REFUSES, SILENT, LACKS), B),
        (None, (SILENT, SILENT, REFUSES), A),
        (None, (REFUSES, LACKS, REFUSES), None),
        (None, (LACKS, LACKS, LACKS), None),
        (None, (LACKS,), None),
        (None, (LACKS, LISTS), B),
        # Stored bars are left only for a venue that answers, if theirs refuses or lacks them.
        (B, (LISTS, LISTS, LISTS), B),
        (B, (LISTS, SILENT, LISTS), B),
        (B, (LISTS, REFUSES, LISTS), A),
        (B, (LISTS, LACKS, LISTS), A),
        (B, (REFUSES, REFUSES, LISTS), C),
        (B, (SILENT, REFUSES, LISTS), C),
        (B, (SILENT, REFUSES, REFUSES), B),
        (B, (SILENT, LACKS, SILENT), B),
        (B, (REFUSES, REFUSES, REFUSES), B),
        # A source that is no listing of the asset is left, but not its venue.
        ("b OTHER/USDT", (LISTS, LISTS, LISTS), B),
        ("b OTHER/USDT", (LISTS, SILENT, LISTS), B),
        ("b OTHER/USDT", (LISTS, REFUSES, LISTS), A),
        ("unknown", (LISTS, LISTS, LISTS), A),
        # A listing that has ended is left once another one answers, even if its venue is silent.
        (ENDED, (LISTS, LISTS, LISTS, SILENT), A),
        (ENDED, (SILENT, SILENT, SILENT, SILENT), ENDED),
    ],
)
def test_an_asset_keeps_the_listing_of_its_bars_or_takes_the_first_that_answers(
    source: str | None, statuses: tuple[VenueStatus, ...], expected: str | None
) -> None:
    """The statuses are those of the venues a, b, c and d, in this order."""
    chosen = choose_listing(ASSET, dict(zip("abcd", statuses, strict=False)), source, DAY_S)
    assert expected == (None if chosen is None else str(chosen))


BINANCE, OKX = "binance BTC/USDT", "okx BTC/USDT"
RUN_S = to_market_ms(0) // 1000


Volumes = dict[str, set[float]]


@pytest.fixture
def volumes(double: VenuesDouble, made: dict[str, Market]) -> Volumes:
    """The volumes of BTC, which differ from venue to venue."""
    bars = [bar._replace(volume=2 * bar.volume + 1) for bar in made["BTC"].all_bars()]
    double.get_venue("okx").add_listing("BTC/USDT", Market(bars, made["BTC"].settlements))
    return {
        BINANCE: {bar.volume for bar in made["BTC"].all_bars()},
        OKX: {bar.volume for bar in bars},
    }


def block(double: VenuesDouble, venue: str = "binance") -> None:
    """Answer every request to a venue with the page of a firewall."""
    double.get_venue(venue).add_failure("unavailable", status=403, times=None)


@pytest.fixture
async def started(open_service: Open, volumes: Volumes) -> None:
    """A store whose first start has ended."""
    async with open_service() as one:
        await one.start()


async def check_sources(one: LiveService, volumes: Volumes, *expected: str) -> None:
    """Assert that the revisions of BTC have these sources, and no bar of another one."""
    rows = [row for row in await one.store.sources() if row.ticker == "BTC"]
    assert [row.listing for row in rows] == list(expected)
    for revision, listing in enumerate(expected):
        blocks = await one.store.bars("BTC", revision=revision)
        assert {v for b in blocks for v in b.values[:, 4].tolist()} <= volumes[listing]
    coverage = (await one.store.snapshot()).coverage
    assert coverage is not None
    assert [a.listing for a in coverage.assets if a.ticker == "BTC"] == [expected[-1]]
    await one.check_audit()


@pytest.mark.usefixtures("started")
@pytest.mark.prove
async def test_a_403_at_a_restart_replaces_no_history_and_its_assets_catch_up_after_it(
    open_service: Open, double: VenuesDouble, volumes: Volumes, clock: AcceleratedClock
) -> None:
    block(double)
    async with open_service() as one:
        await one.run_loop(clock, START + HOUR_S)
        assert one.source.late_reasons["BTC"] == "binance answered HTTP 403"
        assert "BTC" in (await one.load_freshness())["late_assets"]
        await check_sources(one, volumes, BINANCE)
        double.clear_failures()
        await one.run_loop(clock, START + 2 * HOUR_S)
        assert await one.load_closes("BTC") == [START + HOUR_S, START + 2 * HOUR_S]
        assert one.source.late_reasons == {}
    async with open_service() as one:
        await one.run_loop(clock, START + 3 * HOUR_S)
        await check_sources(one, volumes, BINANCE)


@pytest.mark.prove
async def test_a_403_that_lasts_for_hours_moves_the_assets_for_good_as_a_new_revision(
    open_service: Open, double: VenuesDouble, volumes: Volumes, clock: AcceleratedClock
) -> None:
    async with open_service() as one:
        await one.start()
        changes = await one.load_changes()
        block(double)
        await one.run_loop(clock, START + 3 * HOUR_S)
        await check_sources(one, volumes, BINANCE)
        await one.run_loop(clock, START + 6 * HOUR_S)
        await check_sources(one, volumes, BINANCE, OKX)
        assert await one.load_closes("BTC") == [START + n * HOUR_S for n in range(1, 7)]
        assert (await one.load_changes())[: len(changes)] == changes
        assert {"ETH", "XAU"} <= one.source.late_reasons.keys()
    double.clear_failures()
    async with open_service() as one:
        await one.run_loop(clock, START + 7 * HOUR_S)
        await check_sources(one, volumes, BINANCE, OKX)
        assert await one.load_closes("ETH") == [START + n * HOUR_S for n in range(1, 8)]


@pytest.mark.usefixtures("started")
@pytest.mark.prove
async def test_an_asset_that_moves_away_and_back_has_three_revisions(
    open_service: Open, double: VenuesDouble, volumes: Volumes, clock: AcceleratedClock
) -> None:
    for hour, venue in enumerate(["binance", "okx"], start=1):
        double.clear_failures()
        double.get_venue(venue).add_failure("restricted", status=451, times=None)
        async with open_service() as one:
            await one.run_loop(clock, START + hour * HOUR_S)
            await check_sources(one, volumes, *[BINANCE, OKX, BINANCE][: hour + 1])
            reasons = [e.reason for e in await list_epochs(one.store) if e.revision == hour]
            expected = [OKX, BINANCE][hour - 1], [BINANCE, OKX][hour - 1]
            assert set(reasons) == {"bars of {} instead of {}".format(*expected)}


@pytest.mark.parametrize("is_restarted", [True, False], ids=["at a start", "while running"])
@pytest.mark.prove
async def test_a_delisted_asset_moves_to_its_next_venue(
    open_service: Open,
    double: VenuesDouble,
    volumes: Volumes,
    clock: AcceleratedClock,
    is_restarted: bool,
) -> None:
    async with open_service() as one:
        await one.start()
        # The list of the first start is an hour old, so it is not believed any more.
        await one.run_loop(clock, START + HOUR_S)
        double.get_venue("binance").remove_listing("BTC/USDT")
        if not is_restarted:
            await one.run_loop(clock, START + 3 * HOUR_S)
    if is_restarted:
        clock.now = to_market_ms(START + 3 * HOUR_S)
        async with open_service() as one:
            await one.run_loop(clock, START + 3 * HOUR_S)
    async with open_service() as one:
        assert await one.load_closes("BTC") == [START + n * HOUR_S for n in (1, 2, 3)]
        await check_sources(one, volumes, BINANCE, OKX)


@pytest.mark.usefixtures("started")
@pytest.mark.prove
async def test_a_move_that_was_stopped_before_its_commit_leaves_the_old_source(
    open_service: Open, double: VenuesDouble, volumes: Volumes, clock: AcceleratedClock
) -> None:
    double.get_venue("binance").add_failure("restricted", times=None)
    async with open_service() as one:
        clock.now = to_market_ms(START + HOUR_S)
        fetched = await one.source.fetch("BTC", START, START + HOUR_S)
        assert (fetched.is_restated, one.source.get_listing("BTC")) == (True, OKX)
    double.clear_failures()
    async with open_service() as one:
        await one.run_loop(clock, START + HOUR_S)
        await check_sources(one, volumes, BINANCE)


@pytest.mark.prove
async def test_a_venue_without_older_bars_replaces_no_history(
    open_service: Open, double: VenuesDouble, volumes: Volumes, clock: AcceleratedClock
) -> None:
    okx = double.get_venue("okx")
    bars = [bar for bar in okx.get_market("BTC/USDT").all_bars() if bar.open_time >= START]
    okx.add_listing("BTC/USDT", Market(bars))
    async with open_service() as one:
        await one.start()
    double.get_venue("binance").add_failure("restricted", times=None)
    async with open_service() as one:
        await one.run_loop(clock, START + 2 * HOUR_S)
        assert "BTC" in one.source.late_reasons
        await check_sources(one, volumes, BINANCE)


@pytest.mark.prove
async def test_an_asset_that_a_refusal_left_uncovered_is_tried_again_daily(
    open_service: Open, double: VenuesDouble, clock: AcceleratedClock
) -> None:
    await list_all_markets(double, days_after=3)
    double.get_venue("binance").add_failure("restricted", times=None)
    async with open_service() as one:
        await one.start()
        assert one.source.get_listing("ETH") is None
        double.clear_failures()
        await one.run_loop(clock, START + 23 * HOUR_S)
        assert one.source.get_listing("ETH") is None
        await one.run_loop(clock, START + 26 * HOUR_S)
        await one.build_histories()
        assert one.source.get_listing("BTC") == OKX
        assert (await one.load_closes("ETH"))[-1] == START + 26 * HOUR_S
        stored = await one.store.snapshot()
        assert (stored.last_closes["ETH"], stored.late) == (START + 26 * HOUR_S, {})
        await one.check_audit()
