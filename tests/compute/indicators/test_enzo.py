"""Enzo against TA-Lib's `KAMA` and `ATR`."""

from functools import cache

import numpy as np
import pytest
import talib

from compute.indicators.contract import NO_READING, Bar
from compute.indicators.enzo import Enzo
from tests.support.bar_sets import (
    TOLERANCE,
    Array,
    BarSet,
    Series,
    assert_readings_agree,
    assert_values_agree,
    compute_plain_latch,
    divide,
    near_thresholds,
    step_bar_set,
)
from tests.support.one_bar import advance_bar, step_bar

pytestmark = pytest.mark.clause("indicators")

FIRST_DEFINED_BAR = 16
PINNED = (1, "59c1334807b942a0")


@cache
def run_on(bar_set: BarSet):
    return step_bar_set(Enzo(), bar_set)


def plain_atr(series: Series) -> Array:
    """Return Wilder's average of 14 with the first bar, which TA-Lib's leaves out."""
    high, low, close = (series[name].tolist() for name in ("high", "low", "close"))
    ranges = [high[0] - low[0]]
    for t in range(1, len(close)):
        ranges.append(max(high[t], close[t - 1]) - min(low[t], close[t - 1]))
    averages = [float("nan")] * 13 + [sum(ranges[:14]) / 14]
    for spread in ranges[14:]:
        averages.append((averages[-1] * 13 + spread) / 14)
    return np.array(averages)


def run(close: Array) -> tuple[dict[str, Array], list[int]]:
    """Return the raw values and the readings from bar 200 on of bars that are one price."""
    watched, carry = Enzo().start(1), Enzo().start(1)
    values, readings = [], []
    for price in close:
        one = np.array([price])
        bar = Bar(one, one, one, one, np.ones(1), np.array([np.nan]))
        values.append({k: v[0] for k, v in advance_bar(Enzo(), watched, bar).items()})
        carry, reading = step_bar(Enzo(), carry, bar)
        readings.append(int(reading[0]))
    assert readings[:199] == [NO_READING] * 199
    return {key: np.array([v[key] for v in values]) for key in values[0]}, readings[199:]


def test_kama_slope_and_readings_agree_with_ta_lib(bar_set: BarSet):
    values = readings = 0
    for label, series, ours, reading in run_on(bar_set):
        kama, ranges = talib.KAMA(series["close"], 10), plain_atr(series)
        change = np.r_[[np.nan] * 5, kama[5:] - kama[:-5]]
        score = divide(change, ranges, series["close"])
        for name, theirs in (("kama", kama), ("atr", ranges), ("s", score)):
            values += assert_values_agree(f"{label} {name}", ours[name], theirs)
        near = near_thresholds(score, 0.50, 0.10)
        readings += assert_readings_agree(
            label, reading, compute_plain_latch(score, 0.50, 0.10), near
        )
    print(f"enzo: {values} values and {readings} readings agree with TA-Lib")
    assert values > 3 * bar_set.min_bars
    assert readings > bar_set.min_readings


def test_the_average_range_agrees_with_ta_lib_once_its_different_seed_has_decayed(bar_set: BarSet):
    values = 0
    for label, series, ours, _ in run_on(bar_set):
        theirs = talib.ATR(series["high"], series["low"], series["close"], 14)
        values += assert_values_agree(label, ours["atr"][399:], theirs[399:])
    print(f"enzo: {values} average ranges agree with TA-Lib from bar 400 on")
    assert values > bar_set.min_readings - 200 * len(run_on(bar_set))


def test_kama_agrees_with_ta_lib_on_flat_and_on_straight_prices():
    # Whole numbers keep TA-Lib's running sum of changes exact, so its 0/0 is an exact one too.
    random = np.random.default_rng(11)
    moves = np.repeat(random.integers(-1, 2, 400), random.integers(1, 25, 400))
    close = 10_000.0 + np.cumsum(moves)
    values, _ = run(close)
    theirs = talib.KAMA(close, 10)
    np.testing.assert_allclose(values["kama"], theirs, rtol=TOLERANCE, atol=TOLERANCE)
    still = sum(np.ptp(close[t - 10 : t + 1]) == 0 for t in range(10, len(close)))
    assert still > 100


def test_a_market_that_never_moved_has_no_slope():
    values, readings = run(np.full(260, 0.1))
    assert (values["kama"][10:] == 0.1).all()
    assert (values["s"][15:] == 0.0).all()
    assert readings == [0] * 61


@pytest.mark.parametrize("side", [1, -1])
def test_a_straight_trend_ends_on_the_eleventh_unchanged_bar(side):
    # At one a bar KAMA's gain is 4/9 and it lags by 5/4, the ATR is 1 and s = 5. After k >= 5
    # still bars s = 5/4 (5/9)^(k-5) (1 - (5/9)^5) / (13/14)^k: 0.131 at k = 10, 0.079 at 11.
    values, readings = run(1000.0 + side * np.r_[np.arange(220.0), [219.0] * 20])
    k = np.arange(5.0, 21.0)
    slope = 5 / 4 * (5 / 9) ** (k - 5) * (1 - (5 / 9) ** 5) / (13 / 14) ** k
    np.testing.assert_allclose(values["s"][199:220], 5 * side, rtol=1e-6)
    np.testing.assert_allclose(values["s"][224:], side * slope, rtol=1e-6)
    assert readings == [side] * 31 + [0] * 10
