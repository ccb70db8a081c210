"""Every bar of a stock is read by the run three minutes after its trading ends, on each source.

The expected closes are New York's full hours, counted by hand from the hours of the exchange.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from compute.bars import DAY_S, HOUR_S
from compute.hourly_pipeline import HourlyPipeline
from compute.schedule import to_market_ms
from compute.sources.simulated import SimulatedSource
from compute.universe import Universe, load_universe
from schemas.vocabulary import TIMEFRAME_DURATIONS_S, TIMEFRAMES, Timeframe
from tests.doubles.scripted_source import ALTERNATING
from tests.doubles.venues.alpaca import set_withheld_s
from tests.doubles.venues.server import VenuesDouble
from tests.support.live_service import list_universe, make_asset, open_live_service
from tests.support.running_service import ManualClock
from tests.support.small_market import open_store

pytestmark = pytest.mark.clause("1.30", "sources")

NEW_YORK = ZoneInfo("America/New_York")
SUMMER, WINTER, EARLY_CLOSE, AFTER_A_HOLIDAY = (
    date(2026, 8, 12),
    date(2026, 12, 9),
    date(2027, 11, 26),
    date(2026, 9, 8),
)
DAYS = [SUMMER, WINTER, EARLY_CLOSE, AFTER_A_HOLIDAY]
LAST_HOUR = {EARLY_CLOSE: 13}
# A stock of each exchange, and assets of the other sessions beside them.
TICKERS = ("IBM", "NVDA", "BTC", "XAU")
HISTORY_S = 9 * DAY_S

Closes = dict[Timeframe, list[int]]


@dataclass
class Market:
    """A pipeline whose indicator turns on every bar, so that every bar has a row."""

    runs: HourlyPipeline
    clock: ManualClock
    written: Callable[[], "AsyncIterator[tuple[str, Timeframe, int, int]]"]


def list_trading_closes(day: date) -> Closes:
    """Return the closes of a stock's bars on a trading day (epoch seconds), by timeframe."""
    last = LAST_HOUR.get(day, 16)
    local = [
        datetime(day.year, day.month, day.day, hour, tzinfo=NEW_YORK) for hour in range(10, 17)
    ]
    hours = [int(at.timestamp()) for at in local if at.hour <= last]
    longer = {
        timeframe: sorted({-(-close // period_s) * period_s for close in hours})
        for timeframe, period_s in TIMEFRAME_DURATIONS_S.items()
    }
    return {**longer, "1h": hours}


def midnight(day: date) -> int:
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())


def some(tickers: tuple[str, ...]) -> Universe:
    universe = load_universe()
    chosen = tuple(universe.by_ticker[ticker] for ticker in tickers)
    return Universe(assets=chosen, renamed_on=universe.renamed_on)


@asynccontextmanager
async def open_simulated(folder: Path, begins: int) -> AsyncIterator[Market]:
    clock = ManualClock(to_market_ms(begins))
    source = SimulatedSource(some(TICKERS), begins - HISTORY_S, clock)
    async with open_store(folder / "market.db") as store:
        runs = await HourlyPipeline.open(store, source, some(TICKERS), ALTERNATING, clock)

        async def written() -> AsyncIterator[tuple[str, Timeframe, int, int]]:
            async for row in store.changes():
                yield row.ticker, row.timeframe, row.close_time, row.created_at

        yield Market(runs, clock, written)


async def run_and_collect(
    market: Market, begins: int, ends: int, delay_s: int = 0
) -> tuple[dict[tuple[str, Timeframe], dict[int, float]], set[tuple[str, int]]]:
    """Run every hour, and once more after `delay_s`.

    Return the seconds from each bar's close to its row, and the assets that were late at an hour.
    """
    await market.runs.run_until(begins)
    market.clock.now = to_market_ms(begins) + 1000 * (delay_s + 1)
    await market.runs.run_late()
    late = set[tuple[str, int]]()
    for hour in range(begins + HOUR_S, ends + 1, HOUR_S):
        market.clock.now = to_market_ms(hour) + 1000
        await market.runs.run_until(hour)
        if delay_s:
            market.clock.now = to_market_ms(hour) + 1000 * (delay_s + 1)
            await market.runs.run_late()
        late |= {(ticker, hour) for ticker in market.runs.late}
    seconds: dict[tuple[str, Timeframe], dict[int, float]] = defaultdict(dict)
    async for ticker, timeframe, close, created_at in market.written():
        if close > begins:
            seconds[ticker, timeframe][close] = created_at / 1000 - close
    return seconds, late


@pytest.mark.parametrize("day", DAYS, ids=["summer", "winter", "early close", "after a holiday"])
@pytest.mark.sampled(2)
async def test_a_simulated_stock_is_read_three_minutes_after_each_close(tmp_path: Path, day: date):
    begins = midnight(day)
    async with open_simulated(tmp_path, begins) as market:
        seconds, late = await run_and_collect(market, begins, begins + DAY_S)
    assert not late & {(ticker, hour) for ticker in ("IBM", "NVDA") for _, hour in late}
    for ticker in ("IBM", "NVDA"):
        for timeframe, closes in list_trading_closes(day).items():
            assert list(seconds[ticker, timeframe]) == closes, (ticker, timeframe)
            assert all(180 <= after <= 300 for after in seconds[ticker, timeframe].values())


@pytest.mark.prove
async def test_in_weeks_around_a_change_of_clocks_only_late_bars_come_later(tmp_path: Path):
    begins, days = midnight(date(2026, 10, 22)), 15  # clocks go back on November 1
    async with open_simulated(tmp_path, begins) as market:
        seconds, late = await run_and_collect(market, begins, begins + days * DAY_S)
    assert 0 < len(late) < 20
    for (ticker, _), by_close in seconds.items():
        punctual = {c: s for c, s in by_close.items() if (ticker, c) not in late}
        assert {close: s for close, s in punctual.items() if not 180 <= s <= 300} == {}
    traded = [begins + n * DAY_S for n in range(days)]
    weekdays = [date(2026, 10, 22) + timedelta(days=n) for n in range(len(traded))]
    expected = [c for d in weekdays if d.weekday() < 5 for c in list_trading_closes(d)["1h"]]
    for ticker in ("IBM", "NVDA"):
        assert set(seconds[ticker, "1h"]) <= set(expected)
        assert len(expected) - len(seconds[ticker, "1h"]) <= 1  # an hour that never came
        daily = [c for d in weekdays if d.weekday() < 5 for c in list_trading_closes(d)["1d"]]
        assert list(seconds[ticker, "1d"]) == daily
    assert set(seconds) == {(ticker, timeframe) for ticker in TICKERS for timeframe in TIMEFRAMES}


STOCK = {"asset_class": "stock", "session": "XNAS"}
LISTINGS = {
    "paid plan": ("alpaca", "NVDA", 0),
    "free plan": ("alpaca", "NVDA", 900),
    "perpetual": ("binance", "NVDA/USDT:USDT", 0),
    "builder's perpetual": ("hyperliquid", "XYZ-NVDA/USDC:USDC", 0),
}


@pytest.mark.parametrize("day", DAYS, ids=["summer", "winter", "early close", "after a holiday"])
@pytest.mark.parametrize(("venue", "symbol", "delay_s"), LISTINGS.values(), ids=list(LISTINGS))
async def test_a_live_stock_is_read_three_minutes_after_each_close_and_its_plans_delay(
    double: VenuesDouble,
    clock: ManualClock,
    tmp_path: Path,
    day: date,
    venue: str,
    symbol: str,
    delay_s: int,
):
    begins = midnight(day)
    clock.now = to_market_ms(begins)
    universe = Universe(
        assets=(make_asset("NVDA", venue, symbol, **STOCK),), renamed_on=date(2026, 8, 17)
    )
    set_withheld_s(double, delay_s)
    await list_universe(double, universe, begins - 2 * HISTORY_S, begins + 2 * DAY_S)
    async with open_live_service(
        double, clock, tmp_path, universe, history_s=HISTORY_S, indicators=ALTERNATING
    ) as one:
        assert one.runs.delays == ((delay_s,) if delay_s else ())

        async def written() -> AsyncIterator[tuple[str, Timeframe, int, int]]:
            async for row in one.store.changes():
                yield row.ticker, row.timeframe, row.close_time, row.created_at

        market = Market(one.runs, clock, written)
        seconds, late = await run_and_collect(market, begins, begins + DAY_S, delay_s)
    assert late == set()
    for timeframe, closes in list_trading_closes(day).items():
        by_close = seconds["NVDA", timeframe]
        assert list(by_close) == closes, timeframe
        assert {s for s in by_close.values() if not 180 <= s - delay_s <= 300} == set()
