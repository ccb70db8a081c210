"""The simulated market: the same bits for any fetch, late and missing bars, plausible prices."""

import hashlib
from collections import Counter, defaultdict
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from compute.bars import (
    DAY_S,
    HOUR_S,
    NO_BARS,
    NO_FUNDING,
    RawBar,
    Series,
    validate_bars,
)
from compute.hourly_pipeline import HourlyPipeline
from compute.schedule import RUN_DELAY_S, to_market_ms
from compute.sources.simulated import (
    SimulatedSource,
    choose_start,
    format_source_name,
    parse_source_name,
)
from compute.sources.source import FetchResult
from compute.trading_sessions import XSIM_IRREGULAR_SINCE, Calendar, list_expected_bars
from compute.universe import Universe, load_universe
from schemas.vocabulary import TIMEFRAME_DURATIONS_S, Timeframe, compute_midnight_s
from store.sql.market_store import MarketStore
from tests.doubles.scripted_source import ALTERNATING
from tests.doubles.venues.alpaca import get_alpaca
from tests.doubles.venues.server import VenuesDouble
from tests.support.live_service import list_universe, make_asset, open_live_service
from tests.support.row_builders import list_changes
from tests.support.running_service import ManualClock
from tests.support.small_market import open_store

prove = pytest.mark.prove

ORIGIN = compute_midnight_s(date(2025, 12, 1))
FAR = ORIGIN + 20 * 365 * DAY_S
COLUMNS = ("open_time", "close_time", "open", "high", "low", "close", "volume")
EVERY_SESSION = ("BTC", "MATIC", "NVDA", "IBM", "XAU")
CRYPTO = ("BTC", "ETH", "SOL", "DOGE", "XRP", "ADA")
STOCKS = ("NVDA", "TSLA", "IBM", "AAPL")
METALS = ("XAU", "XAG")


@cache
def packaged() -> Universe:
    return load_universe()


def market(now_s: int = FAR, **options: int) -> SimulatedSource:
    return SimulatedSource(packaged(), ORIGIN, ManualClock(1000 * now_s), **options)


async def history(ticker: str, days: int, source: SimulatedSource | None = None) -> FetchResult:
    return await (source or market()).fetch(ticker, -1, ORIGIN + days * DAY_S)


def bits(series: Series) -> list[bytes]:
    return [getattr(series, name).tobytes() for name in COLUMNS]


def returns(series: Series) -> np.ndarray:
    return np.diff(np.log(series.close))


def missing(ticker: str, series: Series) -> int:
    session = packaged().by_ticker[ticker].session
    calendar: Calendar = "XSIM" if session in ("XNYS", "XNAS") else session
    expected = list_expected_bars(calendar, ORIGIN, int(series.close_time[-1]))
    assert set(series.open_time.tolist()) <= set(expected.open_time.tolist())
    return len(expected) - len(series)


@pytest.mark.clause("sources")
def test_a_market_has_330_days_of_history_at_least_from_a_midnight_that_its_name_remembers():
    for now, origin in (
        ("2026-03-01T10:20:30", date(2025, 4, 5)),
        ("2026-10-27T23:59:59", date(2025, 12, 1)),
        ("2030-01-01", date(2025, 12, 1)),
    ):
        now_s = int(datetime.fromisoformat(now).replace(tzinfo=UTC).timestamp())
        assert choose_start(now_s).origin == compute_midnight_s(origin)
    assert market().name == format_source_name(ORIGIN) == "simulated:1764547200"
    assert parse_source_name("simulated:1764547200") == (ORIGIN, None)
    priced = market(priced_at=FAR)
    assert priced.name == f"simulated:1764547200:{FAR}"
    assert parse_source_name(priced.name) == (ORIGIN, FAR)
    for other in ("files:/data", "simulated:", "simulated:-86400", "simulated:1 ", "simulated:1:"):
        assert parse_source_name(other) is None
    with pytest.raises(ValueError, match="not a UTC midnight"):
        SimulatedSource(packaged(), ORIGIN + HOUR_S, ManualClock(1000 * FAR))


@pytest.mark.clause("sources")
def test_every_asset_is_covered_hourly_and_without_end():
    source = market()
    assert source.kind == "simulated"
    assert source.ends_at is None
    assert {source.get_native_timeframe(asset.ticker) for asset in packaged().assets} == {"1h"}
    assert source.get_native_timeframe("NOSUCH") is None


@pytest.mark.clause("sources")
async def test_bars_begin_at_the_origin_and_follow_the_calendar():
    for ticker, first in (("BTC", 1), ("NVDA", 15), ("XAU", 1)):
        bars = (await history(ticker, 60)).bars
        assert bars.close_time[0] == ORIGIN + first * HOUR_S
        assert market().find_next_close(ticker, -1) == bars.close_time[0]
        assert missing(ticker, bars) <= 6


@pytest.mark.clause("sources")
async def test_an_asset_does_not_depend_on_the_other_assets():
    single = Universe(assets=(packaged().by_ticker["SOL"],), renamed_on=packaged().renamed_on)
    for after, until in ((-1, ORIGIN + 100 * DAY_S), (ORIGIN, ORIGIN + 9 * DAY_S)):
        ours = await SimulatedSource(single, ORIGIN, ManualClock(1000 * FAR)).fetch(
            "SOL", after, until
        )
        theirs = await market().fetch("SOL", after, until)
        assert bits(ours.bars) == bits(theirs.bars)
        assert ours.funding.rate.tobytes() == theirs.funding.rate.tobytes()


@pytest.mark.clause("sources")
async def test_an_origin_cuts_the_history_and_changes_no_bar():
    earlier = SimulatedSource(packaged(), ORIGIN - 100 * DAY_S, ManualClock(1000 * FAR))
    for ticker in EVERY_SESSION:
        ours = await earlier.fetch(ticker, ORIGIN, ORIGIN + 30 * DAY_S)
        assert bits(ours.bars) == bits((await history(ticker, 30)).bars)


@pytest.mark.clause("sources")
@pytest.mark.clause("14.6")
async def test_the_market_of_the_default_seed_never_changes():
    """Stores continue from the bars they have, so another digest would break running services."""
    digest = hashlib.sha256()
    source = market()
    for ticker in EVERY_SESSION:
        fetched = await source.fetch(ticker, ORIGIN + 200 * DAY_S, ORIGIN + 260 * DAY_S)
        for column in (*bits(fetched.bars), fetched.funding.rate.tobytes()):
            digest.update(column)
    assert digest.hexdigest()[:16] == "bcf6b5504775b3da"


@pytest.mark.clause("sources")
@pytest.mark.parametrize(
    ("eve", "bars"),
    [
        (date(2025, 12, 24), 7),
        (date(2026, 11, 27), 7),
        (date(2026, 12, 24), 7),
        (date(2027, 11, 26), 4),
        (date(2028, 7, 3), 4),
    ],
)
async def test_early_closes_begin_in_2027_so_that_no_stored_bar_is_lost(eve: date, bars: int):
    assert date(2027, 1, 1) == XSIM_IRREGULAR_SINCE
    start = compute_midnight_s(eve)
    for ticker in STOCKS[:2]:
        assert len((await market().fetch(ticker, start, start + DAY_S)).bars) == bars


@pytest.mark.clause("sources")
@pytest.mark.clause("14.5")
@pytest.mark.prove
async def test_on_the_day_of_a_first_start_every_asset_costs_its_sample_price():
    # Monday and Sunday: stocks and metals cost it when they trade next.
    for now in ("2026-11-23T15:20:00", "2026-11-22T00:00:00"):
        now_s = int(datetime.fromisoformat(now).replace(tzinfo=UTC).timestamp())
        start = choose_start(now_s)
        assert start == (ORIGIN, now_s // DAY_S * DAY_S)
        source = market(now_s=now_s + 2 * DAY_S, priced_at=start.priced_at)
        for asset in packaged().assets[::9]:
            bars = (await source.fetch(asset.ticker, start.priced_at, now_s + 2 * DAY_S)).bars
            if asset.session == "24x7" and bars.open_time[0] == start.priced_at:
                assert bars.close[0] == pytest.approx(asset.sample_price, rel=1e-9), asset.ticker
            assert bars.open[0] == pytest.approx(asset.sample_price, rel=0.1), asset.ticker


@pytest.mark.clause("sources")
@pytest.mark.clause("14.5")
@pytest.mark.prove
async def test_sample_prices_scale_a_market_and_change_none_of_its_moves():
    priced = market(priced_at=ORIGIN + 330 * DAY_S)
    for ticker in EVERY_SESSION:
        ours, drawn = await history(ticker, 30, priced), await history(ticker, 30)
        scale = ours.bars.close / drawn.bars.close
        # Prices are rounded to six digits.
        assert scale == pytest.approx(scale[0], rel=2e-4)
        assert ours.bars.close_time.tolist() == drawn.bars.close_time.tolist()
        assert ours.funding.rate == pytest.approx(drawn.funding.rate, abs=1e-6)
        volume_scale = ours.bars.volume / drawn.bars.volume
        assert volume_scale == pytest.approx(volume_scale[0], rel=0.02)


@pytest.mark.clause("sources")
@pytest.mark.clause("14.5")
async def test_an_asset_without_a_sample_price_costs_what_it_is_drawn_to_cost():
    btc = packaged().by_ticker["BTC"].model_copy(update={"sample_price": None})
    universe = Universe(assets=(btc,), renamed_on=packaged().renamed_on)
    source = SimulatedSource(
        universe, ORIGIN, ManualClock(1000 * FAR), priced_at=ORIGIN + 330 * DAY_S
    )
    ours = (await history("BTC", 340, source)).bars.close
    assert 1 / 4 < ours[0] / (await history("BTC", 340)).bars.close[0] < 4


@pytest.mark.clause("sources")
@pytest.mark.prove
async def test_every_bar_is_one_that_the_service_accepts():
    for ticker in EVERY_SESSION:
        bars = (await history(ticker, 400)).bars
        rows = zip(*(getattr(bars, c).tolist() for c in COLUMNS if c != "close_time"), strict=True)
        good, bad = validate_bars([RawBar(*row) for row in rows], HOUR_S)
        assert bad == []
        assert (Series.from_rows(good, HOUR_S).close_time == bars.close_time).all()
        assert (bars.low <= np.minimum(bars.open, bars.close)).all()
        assert (bars.high >= np.maximum(bars.open, bars.close)).all()
        assert (bars.volume > 0).all()


@pytest.mark.clause("sources")
@pytest.mark.parametrize("every", [24, pytest.param(6, marks=prove)])
@pytest.mark.prove
async def test_prices_stay_sane_for_ten_years(every: int):
    source = market()
    for asset in packaged().assets[::every]:
        bars = (await history(asset.ticker, 3652, source)).bars
        assert bars.low.min() > 0
        assert bars.high.max() / bars.low.min() < 1000, asset.ticker
        assert np.abs(returns(bars)).max() < 0.4, asset.ticker
        low, high = {"crypto": (1e-5, 1e6), "stock": (2, 9000), "metal": (2, 30_000)}[
            asset.asset_class
        ]
        assert low < np.median(bars.close) < high, asset.ticker


@pytest.mark.clause("sources")
async def test_volume_follows_the_day_and_the_moves():
    bars = (await history("BTC", 400)).bars
    hour = bars.open_time // HOUR_S % 24
    assert bars.volume[hour == 16].mean() > 1.3 * bars.volume[hour == 4].mean()
    assert np.corrcoef(np.abs(returns(bars)), bars.volume[1:])[0, 1] > 0.2


@pytest.mark.clause("sources")
async def test_only_perpetuals_settle_three_times_a_day():
    rates = (await history("BTC", 30)).funding
    assert rates.settled_at.tolist() == [
        *range(ORIGIN + 8 * HOUR_S, ORIGIN + 30 * DAY_S + 1, 28800)
    ]
    for ticker in ("NVDA", "XAU"):
        assert len((await history(ticker, 30)).funding.rate) == 0


@pytest.mark.clause("sources")
async def test_funding_is_small_follows_the_trend_and_at_times_shuts_the_gate():
    shut = Counter[bool]()
    for ticker in CRYPTO:
        fetched = await history(ticker, 400)
        bars, funding = fetched.bars, fetched.funding
        assert -0.0001 < np.median(funding.rate) < 0.0003
        assert np.abs(funding.rate).max() <= 0.003
        price = np.interp(funding.settled_at, bars.close_time, bars.close)
        assert np.corrcoef(np.log(price[9:] / price[:-9]), funding.rate[9:])[0, 1] > 0.5
        shut.update((np.abs(funding.annualise(bars.close_time)[24:]) > 0.6).tolist())
    assert 0.002 < shut[True] / shut.total() < 0.15


# At the 45th hour many are late together.
@pytest.mark.clause("sources")
@pytest.mark.parametrize(("begins", "ends"), [(40, 64), pytest.param(0, 72, marks=prove)])
@pytest.mark.prove
async def test_an_asset_behind_is_late_by_minutes_mostly_and_sometimes_by_hours(
    begins: int, ends: int
):
    """Count the assets that are behind at a run, after the last retry, and hours later."""
    clock = ManualClock(0)
    source = SimulatedSource(packaged(), ORIGIN, clock)
    tickers = [asset.ticker for asset in packaged().tracked_assets if asset.session == "24x7"]
    behind, many = Counter[int](), 0
    for hour in range(ORIGIN + (begins + 1) * HOUR_S, ORIGIN + ends * HOUR_S, HOUR_S):
        at_run: list[str] = []
        for delay in (0, 30, 60, 120, 1200, 4 * HOUR_S):
            clock.now = 1000 * (hour + RUN_DELAY_S + delay)
            for ticker in tickers if delay == 0 else at_run:
                if (await source.fetch(ticker, hour - HOUR_S, hour)).watermark < hour:
                    behind[delay] += 1
                    at_run += [ticker] if delay == 0 else []
        many += len(at_run) >= 4
    assert 0.002 < behind[0] / (len(tickers) * (ends - begins)) < 0.008
    assert behind[0] > behind[30] > behind[60] > behind[120] >= behind[1200] >= behind[4 * HOUR_S]
    assert behind[120] < 0.6 * behind[0]
    assert behind[4 * HOUR_S] == 0
    assert many


@pytest.mark.clause("sources")
async def test_a_missing_hour_is_known_an_hour_later_and_then_holds_nothing_up():
    ticker, bars = "BTC", (await history("BTC", 200)).bars
    place = int(np.flatnonzero(np.diff(bars.close_time) == 2 * HOUR_S)[0])
    gap = int(bars.close_time[place]) + HOUR_S
    clock = ManualClock(1000 * gap)
    source = SimulatedSource(packaged(), ORIGIN, clock)
    for seconds in (0, RUN_DELAY_S, HOUR_S - 1):
        clock.now = 1000 * (gap + seconds)
        assert (await source.fetch(ticker, gap - DAY_S, gap)).watermark == gap - HOUR_S
    clock.now = 1000 * (gap + HOUR_S)
    fetched = await source.fetch(ticker, gap - HOUR_S, gap + HOUR_S)
    assert fetched.watermark == gap + HOUR_S
    assert fetched.bars.close_time.tolist() == [gap + HOUR_S]
    assert source.find_next_close(ticker, gap - HOUR_S) == gap


@pytest.mark.clause("sources")
async def test_a_bar_is_not_given_before_its_close():
    clock = ManualClock(1000 * (ORIGIN + 5 * HOUR_S - 1))
    source = SimulatedSource(packaged(), ORIGIN, clock)
    fetched = await source.fetch("BTC", -1, ORIGIN + DAY_S)
    assert fetched.watermark == fetched.bars.close_time[-1] == ORIGIN + 4 * HOUR_S
    clock.now += 1000
    assert (await source.fetch("BTC", -1, ORIGIN + DAY_S)).watermark == ORIGIN + 5 * HOUR_S


@pytest.mark.clause("sources")
async def test_while_its_session_is_closed_an_asset_is_complete_up_to_the_clock():
    saturday = ORIGIN + 5 * DAY_S + 12 * HOUR_S + 34
    for ticker in ("NVDA", "XAU"):
        assert (await market(saturday).fetch(ticker, -1, saturday + DAY_S)).watermark == saturday
    assert (await market(saturday).fetch("BTC", -1, saturday + DAY_S)).watermark == saturday - 34


@pytest.mark.clause("sources")
async def test_a_watermark_never_passes_the_requested_hour_nor_falls_back():
    source = market(ORIGIN + 3 * DAY_S)
    for ticker in EVERY_SESSION:
        assert (await source.fetch(ticker, -1, ORIGIN + DAY_S)).watermark == ORIGIN + DAY_S
        ahead = ORIGIN + 4 * DAY_S
        fetched = await source.fetch(ticker, ahead, ahead + HOUR_S)
        assert (fetched.watermark, len(fetched.bars)) == (ahead, 0)


# By default around a bar that comes late; of DOGE and XAU there is also one that never comes.
LATE_DAYS = {"BTC": (4, 9), "DOGE": (11, 16), "NVDA": (45, 47), "XAU": (17, 25)}


@pytest.mark.clause("sources")
@pytest.mark.parametrize(
    ("ticker", "begins", "ends"),
    [
        *((ticker, *days) for ticker, days in LATE_DAYS.items()),
        *(pytest.param(ticker, 0, 60, marks=prove) for ticker in LATE_DAYS),
    ],
)
@pytest.mark.sampled(2)
async def test_live_fetches_bring_every_bar_once_and_nothing_below_the_watermark(
    ticker: str, begins: int, ends: int
):
    clock = ManualClock(1000 * ORIGIN)
    source = SimulatedSource(packaged(), ORIGIN, clock)
    bars, funding, seen = NO_BARS, NO_FUNDING, -1
    end = ORIGIN + ends * DAY_S
    for hour in range(ORIGIN + begins * DAY_S, end + 5 * HOUR_S, HOUR_S):
        for delay in (0, 30, 60, 120):
            clock.now = 1000 * (hour + RUN_DELAY_S + delay)
            part = await source.fetch(ticker, seen, hour)
            assert seen <= part.watermark <= hour
            times = np.concatenate([part.bars.close_time, part.funding.settled_at])
            assert ((seen < times) & (times <= part.watermark)).all()
            bars = bars.concatenate(part.bars) if len(part.bars) else bars
            funding = funding.concatenate(part.funding) if len(part.funding.rate) else funding
            seen = part.watermark
    whole = await history(ticker, ends)
    assert bits(bars.select(bars.close_time <= end)) == bits(whole.bars)
    assert funding.select_between(-1, end).rate.tobytes() == whole.funding.rate.tobytes()


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


def list_trading_closes(day: date) -> dict[Timeframe, list[int]]:
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


async def run_and_collect(
    runs: HourlyPipeline,
    store: MarketStore,
    clock: ManualClock,
    begins: int,
    ends: int,
    delay_s: int = 0,
) -> tuple[dict[tuple[str, Timeframe], dict[int, float]], set[tuple[str, int]]]:
    """Run every hour, and once more after `delay_s`.

    Return the seconds from each bar's close to its row, and the assets that were late at an hour.
    The indicator turns on every bar, so that every bar has a row.
    """
    await runs.run_until(begins)
    clock.now = to_market_ms(begins) + 1000 * (delay_s + 1)
    await runs.run_late()
    late = set[tuple[str, int]]()
    for hour in range(begins + HOUR_S, ends + 1, HOUR_S):
        clock.now = to_market_ms(hour) + 1000
        await runs.run_until(hour)
        if delay_s:
            clock.now = to_market_ms(hour) + 1000 * (delay_s + 1)
            await runs.run_late()
        late |= {(ticker, hour) for ticker in runs.late}
    seconds: dict[tuple[str, Timeframe], dict[int, float]] = defaultdict(dict)
    for row in await list_changes(store):
        if row.close_time > begins:
            after_s = row.created_at / 1000 - row.close_time
            seconds[row.ticker, row.timeframe][row.close_time] = after_s
    return seconds, late


@pytest.mark.clause("1.30", "sources")
@pytest.mark.parametrize("day", DAYS, ids=["summer", "winter", "early close", "after a holiday"])
@pytest.mark.sampled(2)
@pytest.mark.prove
async def test_a_simulated_stock_is_read_three_minutes_after_each_close(tmp_path: Path, day: date):
    begins = compute_midnight_s(day)
    clock = ManualClock(to_market_ms(begins))
    assets = tuple(packaged().by_ticker[ticker] for ticker in TICKERS)
    universe = Universe(assets=assets, renamed_on=packaged().renamed_on)
    source = SimulatedSource(universe, begins - HISTORY_S, clock)
    async with open_store(tmp_path / "market.db") as store:
        runs = await HourlyPipeline.open(store, source, universe, ALTERNATING, clock)
        seconds, late = await run_and_collect(runs, store, clock, begins, begins + DAY_S)
    assert not late & {(ticker, hour) for ticker in ("IBM", "NVDA") for _, hour in late}
    for ticker in ("IBM", "NVDA"):
        for timeframe, closes in list_trading_closes(day).items():
            assert list(seconds[ticker, timeframe]) == closes, (ticker, timeframe)
            assert all(180 <= after <= 300 for after in seconds[ticker, timeframe].values())


STOCK = {"asset_class": "stock", "session": "XNAS"}
LISTINGS = {
    "paid plan": ("alpaca", "NVDA", 0),
    "free plan": ("alpaca", "NVDA", 900),
    "perpetual": ("binance", "NVDA/USDT:USDT", 0),
    "builder's perpetual": ("hyperliquid", "XYZ-NVDA/USDC:USDC", 0),
}


@pytest.mark.clause("1.30", "sources")
@pytest.mark.parametrize("day", DAYS, ids=["summer", "winter", "early close", "after a holiday"])
@pytest.mark.parametrize(("venue", "symbol", "delay_s"), LISTINGS.values(), ids=list(LISTINGS))
@pytest.mark.prove
async def test_a_live_stock_is_read_three_minutes_after_each_close_and_its_plans_delay(
    double: VenuesDouble,
    clock: ManualClock,
    tmp_path: Path,
    day: date,
    venue: str,
    symbol: str,
    delay_s: int,
):
    begins = compute_midnight_s(day)
    clock.now = to_market_ms(begins)
    universe = Universe(
        assets=(make_asset("NVDA", venue, symbol, **STOCK),), renamed_on=date(2026, 8, 17)
    )
    get_alpaca(double).withheld_s = delay_s
    await list_universe(double, universe, begins - 2 * HISTORY_S, begins + 2 * DAY_S)
    async with open_live_service(
        double, clock, tmp_path, universe, history_s=HISTORY_S, indicators=ALTERNATING
    ) as one:
        assert one.runs.delays == ((delay_s,) if delay_s else ())
        await one.start(begins)
        seconds, late = await run_and_collect(
            one.runs, one.store, clock, begins, begins + DAY_S, delay_s
        )
    assert late == set()
    for timeframe, closes in list_trading_closes(day).items():
        by_close = seconds["NVDA", timeframe]
        assert list(by_close) == closes, timeframe
        assert {s for s in by_close.values() if not 180 <= s - delay_s <= 300} == set()
