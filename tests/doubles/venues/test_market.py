"""The bars of a market that a venue of the double shows, by the clock and by their faults."""

import pytest

from compute.bars import HOUR_S, RawBar
from compute.universe import load_universe
from tests.doubles.venues.market import EVER, Market
from tests.doubles.venues.round_number_market import HOUR, NOW, make_bar, make_market
from tests.doubles.venues.sample_markets import (
    halve_bars,
    load_generated_market,
    make_simulated_markets,
)

pytestmark = pytest.mark.clause("live")


def shown(of: Market, now: int = NOW, limit: int = 4) -> list[RawBar]:
    return of.get_page(now, 0, EVER, limit, is_newest=True)


def test_the_forming_bar_is_shown_last_and_is_not_final() -> None:
    forming = shown(make_market())[-1]
    assert forming.open_time == HOUR
    assert forming != make_bar(0)
    assert make_bar(0).low < forming.low == forming.close < forming.open == forming.high
    assert shown(make_market(), HOUR + HOUR_S)[-2] == make_bar(0)


def test_a_page_counts_from_the_oldest_or_the_newest() -> None:
    every = make_market()
    assert every.get_page(NOW, HOUR - 9 * HOUR_S, EVER, 2) == [make_bar(-9), make_bar(-8)]
    assert every.get_page(NOW, 0, HOUR - HOUR_S, 2, is_newest=True) == [make_bar(-2), make_bar(-1)]


def test_a_late_bar_is_away_from_its_close_until_its_time() -> None:
    late = make_market()
    late.delay(HOUR - HOUR_S, 200)
    assert make_bar(-1) not in shown(late, HOUR + 199)
    assert make_bar(-1) in shown(late, HOUR + 200)


def test_missing_bars_never_come_and_the_page_reaches_further_back() -> None:
    gappy = make_market()
    gappy.withhold(HOUR - HOUR_S)
    gappy.withhold(HOUR - 5 * HOUR_S, HOUR - 3 * HOUR_S)
    assert shown(gappy)[:-1] == [make_bar(-7), make_bar(-6), make_bar(-2)]


def test_a_revised_bar_changes_at_its_time() -> None:
    revised = make_market()
    other = make_bar(-1)._replace(close=20_003.0)
    revised.revise(other, NOW)
    assert make_bar(-1) in shown(revised, NOW - 1)
    assert shown(revised)[-2] == other


def test_bars_can_repeat_and_come_in_any_order() -> None:
    odd = make_market()
    odd.repeat(HOUR - HOUR_S)
    assert shown(odd)[:-1] == [make_bar(-2), make_bar(-1), make_bar(-1)]
    odd.shuffle()
    assert shown(odd) != sorted(shown(odd))


def test_a_split_rescales_adjusted_history() -> None:
    split = make_market()
    split.split(4, HOUR - HOUR_S)
    before = make_bar(-2)
    scaled = [price / 4 for price in before[1:5]]
    assert shown(split, HOUR - HOUR_S - 1)[-1].open == before.open
    assert shown(split)[1] == RawBar(before.open_time, *scaled, 41.0)
    raw = split.get_page(NOW, 0, EVER, 3, is_newest=True, is_adjusted=False)
    assert [row.open for row in raw] == [before.open, make_bar(-1).open / 4, make_bar(0).open / 4]


def test_halves_make_the_hour_exactly() -> None:
    falling = make_bar(0)._replace(close=19_995.125)
    halves = halve_bars(Market([make_bar(-1), falling])).all_bars()
    for whole, (first, second) in zip(
        (make_bar(-1), falling), (halves[:2], halves[2:]), strict=True
    ):
        assert (first.open_time, second.open_time) == (whole.open_time, whole.open_time + 1800)
        assert (first.open, second.close) == (whole.open, whole.close)
        assert max(first.high, second.high) == whole.high
        assert min(first.low, second.low) == whole.low
        assert first.volume + second.volume == whole.volume
        for half in (first, second):
            assert half.low <= min(half.open, half.close) <= max(half.open, half.close) <= half.high


def test_generated_bars_move_by_whole_weeks() -> None:
    there, moved = (
        load_generated_market("BTC", newest=50),
        load_generated_market("BTC", newest=50, weeks=3),
    )
    assert len(there.all_bars()) == len(moved.all_bars()) == 50
    shift = 3 * 7 * 24 * HOUR_S
    assert [
        row._replace(open_time=row.open_time + shift) for row in there.all_bars()
    ] == moved.all_bars()
    assert moved.settlements == [(at + shift, rate) for at, rate in there.settlements]
    assert there.settlements


async def test_a_market_can_be_simulated_for_any_asset_of_the_universe() -> None:
    made = await make_simulated_markets(load_universe(), ("BTC", "NVDA"), HOUR - 7 * 86_400, HOUR)
    assert len(made["BTC"].all_bars()) > 160
    assert len(made["NVDA"].all_bars()) > 30
    assert made["BTC"].settlements
    assert not made["NVDA"].settlements
