"""Bars that a venue leaves out: fetched again in parts, and counted if they stay missing."""

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from compute.bars import DAY_S, HOUR_S, NO_BARS, RawBar, Series
from compute.schedule import to_market_ms
from compute.sources.history_checks import MAX_REQUESTS, fill_holes, list_missing
from schemas.vocabulary import format_instant
from service.http.metrics_server import CurrentGauges
from serving.freshness import build_freshness
from serving.snapshot import build_snapshot
from tests.doubles.venues.server import VenuesDouble
from tests.support.ledgers import load_past
from tests.support.live_service import START, LiveService, list_all_markets, open_live_service
from tests.support.running_service import ManualClock

pytestmark = pytest.mark.clause("live")

BEGIN = START - 330 * DAY_S
HISTORY_S = 2 * DAY_S


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(to_market_ms(START) + 5000)


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


@pytest.mark.parametrize(("most_rows", "requests"), [(10_000, 0), (1000, 8), (200, 40)])
async def test_a_year_that_comes_in_short_answers_is_whole_within_the_bound(
    most_rows: int, requests: int
) -> None:
    venue = ScriptedAnswers(YEAR, most_rows)
    filled, count = await venue.fill()
    assert filled.open_time.tolist() == list(YEAR)
    assert count == requests <= MAX_REQUESTS


async def test_hours_without_trades_hide_no_bar_of_a_venue_that_shortens_its_answers() -> None:
    halts = {
        START - hours * HOUR_S for hours in (240, 241, 700, 1300, 1900, 2500, 3333, 4444, 5555)
    }
    traded = [at for at in YEAR if at not in halts]
    filled, count = await ScriptedAnswers(traded, 200).fill()
    assert filled.open_time.tolist() == traded
    assert count <= MAX_REQUESTS


async def test_answers_that_stay_too_short_end_at_the_bound() -> None:
    venue = ScriptedAnswers(YEAR, 5)
    filled, count = await venue.fill()
    assert count == MAX_REQUESTS
    assert len(filled) <= 5 * (1 + MAX_REQUESTS)


async def test_hours_without_trades_cost_two_requests_however_many_they_are() -> None:
    traded = [at for at in YEAR if at // HOUR_S % 3]
    filled, count = await ScriptedAnswers(traded, 10_000).fill()
    assert filled.open_time.tolist() == traded
    assert count == 2


async def test_a_single_hour_that_is_missing_costs_one_request() -> None:
    venue = ScriptedAnswers([at for at in YEAR if at != START - 5 * HOUR_S], 10_000)
    _, count = await venue.fill()
    assert (count, venue.requests[1:]) == (1, [(START - 5 * HOUR_S, START - 4 * HOUR_S)])


async def test_a_listing_that_begins_later_costs_one_request_for_the_day_before() -> None:
    begins = START - 100 * DAY_S
    venue = ScriptedAnswers(range(begins, START, HOUR_S), 10_000)
    filled, _ = await venue.fill(may_begin_later=True)
    assert venue.requests[1:] == [(begins - DAY_S, begins)]
    assert filled.open_time[0] == begins


async def test_older_bars_than_the_first_answer_has_are_all_fetched() -> None:
    venue = ScriptedAnswers(YEAR, 720)
    filled, _ = await venue.fill(may_begin_later=True)
    assert filled.open_time.tolist() == list(YEAR)


async def test_no_answer_at_all_is_not_asked_again() -> None:
    filled, count = await ScriptedAnswers([], 10).fill(may_begin_later=True)
    assert (len(filled), count) == (0, 0)


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
        for metric in CurrentGauges(snapshot, is_ready=True, now=one.clock.now).collect()
    }
    assert gauges["signals_missing_bars"] == sum(missing.values())
    return missing


async def load_opens(one: LiveService, ticker: str) -> list[int]:
    blocks = await one.store.bars(ticker)
    return [at for block in blocks for at in block.open_time.tolist()]


async def test_a_venue_that_returns_a_part_of_each_page_leaves_no_bar_out(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    made = await list_all_markets(double)
    made["ETH"].shorten(9)
    async with open_live_service(double, clock, tmp_path, history_s=HISTORY_S) as one:
        await one.runs.run_until(START)
        opens = await load_opens(one, "ETH")
        assert opens == list(range(opens[0], START, HOUR_S))
        assert opens[0] == (clock.now // 1000 - HISTORY_S) // DAY_S * DAY_S
        assert await count_missing(one) == {}


async def test_bars_that_stay_missing_are_counted_logged_once_and_named_over_restarts(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    made = await list_all_markets(double)
    first, last = START - 20 * HOUR_S, START - 16 * HOUR_S
    made["ETH"].withhold(first, last)
    with capture_logs() as logged:
        async with open_live_service(double, clock, tmp_path, history_s=HISTORY_S) as one:
            await one.runs.run_until(START)
            assert await count_missing(one) == {"ETH": 5}
        async with open_live_service(double, clock, tmp_path, history_s=HISTORY_S) as one:
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


async def test_a_venue_that_denies_a_symbol_for_an_empty_window_delays_nothing(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    made = await list_all_markets(double)
    opened = START - DAY_S + 3 * HOUR_S
    made["NVDA"].withhold(opened, opened + HOUR_S // 2)
    double.get_venue("alpaca").add_failure("unavailable", path="v2/assets/", status=404, times=None)
    async with open_live_service(double, clock, tmp_path, history_s=HISTORY_S) as one:
        await one.runs.run_until(START)
        assert one.runs.building_tickers == ()
        assert await load_opens(one, "NVDA")
        assert await count_missing(one) == {"NVDA": 1}


async def test_a_listing_that_begins_inside_the_history_lacks_no_bar(
    double: VenuesDouble, clock: ManualClock, tmp_path: Path
) -> None:
    made = await list_all_markets(double)
    made["ETH"].withhold(0, START - 21 * HOUR_S)
    async with open_live_service(double, clock, tmp_path, history_s=HISTORY_S) as one:
        await one.runs.run_until(START)
        assert (await load_opens(one, "ETH"))[0] == START - 20 * HOUR_S
        assert await count_missing(one) == {}
