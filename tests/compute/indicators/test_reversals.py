"""Reversals against TA-Lib's `RSI` and `BBANDS` and NumPy's SD."""

from functools import cache

import numpy as np
import pytest
import talib

from compute.indicators.contract import NO_READING, Bar
from compute.indicators.reversals import Reversals
from tests.support.bar_sets import (
    TOLERANCE,
    Array,
    BarSet,
    Series,
    assert_readings_agree,
    assert_values_agree,
    step_bar_set,
)
from tests.support.one_bar import advance_bar, step_bar

pytestmark = pytest.mark.clause("indicators")

# Of the bands: the first event needs those of the previous bar too (bar 21).
FIRST_DEFINED_BAR = 20
PINNED = (1, "0216b17cabb61520")

# TA-Lib's SD is E(x^2) - E(x)^2 from running sums, which cancel: its bands carry fewer digits.
TA_LIB_BANDS_RATIO = 1e-6


@cache
def run_on(bar_set: BarSet):
    return step_bar_set(Reversals(), bar_set)


def expected_rsi(close: Array) -> Array:
    """Return TA-Lib's RSI, and 50 instead of its 0 while no close has differed from the first."""
    rsi = talib.RSI(close, 14)
    rsi[14:][np.maximum.accumulate(close != close[0])[14:] == 0] = 50.0
    return rsi


def expected_bands(close: Array) -> tuple[Array, Array]:
    """Return (upper, lower), with each window's mean and SD computed from scratch."""
    windows = np.lib.stride_tricks.sliding_window_view(close, 20)
    middle, width = windows.mean(axis=1), 2 * windows.std(axis=1, ddof=0)
    undefined = np.full(19, np.nan)
    return np.r_[undefined, middle + width], np.r_[undefined, middle - width]


def expected_readings(series: Series, *columns: Array) -> tuple[Array, Array]:
    """Return the readings, and flags of bars with an RSI or a close near a threshold."""
    close, high, low = (series[name].tolist() for name in ("close", "high", "low"))
    rsi, upper, lower = (column.tolist() for column in columns)
    side, age, level = 0, 0, float("nan")
    readings, near = [0] * 20, [False] * 20
    for t in range(20, len(close)):
        least, most = min(rsi[t - 4 : t + 1]), max(rsi[t - 4 : t + 1])
        if least <= 30 and close[t - 1] <= lower[t - 1] and close[t] > lower[t]:
            side, age, level = 1, 0, min(low[t - 4 : t + 1])
        elif most >= 70 and close[t - 1] >= upper[t - 1] and close[t] < upper[t]:
            side, age, level = -1, 0, max(high[t - 4 : t + 1])
        elif side != 0:
            age += 1
            is_beyond = close[t] < level if side == 1 else close[t] > level
            if age >= 12 or is_beyond:
                side = 0
        gaps = [least - 30, most - 70]
        gaps += [close[s] - band[s] for s in (t - 1, t) for band in (upper, lower)]
        readings.append(side)
        near.append(min(map(abs, gaps)) <= TOLERANCE)
    return np.array(readings), np.array(near)


def run(close: Array) -> tuple[dict[str, Array], list[int]]:
    """Return the raw values and the readings from bar 200 on of bars that are one price."""
    watched, carry = Reversals().start(1), Reversals().start(1)
    values, readings = [], []
    for price in close:
        one = np.array([price])
        bar = Bar(one, one, one, one, np.ones(1), np.array([np.nan]))
        values.append({k: v[0] for k, v in advance_bar(Reversals(), watched, bar).items()})
        carry, reading = step_bar(Reversals(), carry, bar)
        readings.append(int(reading[0]))
    assert readings[:199] == [NO_READING] * 199
    return {key: np.array([v[key] for v in values]) for key in values[0]}, readings[199:]


def reversal(side: int, *after: float) -> list[int]:
    """Return the readings of bars 1 to 199 at 100, 200 at 90, 201 at 96, then `after`.

    Bar 200 closes below its lower band, 99.5 - 20 sqrt(0.05 x 0.95) = 95.14; bar 201 above its,
    99.3 - 2 sqrt(5.31) = 94.69. Side -1 is the mirror image about 100.
    """
    prices = np.array([100.0] * 199 + [90.0, 96.0, *after])
    values, readings = run(100 + side * (prices - 100))
    band = 100 + side * (values["lower" if side == 1 else "upper"] - 100)
    np.testing.assert_allclose(band[199], 99.5 - 20 * np.sqrt(0.05 * 0.95), rtol=1e-12)
    np.testing.assert_allclose(band[200], 99.3 - 2 * np.sqrt(5.31), rtol=1e-12)
    return readings


def test_rsi_bands_and_readings_agree_with_ta_lib_and_numpy(bar_set: BarSet):
    values = readings = 0
    for label, series, ours, reading in run_on(bar_set):
        rsi, (upper, lower) = expected_rsi(series["close"]), expected_bands(series["close"])
        for name, theirs in (("rsi", rsi), ("upper", upper), ("lower", lower)):
            values += assert_values_agree(f"{label} {name}", ours[name], theirs)
        theirs, near = expected_readings(series, rsi, upper, lower)
        readings += assert_readings_agree(label, reading, theirs, near)
    print(f"reversals: {values} values and {readings} readings agree with TA-Lib and NumPy")
    assert values > 3 * bar_set.min_bars
    assert readings > bar_set.min_readings


def test_bands_agree_with_ta_lib_as_far_as_its_running_sums_are_exact(bar_set: BarSet):
    values = 0
    for label, series, ours, _ in run_on(bar_set):
        upper, _, lower = talib.BBANDS(series["close"], 20, 2, 2, 0)
        for name, theirs in (("upper", upper), ("lower", lower)):
            np.testing.assert_allclose(ours[name], theirs, rtol=TA_LIB_BANDS_RATIO, err_msg=label)
            values += int(np.isfinite(theirs).sum())
    print(f"reversals: {values} bands agree with TA-Lib at {TA_LIB_BANDS_RATIO}")
    assert values > 2 * bar_set.min_bars


@pytest.mark.parametrize("side", [1, -1])
def test_a_return_into_the_band_ends_at_age_twelve(side):
    assert reversal(side, *[96.0] * 14) == [0] + [side] * 12 + [0] * 3


@pytest.mark.parametrize("side", [1, -1])
def test_a_close_strictly_beyond_the_extreme_of_five_bars_ends_it(side):
    assert reversal(side, 90.0, 89.9) == [0, side, side, 0]


@pytest.mark.parametrize("side", [1, -1])
def test_a_second_event_takes_a_new_age_and_a_new_level(side):
    # Bar 206 closes at 80, beyond the level of 90; bar 207 is the second event, its level 80.
    readings = reversal(side, *[96.0] * 4, 80.0, *[95.0] * 5, 85.0, *[95.0] * 7)
    assert readings == [0] + [side] * 5 + [0] + [side] * 12 + [0]


def test_a_market_that_never_moved_has_an_rsi_of_50_and_no_reversal():
    values, readings = run(np.full(260, 0.1))
    assert (values["rsi"][14:] == 50.0).all()
    assert (values["upper"][19:] == 0.1).all()
    assert (values["lower"][19:] == 0.1).all()
    assert readings == [0] * 61


def test_an_rsi_keeps_its_value_while_prices_do_not_change():
    values, _ = run(np.array([1.0] * 30 + [2.0] + [1.5] * 700))
    # After a gain of 1 the average gain is 13/14 of 1/14, the average loss half of 1/14.
    np.testing.assert_allclose(values["rsi"][31:], 100 * (13 / 14) / (13 / 14 + 0.5), rtol=1e-9)
