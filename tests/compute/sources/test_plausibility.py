"""Implausible bars: confirmed by another venue, or held for one run and never longer."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from compute.audit.audit import audit_market
from compute.bars import DAY_S, HOUR_S, NO_BARS, RawBar, Series
from compute.indicators.registry import INDICATORS
from compute.schedule import to_market_ms
from compute.sources.history_checks import find_reason_to_hold
from compute.sources.venue import VenueError
from serving.freshness import build_freshness
from serving.snapshot import build_snapshot
from tests.doubles.venues.market import Market
from tests.doubles.venues.server import VenuesDouble
from tests.support.bar_sets import get_recorded_folder, load_series, require_recorded
from tests.support.live_recording import replay_recording, write_recording
from tests.support.live_service import START, UNIVERSE, list_all_markets, open_live_service
from tests.support.running_service import ManualClock

pytestmark = pytest.mark.clause("live")

OPENS, NEXT = START, START + HOUR_S
WITHDRAWN_AT = NEXT + 27 * 60
HISTORY_S = 9 * DAY_S
Fetch = Callable[[int, int], Awaitable[Series]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(to_market_ms(START) + 5000)


def make_series(*last: float, count: int = 6) -> Series:
    """Return bars from 90 to 110, and a last one with the given open, high, low and close."""
    rows = [RawBar(START + n * HOUR_S, 100, 110, 90, 100, 1.0) for n in range(count)]
    return Series.from_rows([*rows, RawBar(START + count * HOUR_S, *last, 1.0)], HOUR_S)


def scale(bars: Series, factor: float) -> Series:
    columns = (factor * column for column in (bars.open, bars.high, bars.low, bars.close))
    return Series(bars.open_time, bars.close_time, *columns, bars.volume)


def answer(bars: Series) -> Fetch:
    async def fetch(after: int, until: int) -> Series:
        return bars.select((bars.close_time > after) & (bars.close_time <= until))

    return fetch


async def fail(after: int, until: int) -> Series:
    raise VenueError("it does not answer")


SPIKE, CRASH = make_series(100, 1000, 100, 1000), make_series(100, 100, 40, 45)
CALM = make_series(100, 130, 80, 120)


@pytest.mark.parametrize(
    ("bars", "others", "is_held"),
    [
        (CALM, [], False),
        # 110 x 1.3 = 143 and 90 / 1.3 = 69.2.
        (make_series(100, 142, 70, 100), [], False),
        (make_series(100, 144, 70, 100), [], True),
        (make_series(100, 142, 69, 100), [], True),
        (make_series(1000, 110, 90, 100), [], True),
        (make_series(100, 1000, 100, 1000, count=3), [], True),
        # Two bars before it are too few for a range.
        (make_series(100, 1000, 100, 1000, count=2), [], False),
        (SPIKE, [answer(CALM)], True),
        # Another scale, as of another quote or a proxy, does not matter.
        (SPIKE, [answer(scale(SPIKE, 0.1))], False),
        (SPIKE, [answer(CRASH)], True),
        (CRASH, [answer(scale(CRASH, 3.0))], False),
        # Half of the way, by logarithms: 90 to 40 is 0.81, 90 to 60 is 0.405, 90 to 61 is 0.389.
        (CRASH, [answer(make_series(100, 100, 60, 70))], False),
        (CRASH, [answer(make_series(100, 100, 61, 70))], True),
        # The first venue that has the hours decides.
        (CRASH, [fail, answer(NO_BARS), answer(CRASH)], False),
        (CRASH, [answer(CALM), answer(CRASH)], True),
        (CRASH, [answer(CRASH.select(np.arange(7) < 6)), answer(CRASH)], False),
        (CRASH, [answer(CRASH.select(np.arange(7) > 5)), answer(CRASH)], False),
        (CRASH, [fail], True),
    ],
)
async def test_an_extreme_bar_is_held_unless_another_venue_moved_alike(
    bars: Series, others: Sequence[Fetch], is_held: bool
) -> None:
    assert bool(await find_reason_to_hold(bars, others)) == is_held


async def test_a_plausible_bar_sends_no_request() -> None:
    async def refuse(after: int, until: int) -> Series:
        raise AssertionError("no request is needed")

    assert await find_reason_to_hold(CALM, [refuse]) == ""


async def test_the_bars_after_a_spike_or_a_crash_are_plausible() -> None:
    for extreme in (SPIKE, CRASH):
        for price in (100.0, float(extreme.close[-1])):
            row = RawBar(START + 7 * HOUR_S, price, price, price, price, 1.0)
            later = extreme.concatenate(Series.from_rows([row], HOUR_S))
            assert await find_reason_to_hold(later, []) == ""


async def test_one_of_97311_recorded_bars_is_extreme() -> None:
    require_recorded()
    found, count = [], 0
    for name, columns in load_series(get_recorded_folder()):
        if not name.endswith(" 1h"):
            continue
        prices = [columns[key] for key in ("open", "high", "low", "close", "volume")]
        closes = columns["close_time"]
        bars = Series(closes - HOUR_S, closes, *prices)
        count += len(bars) - 6
        # A bar that leaves the range of six has left that of one. The others need no judgement.
        highs, lows = np.maximum(bars.open, bars.high), np.minimum(bars.open, bars.low)
        moved = (highs[1:] > 1.29 * highs[:-1]) | (lows[1:] < lows[:-1] / 1.29)
        for last in np.flatnonzero(moved) + 1:
            places = np.arange(len(bars))
            judged = bars.select((places >= last - 6) & (places <= last))
            found += [name] * bool(await find_reason_to_hold(judged, []))
    assert (found, count) == (["ADA 1h"], 97_311)


def spike(market: Market, *, factor: float, corrected_at: int | None = None) -> Market:
    """Return a market whose bar at OPENS is another one, until a time if one is given."""
    bars = market.all_bars()
    place = next(n for n, bar in enumerate(bars) if bar.open_time == OPENS)
    true = bars[place]
    close = factor * true.close
    bars[place] = true._replace(high=max(true.high, close), low=min(true.low, close), close=close)
    spiked = Market(bars, market.settlements)
    if corrected_at is not None:
        spiked.revise(true, corrected_at)
    return spiked


def move_level(market: Market, factor: float) -> Market:
    """Return a market whose prices have another level from the close of OPENS on."""
    bars = [
        bar._replace(
            **{name: factor * getattr(bar, name) for name in ("open", "high", "low")}
        )._replace(close=factor * bar.close)
        if bar.open_time > OPENS
        else bar
        for bar in spike(market, factor=factor).all_bars()
    ]
    return Market(bars, market.settlements)


@pytest.mark.prove
async def test_a_withdrawn_spike_publishes_nothing_and_its_hour_comes_one_run_late(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    made = await list_all_markets(double)
    spiked = spike(made["ETH"], factor=10.0, corrected_at=WITHDRAWN_AT)
    double.get_venue("binance").add_listing("ETH/USDT", spiked)
    end = START + 4 * HOUR_S
    async with open_live_service(double, clock, tmp_path, history_s=HISTORY_S) as one:
        begin = (clock.now // 1000 - HISTORY_S) // DAY_S * DAY_S
        await one.runs.run_until(START)
        with capture_logs() as logged:
            await one.run_hour(NEXT)
            await one.run_late(30)
            snapshot = build_snapshot(await one.store.snapshot())
            assert snapshot is not None
            assert build_freshness(snapshot, clock.now)["late_assets"] == {"ETH": ["1h"]}
            assert "leaves the range of the bars before it" in one.source.late_reasons["ETH"]
            assert await one.load_closes("BTC") == [NEXT]
            for hour in range(NEXT + HOUR_S, end + 1, HOUR_S):
                await one.run_hour(hour, after_s=905)
                assert "ETH" not in one.runs.late
        held = [line for line in logged if line["event"] == "bar_held"]
        assert [(line["ticker"], line["at"]) for line in held] == [("ETH", "binance ETH/USDT")]
        assert [line for line in logged if line["event"] == "bars_missing"] == []
        served, changes = await one.store.snapshot(), await one.load_changes()
        report = await audit_market(one.store, UNIVERSE, INDICATORS)
    assert report.findings == []
    folder = write_recording(tmp_path / "bars", {"ETH": made["ETH"]}, [], begin, end)
    replayed = await replay_recording(folder, tmp_path / "replayed.db", UNIVERSE, end)
    assert served.readings["ETH"] == replayed.snapshot.readings["ETH"]
    rows = [row[1:9] for row in changes if row.ticker == "ETH"]
    assert sorted(rows, key=str) == sorted((row[1:9] for row in replayed.changes), key=str)


@pytest.mark.parametrize("factor", [0.4, 2.5])
@pytest.mark.sampled(2)
async def test_a_real_move_is_published_at_once_if_another_venue_has_it_else_one_run_late(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path, factor: float
) -> None:
    made = await list_all_markets(double)
    for ticker in ("BTC", "ETH"):
        double.get_venue("binance").add_listing(f"{ticker}/USDT", move_level(made[ticker], factor))
    double.get_venue("okx").add_listing("BTC/USDT", move_level(made["BTC"], factor))
    async with open_live_service(double, clock, tmp_path, history_s=2 * DAY_S) as one:
        await one.runs.run_until(START)
        await one.run_hour(NEXT)
        assert await one.load_closes("BTC") == [NEXT]
        assert (await one.load_closes("ETH"), tuple(one.runs.late)) == ([], ("ETH",))
        await one.run_hour(NEXT + HOUR_S)
        assert await one.load_closes("BTC") == [NEXT, NEXT + HOUR_S]
        assert await one.load_closes("ETH") == [NEXT, NEXT + HOUR_S]
        assert one.runs.late == {}


async def test_a_spike_that_another_venue_does_not_have_is_held_until_it_is_corrected(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    made = await list_all_markets(double)
    double.get_venue("okx").add_listing("BTC/USDT", Market(made["BTC"].all_bars()))
    spiked = spike(made["BTC"], factor=0.1, corrected_at=WITHDRAWN_AT)
    double.get_venue("binance").add_listing("BTC/USDT", spiked)
    async with open_live_service(double, clock, tmp_path, history_s=2 * DAY_S) as one:
        await one.runs.run_until(START)
        await one.run_hour(NEXT)
        assert (await one.load_closes("BTC"), tuple(one.runs.late)) == ([], ("BTC",))
        # The process is restarted, and remembers nothing of it.
    async with open_live_service(double, clock, tmp_path, history_s=2 * DAY_S) as one:
        await one.run_late(60)
        assert tuple(one.runs.late) == ("BTC",)
        await one.run_hour(NEXT + HOUR_S)
        [block] = await one.store.bars("BTC", OPENS - 1)
        true = made["BTC"].get_page(2**40, OPENS, OPENS, 1)[0]
        assert RawBar(OPENS, *block.values[0].tolist()) == true
        assert one.runs.late == {}


async def test_bars_older_than_an_hour_are_taken_as_the_venue_has_them(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    made = await list_all_markets(double)
    double.get_venue("binance").add_listing("ETH/USDT", spike(made["ETH"], factor=10.0))
    async with open_live_service(double, clock, tmp_path, history_s=2 * DAY_S) as one:
        await one.runs.run_until(START)
        await one.run_hour(NEXT + HOUR_S)
        assert await one.load_closes("ETH") == [NEXT, NEXT + HOUR_S]
