"""Fetched history beside the stored one: differences, holes, and bars that are not plausible."""

from collections.abc import Awaitable, Callable, Collection, Sequence

import numpy as np
import pytest
from structlog.testing import capture_logs

from compute.bars import DAY_S, HOUR_S, NO_BARS, RawBar, Series
from compute.schedule import to_market_ms
from compute.sources.history_checks import (
    MAX_REQUESTS,
    HistoryDiff,
    diff_history,
    fill_holes,
    find_reason_to_hold,
    list_missing,
    select_compared,
)
from compute.sources.venue import VenueError
from schemas.vocabulary import format_instant
from service.http.metrics import CurrentGauges
from serving.freshness import build_freshness
from serving.snapshot import build_snapshot
from tests.compute.sources.conftest import Open
from tests.doubles.venues.market import Market
from tests.doubles.venues.server import VenuesDouble
from tests.support.bar_sets import get_recorded_folder, load_series, require_recorded
from tests.support.live_service import (
    START,
    LiveService,
)
from tests.support.small_market import load_past

pytestmark = pytest.mark.clause("live")


BARS = [
    RawBar(0, 100.0, 104.0, 99.0, 103.0, 10.0),
    RawBar(3600, 103.0, 103.5, 101.0, 102.0, 20.0),
    RawBar(7200, 102.0, 108.0, 102.0, 107.0, 30.0),
    RawBar(10_800, 107.0, 107.5, 105.0, 106.0, 40.0),
]


def series(bars: list[RawBar]) -> Series:
    return Series.from_rows(bars, HOUR_S)


def scaled(bars: list[RawBar], ratio: float, digits: int = 12) -> list[RawBar]:
    """Return bars after a split, their prices rounded as a venue prints them."""
    return [
        RawBar(b.open_time, *(round(p / ratio, digits) for p in b[1:5]), b.volume * ratio)
        for b in bars
    ]


FLAT = [RawBar(3600 * n, 5.0, 5.0, 5.0, 5.0, 0.0) for n in range(3)]
RATIOS = (4.0, 10.0, 1.5, 1.05, 0.1, 1 / 30)
# Stored bars, those that the venue now returns, and the difference.
DIFFS: dict[str, tuple[list[RawBar], list[RawBar], HistoryDiff]] = {
    "equal bars and later ones": (BARS[:3], BARS, HistoryDiff()),
    "bars that were not fetched again": (BARS[:2], BARS[2:], HistoryDiff()),
    "no stored bars": ([], BARS, HistoryDiff()),
    "a bar that comes after later ones": (
        [BARS[0], BARS[2]],
        BARS,
        HistoryDiff(backfilled=(3600,)),
    ),
    "a flat bar that moves by a little": (
        FLAT,
        [bar._replace(open=5.01, high=5.01, low=5.01, close=5.01) for bar in FLAT],
        HistoryDiff(revised=(0, 3600, 7200)),
    ),
    "one bar on another scale": (
        BARS,
        [*BARS[:3], *scaled(BARS[3:], 2.0)],
        HistoryDiff(revised=(10_800,)),
    ),
    "too few bars on another scale": (
        BARS,
        scaled(BARS[:2], 2.0),
        HistoryDiff(revised=(0, 3600)),
    ),
    "the only stored bar on another scale": (
        BARS[:1],
        scaled(BARS, 2.0),
        HistoryDiff(split_ratio=2.0),
    ),
    "rounded prices": (
        BARS,
        scaled(BARS, 7.0, digits=2),
        HistoryDiff(split_ratio=pytest.approx(7.0, rel=1e-3)),
    ),
    "a split that is adjusted after its first bar": (
        [*BARS[:3], *scaled(BARS[3:], 4.0)],
        scaled(BARS, 4.0),
        HistoryDiff(split_ratio=pytest.approx(4.0)),
    ),
    # They may be moved by chance.
    "only two bars from before a split": (
        [*BARS[:2], *scaled(BARS[2:], 4.0)],
        scaled(BARS, 4.0),
        HistoryDiff(revised=(0, 3600)),
    ),
}
DIFFS |= {
    f"prices divided by {ratio:.3g}": (
        BARS,
        scaled(BARS, ratio),
        HistoryDiff(split_ratio=pytest.approx(ratio)),
    )
    for ratio in RATIOS
}
DIFFS |= {
    f"another {name}": (
        BARS,
        [BARS[0], BARS[1]._replace(**{name: getattr(BARS[1], name) * 1.001}), *BARS[2:]],
        HistoryDiff(revised=(3600,)),
    )
    for name in RawBar._fields[1:]
}


@pytest.mark.parametrize(("stored", "fetched", "expected"), DIFFS.values(), ids=DIFFS)
def test_the_difference_of_two_histories_is_a_revision_a_late_bar_or_a_split(
    stored: list[RawBar], fetched: list[RawBar], expected: HistoryDiff
):
    assert diff_history(series(stored), series(fetched)) == expected


def test_the_bars_around_a_jump_are_compared_for_days_and_else_the_newest_ones():
    flat = [RawBar(n * HOUR_S, 100, 101, 99, 100, 1.0) for n in range(40)]
    opens = select_compared(series(flat)).open_time
    assert opens.tolist() == [n * HOUR_S for n in range(34, 40)]
    jumped = series([*flat[:20], *scaled(flat[20:], 4.0)])
    assert select_compared(jumped).open_time[0] == 14 * HOUR_S
    assert len(select_compared(NO_BARS)) == 0


@pytest.mark.parametrize("opened", [0.25 * 1.08, 0.25 * 0.93, 0.05 * 0.9, 1 / 1.1])
def test_a_late_split_is_found_however_far_the_market_moved_with_it(opened: float):
    # A vendor adjusts the bars before the split of 4, 20 or 1.1 for 1, 20 hours after it.
    flat = [RawBar(n * HOUR_S, 100, 101, 99, 100, 1.0) for n in range(40)]
    ratio = min((4, 20, 1.1), key=lambda each: abs(1 / each - opened))
    stored = series([*flat[:20], *scaled(flat[20:], 1 / opened)])
    fetched = series([*scaled(flat[:20], ratio), *scaled(flat[20:], 1 / opened)])
    assert diff_history(select_compared(stored), fetched).split_ratio == pytest.approx(ratio)


BEGIN = START - 330 * DAY_S


class ScriptedAnswers:
    """A venue that has the bars of some opens and returns the newest `most_rows` of a window."""

    def __init__(self, opens: Collection[int], most_rows: int) -> None:
        self.opens = sorted(opens)
        self.most_rows = most_rows
        self.requests: list[tuple[int, int]] = []

    async def fetch(self, after: int, until: int) -> Series:
        self.requests.append((after, until))
        shown = [at for at in self.opens if after < at + HOUR_S <= until][-self.most_rows :]
        rows = [RawBar(at, 10.0, 11.0, 9.0, 10.5, 1.0) for at in shown]
        return Series.from_rows(rows, HOUR_S) if rows else NO_BARS

    async def fill(self, *, may_begin_later: bool = False) -> tuple[Series, int]:
        """Return what a first answer and its repair bring, and the requests of the repair."""
        first = await self.fetch(BEGIN, START)
        filled = await fill_holes("24x7", first, BEGIN, self.fetch, may_begin_later=may_begin_later)
        assert (np.diff(filled.open_time) > 0).all()
        return filled, len(self.requests) - 1


YEAR = range(BEGIN, START, HOUR_S)


# If the listing may begin later, older bars are fetched too.
@pytest.mark.parametrize(
    ("most_rows", "may_begin_later", "requests"),
    [(10_000, False, 0), (1000, False, 7), (200, False, 39), (720, True, 11)],
)
async def test_a_year_that_comes_in_short_answers_is_whole_within_the_bound(
    most_rows: int, may_begin_later: bool, requests: int
) -> None:
    filled, count = await ScriptedAnswers(YEAR, most_rows).fill(may_begin_later=may_begin_later)
    assert filled.open_time.tolist() == list(YEAR)
    assert count == requests <= MAX_REQUESTS


@pytest.mark.prove
async def test_hours_without_trades_hide_no_bar_of_a_venue_that_shortens_its_answers() -> None:
    halts = {
        START - hours * HOUR_S for hours in (240, 241, 700, 1300, 1900, 2500, 3333, 4444, 5555)
    }
    traded = [at for at in YEAR if at not in halts]
    filled, count = await ScriptedAnswers(traded, 200).fill()
    assert filled.open_time.tolist() == traded
    assert count <= MAX_REQUESTS


async def test_answers_that_stay_too_short_end_at_the_bound() -> None:
    filled, count = await ScriptedAnswers(YEAR, 5).fill()
    assert count == MAX_REQUESTS
    assert len(filled) <= 5 * (1 + MAX_REQUESTS)


LATE_START, HALT = START - 100 * DAY_S, START - 5 * HOUR_S
HALTS = {START - days * DAY_S - n * HOUR_S for days in (20, 90, 200) for n in (0, 1)}
HALTS |= {START - days * DAY_S for days in (10, 50, 130, 250)}
# The opens that a venue has, whether they may begin later, and the requests of the repair.
GAPS: dict[str, tuple[Collection[int], bool, list[tuple[int, int]] | int]] = {
    "hours without trades, however many": ([at for at in YEAR if at // HOUR_S % 3], False, 1),
    "each halt, and two of four single hours": ([at for at in YEAR if at not in HALTS], False, 5),
    "a single hour": ([at for at in YEAR if at != HALT], False, [(HALT, HALT + HOUR_S)]),
    "a listing that begins later: the day before it": (
        range(LATE_START, START, HOUR_S),
        True,
        [(LATE_START - DAY_S, LATE_START)],
    ),
    "no bar at all": ([], True, 0),
}


@pytest.mark.parametrize(("opens", "may_begin_later", "requests"), GAPS.values(), ids=GAPS)
async def test_bars_that_a_venue_lacks_cost_few_requests(
    opens: Collection[int], may_begin_later: bool, requests: list[tuple[int, int]] | int
) -> None:
    venue = ScriptedAnswers(opens, 10_000)
    filled, count = await venue.fill(may_begin_later=may_begin_later)
    assert filled.open_time.tolist() == list(opens)
    assert requests in (count, venue.requests[1:])


async def test_bars_that_one_answer_lacks_are_fetched_although_longer_holes_are_halts() -> None:
    halts = {START - days * DAY_S + n * HOUR_S for days in (20, 90, 200) for n in range(10)}
    venue = ScriptedAnswers([at for at in YEAR if at not in halts], 10_000)
    whole = await venue.fetch(BEGIN, START)
    lost = [START - 150 * DAY_S + n * HOUR_S for n in range(3)]
    first = whole.select(~np.isin(whole.open_time, lost))
    filled = await fill_holes("24x7", first, BEGIN, venue.fetch, may_begin_later=False)
    assert filled.open_time.tolist() == list(venue.opens)


async def test_the_hours_at_which_a_session_is_closed_are_not_missing() -> None:
    friday = START + 2 * DAY_S
    empty = list_missing("XNAS", NO_BARS, friday, friday + 3 * DAY_S)
    # From Friday 12:00 UTC to Monday 12:00, only the hours of Friday's trading.
    assert [int(at - friday) // HOUR_S for at in empty] == [2, 3, 4, 5, 6, 7, 8]


async def count_missing(one: LiveService) -> dict[str, int]:
    """Return what `meta` says, and check that the metric says the same."""
    snapshot = build_snapshot(await one.store.snapshot())
    assert snapshot is not None
    missing: dict[str, int] = build_freshness(snapshot, one.clock.now)["missing_bars"]
    gauges = {
        metric.name: metric.samples[0].value
        for metric in CurrentGauges(snapshot, True, one.clock.now, {}, None).collect()
    }
    assert gauges["signals_missing_bars"] == sum(missing.values())
    return missing


async def load_opens(one: LiveService, ticker: str) -> list[int]:
    blocks = await one.store.bars(ticker)
    return [at for block in blocks for at in block.open_time.tolist()]


async def test_bars_that_stay_missing_are_counted_logged_once_and_named_over_restarts(
    open_service: Open, double: VenuesDouble, made: dict[str, Market]
) -> None:
    first, last = START - 20 * HOUR_S, START - 16 * HOUR_S
    made["ETH"].withhold(first, last)
    with capture_logs() as logged:
        async with open_service() as one:
            await one.start()
            assert await count_missing(one) == {"ETH": 5}
        async with open_service() as one:
            before = double.get_venue("binance").count_requests("klines", symbol="ETH/USDT")
            await one.run_hour(START + HOUR_S)
            after = double.get_venue("binance").count_requests("klines", symbol="ETH/USDT")
            assert after == before + 1
            assert await count_missing(one) == {"ETH": 5}
            # One that the readings go on without later on is added.
            made["ETH"].withhold(START + HOUR_S)
            await one.run_hour(START + 2 * HOUR_S)
            assert await count_missing(one) == {"ETH": 5}
            assert tuple(one.runs.late) == ("ETH",)
            await one.run_hour(START + 3 * HOUR_S)
            assert await count_missing(one) == {"ETH": 6}
            past = await load_past(one.store, to_market_ms(START) + 60_000)
            assert past.missing_bars == {"ETH": 5}
    skipped = [line for line in logged if line["event"] == "bars_skipped"]
    assert [(line["ticker"], line["at"], line["bars"]) for line in skipped] == [
        ("ETH", "binance ETH/USDT", 5),
        ("ETH", "binance ETH/USDT", 1),
    ]
    assert (skipped[0]["first"], skipped[0]["last"]) == (
        format_instant(1000 * (first + HOUR_S)),
        format_instant(1000 * (last + HOUR_S)),
    )


@pytest.mark.prove
async def test_a_venue_that_denies_a_symbol_for_an_empty_window_delays_nothing(
    open_service: Open, double: VenuesDouble, made: dict[str, Market]
) -> None:
    opened = START - DAY_S + 3 * HOUR_S
    made["NVDA"].withhold(opened, opened + HOUR_S // 2)
    double.get_venue("alpaca").add_failure("unavailable", path="v2/assets/", status=404, times=None)
    async with open_service() as one:
        await one.start()
        assert one.runs.building_tickers == ()
        assert await load_opens(one, "NVDA")
        assert await count_missing(one) == {"NVDA": 1}


@pytest.mark.prove
async def test_a_listing_that_begins_inside_the_history_lacks_no_bar(
    open_service: Open, made: dict[str, Market]
) -> None:
    made["ETH"].withhold(0, START - 21 * HOUR_S)
    async with open_service() as one:
        await one.start()
        assert (await load_opens(one, "ETH"))[0] == START - 20 * HOUR_S
        assert await count_missing(one) == {}


OPENS, NEXT = START, START + HOUR_S
WITHDRAWN_AT = NEXT + 27 * 60
HISTORY_S = 9 * DAY_S
Fetch = Callable[[int, int], Awaitable[Series]]


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


async def test_one_of_97305_recorded_bars_is_extreme() -> None:
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
    assert (found, count) == (["ADA 1h"], 97_305)


def spike(market: Market, *, factor: float, corrected_at: int | None = None) -> Market:
    """Return a market whose bar at OPENS is another one, until a time if one is given."""
    true = market.get_bar(OPENS)
    close = factor * true.close
    spike = true._replace(high=max(true.high, close), low=min(true.low, close), close=close)
    bars = [spike if bar == true else bar for bar in market.all_bars()]
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


@pytest.mark.parametrize("factor", [0.4, 2.5])
@pytest.mark.sampled(2)
@pytest.mark.prove
async def test_a_real_move_is_published_at_once_if_another_venue_has_it_else_one_run_late(
    live: LiveService, double: VenuesDouble, made: dict[str, Market], factor: float
) -> None:
    for ticker in ("BTC", "ETH"):
        double.get_venue("binance").add_listing(f"{ticker}/USDT", move_level(made[ticker], factor))
    double.get_venue("okx").add_listing("BTC/USDT", move_level(made["BTC"], factor))
    await live.run_hour(NEXT)
    assert await live.load_closes("BTC") == [NEXT]
    assert (await live.load_closes("ETH"), tuple(live.runs.late)) == ([], ("ETH",))
    await live.run_hour(NEXT + HOUR_S)
    assert await live.load_closes("BTC") == [NEXT, NEXT + HOUR_S]
    assert await live.load_closes("ETH") == [NEXT, NEXT + HOUR_S]
    assert live.runs.late == {}


@pytest.mark.prove
async def test_a_spike_that_another_venue_does_not_have_is_held_until_it_is_corrected(
    open_service: Open, double: VenuesDouble, made: dict[str, Market]
) -> None:
    double.get_venue("okx").add_listing("BTC/USDT", Market(made["BTC"].all_bars()))
    spiked = spike(made["BTC"], factor=0.1, corrected_at=WITHDRAWN_AT)
    double.get_venue("binance").add_listing("BTC/USDT", spiked)
    async with open_service() as one:
        await one.start()
        await one.run_hour(NEXT)
        assert (await one.load_closes("BTC"), tuple(one.runs.late)) == ([], ("BTC",))
        # The process is restarted, and remembers nothing of it.
    async with open_service() as one:
        await one.run_late(60)
        assert tuple(one.runs.late) == ("BTC",)
        await one.run_hour(NEXT + HOUR_S)
        [block] = await one.store.bars("BTC", OPENS - 1)
        assert RawBar(OPENS, *block.values[0].tolist()) == made["BTC"].get_bar(OPENS)
        assert one.runs.late == {}


@pytest.mark.prove
async def test_bars_older_than_an_hour_are_taken_as_the_venue_has_them(
    live: LiveService, double: VenuesDouble, made: dict[str, Market]
) -> None:
    double.get_venue("binance").add_listing("ETH/USDT", spike(made["ETH"], factor=10.0))
    await live.run_hour(NEXT + HOUR_S)
    assert await live.load_closes("ETH") == [NEXT, NEXT + HOUR_S]


# When NVDA's first hour closes, which has traded for 30 minutes.
OPENING = START + 2 * HOUR_S


def cut_prices(bar: RawBar, ratio: float) -> RawBar:
    """Return a bar after a split that its vendor already applies."""
    return RawBar(bar.open_time, *(price / ratio for price in bar[1:5]), bar.volume)


@pytest.mark.parametrize("hour", [0, 1, 2, 3])
@pytest.mark.sampled(2)
@pytest.mark.prove
async def test_an_implausible_bar_of_a_stock_is_held_in_each_hour_of_its_session(
    open_service: Open, double: VenuesDouble, made: dict[str, Market], hour: int
) -> None:
    bad = OPENING + hour * HOUR_S
    bars = [
        bar._replace(low=bar.close / 4, close=bar.close / 4)
        if bad - HOUR_S // 2 <= bar.open_time < bad
        else bar
        for bar in made["NVDA"].all_bars()
    ]
    market = Market(bars, period_s=made["NVDA"].period_s)
    double.get_venue("alpaca").add_listing("NVDA", market)
    async with open_service(history_s=HISTORY_S) as one:
        await one.start()
        for close in range(OPENING, bad + 1, HOUR_S):
            await one.run_hour(close, after_s=905)
            assert (tuple(one.runs.late) == ("NVDA",)) == (close == bad)
        assert "leaves the range" in one.source.late_reasons["NVDA"]


@pytest.mark.parametrize(
    ("hours", "expected"), [(0, ["history_replaced"]), (4, ["bar_held", "history_replaced"])]
)
@pytest.mark.prove
async def test_a_split_that_a_vendor_adjusts_at_once_or_hours_later_replaces_the_stored_history(
    open_service: Open,
    double: VenuesDouble,
    made: dict[str, Market],
    hours: int,
    expected: list[str],
) -> None:
    split_at, adjusted_at = OPENING, OPENING + hours * HOUR_S
    bars = made["NVDA"].all_bars()
    cut = [cut_prices(bar, 4.0) for bar in bars]
    is_new = [bar.open_time >= split_at - HOUR_S for bar in bars]
    market = Market(
        [new if later else old for old, new, later in zip(bars, cut, is_new, strict=True)],
        period_s=made["NVDA"].period_s,
    )
    for bar, later in zip(cut, is_new, strict=True):
        if not later:
            market.revise(bar, adjusted_at)
    double.get_venue("alpaca").add_listing("NVDA", market)
    async with open_service(history_s=HISTORY_S) as one:
        await one.start()
        with capture_logs() as logged:
            for close in range(OPENING, OPENING + 6 * HOUR_S, HOUR_S):
                await one.run_hour(close, after_s=905)
        told = [line for line in logged if line.get("ticker") == "NVDA"]
        assert [line["event"] for line in told] == expected
        assert told[-1]["why"] == "split 4:1"
        [old] = await one.store.bars("NVDA", revision=0)
        [new] = await one.store.bars("NVDA")
        before = old.open_time < split_at - HOUR_S
        assert np.allclose(old.values[before, :4], 4 * new.values[: before.sum(), :4])
        assert one.runs.late == {}
        await one.check_audit()
