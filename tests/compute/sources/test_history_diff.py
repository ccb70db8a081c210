import pytest

from compute.bars import HOUR_S, NO_BARS, RawBar, Series
from compute.sources.history_checks import HistoryDiff, diff_history

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


def test_equal_bars_and_later_ones_are_no_difference():
    assert diff_history(series(BARS[:3]), series(BARS)) == HistoryDiff()


def test_bars_that_were_not_fetched_again_are_not_compared():
    assert diff_history(series(BARS[:2]), series(BARS[2:])) == HistoryDiff()
    assert diff_history(NO_BARS, series(BARS)) == HistoryDiff()


@pytest.mark.parametrize("name", ["open", "high", "low", "close", "volume"])
def test_a_bar_with_any_other_number_is_revised(name):
    revised = BARS[1]._replace(**{name: getattr(BARS[1], name) * 1.001})
    assert diff_history(series(BARS), series([BARS[0], revised, *BARS[2:]])) == HistoryDiff(
        revised=(3600,)
    )


@pytest.mark.parametrize("ratio", [4.0, 10.0, 1.5, 1.05, 0.1, 1 / 30])
def test_prices_that_are_all_divided_by_one_number_are_a_split(ratio):
    fetched = diff_history(series(BARS), series(scaled(BARS, ratio)))
    assert fetched == HistoryDiff(split_ratio=pytest.approx(ratio))


def test_a_split_is_known_by_prices_that_are_rounded():
    assert diff_history(
        series(BARS), series(scaled(BARS, 7.0, digits=2))
    ).split_ratio == pytest.approx(7.0, rel=1e-3)


def test_one_bar_on_another_scale_among_others_is_a_revision():
    fetched = [*BARS[:3], *scaled(BARS[3:], 2.0)]
    assert diff_history(series(BARS), series(fetched)) == HistoryDiff(revised=(10_800,))


def test_too_few_bars_on_another_scale_make_no_split():
    assert diff_history(series(BARS), series(scaled(BARS[:2], 2.0))) == HistoryDiff(
        revised=(0, 3600)
    )


def test_a_flat_bar_that_moves_by_a_little_is_a_revision():
    flat = [RawBar(3600 * n, 5.0, 5.0, 5.0, 5.0, 0.0) for n in range(3)]
    moved = [b._replace(open=5.01, high=5.01, low=5.01, close=5.01) for b in flat]
    assert diff_history(series(flat), series(moved)) == HistoryDiff(revised=(0, 3600, 7200))


def test_the_only_stored_bar_is_enough_for_a_split():
    assert diff_history(series(BARS[:1]), series(scaled(BARS, 2.0))).split_ratio == 2.0


def test_a_bar_that_comes_after_later_ones_is_backfilled():
    fetched = diff_history(series([BARS[0], BARS[2]]), series(BARS))
    assert fetched == HistoryDiff(backfilled=(3600,))
