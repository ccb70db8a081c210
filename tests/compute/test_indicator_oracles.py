"""Every indicator against other people's software, or a calculation by hand where there is none."""

from collections.abc import Callable
from functools import cache
from math import nan
from typing import Any

import numpy as np
import pandas as pd
import pytest
import talib
from scipy.special import ndtr, ndtri
from talipp.indicators import SuperTrend
from talipp.indicators.SuperTrend import Trend
from talipp.ohlcv import OHLCV

from compute.indicators.bayesian_trend import ENTER, EXIT
from compute.indicators.ceres import Ceres
from compute.indicators.contract import NO_READING, WARMUP, Bar, Indicator
from compute.indicators.enzo import Enzo
from compute.indicators.perpkit import PerpKit
from compute.indicators.registry import INDICATORS
from compute.indicators.reversals import Reversals
from tests.support.bar_sets import (
    TOLERANCE,
    Array,
    BarSet,
    Series,
    advance_bar,
    assert_readings_agree,
    assert_values_agree,
    compute_plain_latch,
    divide,
    get_recorded_folder,
    list_bar_sets,
    near_thresholds,
    open_bar_set,
    step_bar,
    step_bar_set,
)

pytestmark = pytest.mark.clause("indicators")

BY_ID = {indicator.id: indicator for indicator in INDICATORS}
# Raw values, readings, and flags of bars at which a reading depends on the last digits.
Expected = tuple[dict[str, Array], Array, Array]


@pytest.fixture(scope="session", params=list_bar_sets())
def bar_set(request: pytest.FixtureRequest) -> BarSet:
    """Generated bars, and recorded ones if they are present: the newest rows, or all of them."""
    return open_bar_set(request.param)


@cache
def run_on(name: str, bar_set: BarSet) -> list[tuple[str, Series, Series, Array]]:
    return step_bar_set(BY_ID[name], bar_set)


def windows_of(values: Array, period: int) -> Array:
    return np.lib.stride_tricks.sliding_window_view(values, period)


def roll(values: Array, period: int, reduce: Callable[..., Array], **options: Any) -> Array:
    """Reduce every window of a period; NaN before the first."""
    reduced = np.full(len(values), np.nan)
    if len(values) >= period:
        reduced[period - 1 :] = reduce(windows_of(values, period), axis=1, **options)
    return reduced


def latch(values: dict[str, Array], score: Array, enter: float, exit: float) -> Expected:
    return values, compute_plain_latch(score, enter, exit), near_thresholds(score, enter, exit)


def expect_trend_oracle(series: Series) -> Expected:
    """Use pandas' `ewm(adjust=False)` and NumPy's SD."""

    def compute_sd(windows: Array, axis: int) -> Array:
        # Equal values have an SD of exactly 0 once the newest is subtracted.
        return np.std(windows - windows[:, -1:], axis=axis, ddof=1)

    closes = series["close"]
    # Only differences of logs count, so the first may be 0, which keeps more digits of the rest.
    x = pd.Series(np.log(closes / closes[0]))
    total = np.zeros(len(x))
    for fast, slow in ((8, 24), (16, 48), (32, 96)):
        gap = x.ewm(span=fast, adjust=False).mean() - x.ewm(span=slow, adjust=False).mean()
        y = divide(gap.to_numpy(), roll(x.to_numpy(), 63, compute_sd))
        z = divide(y, roll(y, 126, compute_sd))
        total += z * np.exp(-(z**2) / 4) / 0.89
    return latch({"s": total / 3}, total / 3, 0.30, 0.10)


def expect_bayesian_trend(series: Series) -> Expected:
    """Use statsmodels' Kalman filter and SciPy's normal distribution."""
    # Imported here, because it takes seconds, which every collection of the tests would spend.
    from statsmodels.tsa.statespace.kalman_filter import KalmanFilter

    x = np.log(series["close"])
    transition, noise = np.array([[1.0, 1.0], [0.0, 1.0]]), np.diag([1.0, 0.002])
    returns = np.diff(x)
    v = [max(returns[0] ** 2, 1e-10)]
    for r in returns[1:]:
        v.append(max(0.97 * v[-1] + 0.03 * r**2, 1e-10))
    model = KalmanFilter(k_endog=1, k_states=2, tolerance=0)
    model.bind(x[1:].copy())
    model["design"] = np.array([[1.0, 0.0]])
    model["transition"] = transition
    model["selection"] = np.eye(2)
    model["obs_cov"] = (0.25 * np.array(v)).reshape(1, 1, -1)
    # statsmodels adds a bar's state noise after it: on bar t, the noise of bar t + 1.
    model["state_cov"] = noise[:, :, np.newaxis] * np.append(v[1:], v[-1])
    predicted = transition @ np.diag([v[0], v[0]]) @ transition.T + noise * v[0]
    model.initialize_known(transition @ np.array([x[0], 0.0]), predicted)
    result = model.filter()
    level, slope = (
        np.append(s, f) for s, f in zip((x[0], 0.0), result.filtered_state, strict=True)
    )
    variance = np.append(np.nan, result.filtered_state_cov[1, 1])
    z = slope / np.sqrt(variance)
    values = {"level": level, "slope": slope, "slope_variance": variance, "z": z}
    return latch(values, 2 * ndtr(z) - 1, 0.60, 0.10)


def expect_reversals(series: Series) -> Expected:
    """Use TA-Lib's `RSI`, and each window's mean and SD computed from scratch."""
    rsi = talib.RSI(series["close"], 14)
    # TA-Lib has 0 while no close has differed from the first.
    rsi[14:][(np.maximum.accumulate(series["close"] != series["close"][0]) == 0)[14:]] = 50.0
    middle, width = (
        roll(series["close"], 20, np.mean),
        2 * roll(series["close"], 20, np.std, ddof=0),
    )
    values = {"rsi": rsi, "upper": middle + width, "lower": middle - width}
    close, high, low = (series[name].tolist() for name in ("close", "high", "low"))
    side, age, level = 0, 0, nan
    readings, near = [0] * 20, [False] * 20
    upper, lower = values["upper"].tolist(), values["lower"].tolist()
    for t in range(20, len(close)):
        least, most = min(rsi[t - 4 : t + 1]), max(rsi[t - 4 : t + 1])
        if least <= 30 and close[t - 1] <= lower[t - 1] and close[t] > lower[t]:
            side, age, level = 1, 0, min(low[t - 4 : t + 1])
        elif most >= 70 and close[t - 1] >= upper[t - 1] and close[t] < upper[t]:
            side, age, level = -1, 0, max(high[t - 4 : t + 1])
        elif side != 0:
            age += 1
            if age >= 12 or side * close[t] < side * level:
                side = 0
        gaps = [least - 30, most - 70]
        gaps += [close[s] - band[s] for s in (t - 1, t) for band in (upper, lower)]
        readings.append(side)
        near.append(min(map(abs, gaps)) <= TOLERANCE)
    return values, np.array(readings), np.array(near)


def expect_ceres(series: Series) -> Expected:
    """Use TA-Lib's `MAX` and `MIN` over the bars before."""
    values = {
        f"{name}{period}": np.r_[np.nan, extreme(series[price], period)[:-1]]
        for period in (40, 20)
        for name, extreme, price in (("highest", talib.MAX, "high"), ("lowest", talib.MIN, "low"))
    }
    side, readings = 0, []
    for price, *edges in zip(series["close"], *values.values(), strict=True):
        if price > edges[0]:
            side = 1
        elif price < edges[1]:
            side = -1
        elif (side == 1 and price < edges[3]) or (side == -1 and price > edges[2]):
            side = 0
        readings.append(side)
    # Extremes are not rounded: no close is near a threshold without being on its side.
    return values, np.array(readings), np.zeros(len(readings), dtype=bool)


def plain_atr(series: Series, period: int) -> Array:
    """Return Wilder's average of true ranges with the first bar, which TA-Lib's leaves out."""
    high, low, close = (series[name].tolist() for name in ("high", "low", "close"))
    ranges = [high[0] - low[0]]
    for t in range(1, len(close)):
        ranges.append(max(high[t], close[t - 1]) - min(low[t], close[t - 1]))
    averages = [nan] * (period - 1) + [sum(ranges[:period]) / period]
    for spread in ranges[period:]:
        averages.append((averages[-1] * (period - 1) + spread) / period)
    return np.array(averages)


def expect_enzo(series: Series) -> Expected:
    kama, ranges = talib.KAMA(series["close"], 10), plain_atr(series, 14)
    score = divide(np.r_[[np.nan] * 5, kama[5:] - kama[:-5]], ranges, series["close"])
    return latch({"kama": kama, "atr": ranges, "s": score}, score, 0.50, 0.10)


TIME = np.arange(-63.0, 1.0)
KERNEL = np.exp(-((TIME / 16) ** 2) / 2)


def expect_llnr(series: Series) -> Expected:
    """Use weighted least squares by NumPy's `polyfit`."""
    x = np.log(series["close"])
    slopes = np.full(len(x), np.nan)
    slopes[63:] = np.polyfit(TIME, windows_of(x, 64).T, 1, w=np.sqrt(KERNEL))[0]
    sigma = np.r_[np.nan, roll(np.diff(x), 64, np.std, ddof=1)]
    score = divide(slopes * 4, sigma)
    return latch({"sigma": sigma, "slope": slopes, "s": score}, score, 0.75, 0.25)


def plain_supertrend(series: Series, ranges: Array) -> dict[str, Array]:
    """Return line, direction, and flags of closes beyond both lines and of closes near one."""
    high, low, close = (series[name].tolist() for name in ("high", "low", "close"))
    lines, directions, crossed, near = [nan] * 9, [nan] * 9, [False] * 9, [False] * 9
    direction, upper, lower = 1, nan, nan
    for t in range(9, len(close)):
        middle = (high[t] + low[t]) / 2
        basic_upper, basic_lower = middle + 3 * ranges[t], middle - 3 * ranges[t]
        gaps = [close[t - 1] - upper, close[t - 1] - lower]
        turns_down = turns_up = False
        if t == 9:
            upper, lower = basic_upper, basic_lower
        else:
            if basic_upper < upper or close[t - 1] > upper:
                upper = basic_upper
            if basic_lower > lower or close[t - 1] < lower:
                lower = basic_lower
            turns_down, turns_up = close[t] < lower, close[t] > upper
            if turns_down != turns_up:
                direction = -1 if turns_down else 1
        gaps += [close[t] - upper, close[t] - lower]
        lines.append(lower if direction == 1 else upper)
        directions.append(direction)
        crossed.append(turns_down and turns_up)
        near.append(any(abs(gap) <= TOLERANCE for gap in gaps))
    columns = {"line": lines, "direction": directions, "crossed": crossed, "near": near}
    return {name: np.array(column) for name, column in columns.items()}


def expect_perpkit(series: Series) -> Expected:
    """Calculate bar by bar."""
    ranges, funding = plain_atr(series, 10), series["funding"]
    theirs = plain_supertrend(series, ranges)
    side, distance = theirs["direction"], np.abs(series["close"] - theirs["line"])
    is_neutral = (distance <= ranges / 2) | (side * funding > 0.60)
    near = near_thresholds(distance - ranges / 2, 0.0) | near_thresholds(funding, 0.60)
    values = {"line": theirs["line"], "direction": side, "atr": ranges}
    return values, np.where(is_neutral, 0, side), theirs["near"] | near


ORACLES = {
    "trend_oracle": expect_trend_oracle,
    "bayesian_trend": expect_bayesian_trend,
    "reversals": expect_reversals,
    "ceres": expect_ceres,
    "enzo": expect_enzo,
    "llnr": expect_llnr,
    "perpkit": expect_perpkit,
}
# Values that agree more closely than others: relative and absolute tolerance.
CLOSER = {
    "level": (1e-12, 0),
    "slope": (1e-9, 1e-13),
    "slope_variance": (1e-9, 0),
    "sigma": (1e-9, 0),
}


@pytest.mark.parametrize("name", ORACLES)
@pytest.mark.sampled(3)
def test_values_and_readings_agree_with_the_oracle(name: str, bar_set: BarSet):
    counts, readings = dict[str, int](), 0
    for label, series, ours, reading in run_on(name, bar_set):
        values, expected, near = ORACLES[name](series)
        for key, theirs in values.items():
            if key in CLOSER:
                relative, absolute = CLOSER[key]
                np.testing.assert_allclose(ours[key], theirs, relative, absolute, err_msg=label)
            count = assert_values_agree(f"{label} {key}", ours[key], theirs)
            counts[key] = counts.get(key, 0) + count
        readings += assert_readings_agree(label, reading, expected, near)
    print(f"{name}: {counts} values and {readings} readings agree")
    assert min(counts.values()) > bar_set.min_readings
    assert readings > bar_set.min_readings


# Ours, theirs, relative and absolute tolerance.
Compared = tuple[Array, Array, float, float]


def compare_atr(series: Series, ours: Series, is_full: bool) -> Compared:
    """Compare Enzo's average range from bar 400 on, when TA-Lib's different seed has decayed."""
    theirs = talib.ATR(series["high"], series["low"], series["close"], 14)
    return ours["atr"][399:], theirs[399:], TOLERANCE, TOLERANCE


def compare_bands(series: Series, ours: Series, is_full: bool) -> Compared:
    """Compare Reversals' bands; TA-Lib's SD is E(x^2) - E(x)^2 of running sums, which cancel."""
    upper, _, lower = talib.BBANDS(series["close"], 20, 2, 2, 0)
    return np.r_[ours["upper"], ours["lower"]], np.r_[upper, lower], 1e-6, 0.0


def compare_wls(series: Series, ours: Series, is_full: bool) -> Compared:
    """Compare some of LLNR's scores with statsmodels' `WLS`."""
    from statsmodels.regression.linear_model import WLS
    from statsmodels.tools import add_constant

    every, x = 5 if is_full else 90, np.log(series["close"])
    ends, design = range(64, len(x), every), add_constant(TIME)
    fits = [WLS(x[end - 63 : end + 1], design, weights=KERNEL).fit() for end in ends]
    sigma = roll(np.diff(x), 64, np.std, ddof=1)[63::every]
    scores = divide(np.array([fit.params[1] for fit in fits]) * 4, sigma)
    return ours["s"][64::every], scores, TOLERANCE, TOLERANCE


@pytest.mark.parametrize(
    ("name", "compare", "share"),
    [("enzo", compare_atr, 0.6), ("reversals", compare_bands, 2.0), ("llnr", compare_wls, 0.011)],
)
@pytest.mark.sampled(9)
@pytest.mark.prove
def test_values_agree_with_a_second_oracle(
    name: str, compare: Callable[..., Any], share: float, bar_set: BarSet
):
    count = 0
    for label, series, ours, _ in run_on(name, bar_set):
        found, theirs, relative, absolute = compare(series, ours, bar_set.is_full)
        np.testing.assert_allclose(found, theirs, relative, absolute, err_msg=label)
        count += int(np.isfinite(theirs).sum())
    print(f"{name}: {count} values agree with a second oracle")
    assert count > share * bar_set.min_readings


@pytest.mark.prove
def test_supertrend_agrees_with_talipp_but_for_its_start_and_its_rule_for_crossed_lines(
    bar_set: BarSet,
):
    agreeing = total = 0
    for label, series, ours, _ in run_on("perpkit", bar_set):
        names = ("open", "high", "low", "close")
        bars = zip(*(series[name].tolist() for name in names), strict=True)
        found = SuperTrend(10, 3, [OHLCV(*bar) for bar in bars])
        side = {Trend.UP: 1, Trend.DOWN: -1}
        line = np.array([nan if value is None else value.value for value in found])
        direction = np.array([nan if value is None else side[value.trend] for value in found])
        is_equal = np.isclose(ours["line"], line, rtol=TOLERANCE, atol=TOLERANCE)
        is_equal &= ours["direction"] == direction
        # talipp starts short with its lines a bar late, turns if the close lies beyond both lines,
        # and shows the basic line on the bar of a turn. Each difference ends as soon as the two
        # hold the same line again.
        parts = np.flatnonzero(~is_equal[10:] & is_equal[9:-1]) + 10
        crossed = plain_supertrend(series, plain_atr(series, 10))["crossed"]
        assert (crossed | np.r_[False, np.diff(direction) != 0])[parts].all(), label
        agreeing += int(is_equal[9:].sum())
        total += len(line) - 9
    print(f"perpkit: talipp agrees on {agreeing} of {total} bars")
    assert total > bar_set.min_bars
    # Generated bars turn more often.
    full_share = 0.994 if bar_set.folder == get_recorded_folder() else 0.99
    assert agreeing > (full_share if bar_set.is_full else 0.96) * total


def test_the_latch_thresholds_are_the_normal_quantiles_of_the_stated_probabilities():
    assert pytest.approx(ndtri(0.80), rel=1e-15) == ENTER
    assert pytest.approx(ndtri(0.55), rel=1e-14) == EXIT


def run(
    indicator: Indicator, close: Any, high: Any = 0.0, low: Any = 0.0, funding: Any = nan
) -> tuple[dict[str, Array], list[int]]:
    """Return the raw values of all bars and the readings from bar 200 on.

    `high` and `low` are distances from the close.
    """
    columns = np.broadcast_arrays(close, np.add(close, high), np.subtract(close, low), funding)
    watched, carry = indicator.start(1), indicator.start(1)
    values, readings = [], []
    for price, most, least, rate in np.stack(columns, axis=1)[:, :, np.newaxis]:
        bar = Bar(price, most, least, price, np.ones(1), rate)
        values.append({k: v[0] for k, v in advance_bar(indicator, watched, bar).items()})
        carry, reading = step_bar(indicator, carry, bar)
        readings.append(int(reading[0]))
    assert set(readings[:WARMUP]) <= {NO_READING}
    return {key: np.array([v[key] for v in values]) for key in values[0]}, readings[WARMUP:]


# Closes, half of each bar's range, and the readings from bar 200 on; mirrored about 100 too.
# Ceres: 199 bars of 99 to 101; a close on the edge, one beyond it; 20 bars of 109 to 111, so that
# the shorter channel ends at 109 and the longer one still at 99; again on and beyond.
# Reversals: bars 1 to 199 at 100, 200 at 90, 201 at 96. Bar 200 closes below its lower band,
# 99.5 - 20 sqrt(0.05 x 0.95) = 95.14; bar 201 above its, 99.3 - 2 sqrt(5.31) = 94.69.
REVERSED = [100.0] * 199 + [90.0, 96.0]
HAND = {
    "Ceres: a breakout is strict, and is left through the shorter channel": (
        Ceres(),
        [100.0] * 199 + [101.0, 103.0] + [110.0] * 20 + [109.0, 108.5, 109.0],
        [1.0] * 199 + [0.0, 0.0] + [1.0] * 20 + [0.0, 0.0, 0.0],
        [0] + [1] * 22 + [0, 0],
    ),
    "Ceres: a fall through both channels turns the side at once": (
        Ceres(),
        [100.0] * 199 + [101.0, 99.0, 102.0],
        0.0,
        [1, -1, 1],
    ),
    "Ceres: a side taken during the warmup is the first reading": (
        Ceres(),
        [100.0] * 40 + [101.0] * 160,
        0.0,
        [1],
    ),
    "Reversals: a return into the band ends at age twelve": (
        Reversals(),
        REVERSED + [96.0] * 14,
        0.0,
        [0] + [1] * 12 + [0] * 3,
    ),
    "Reversals: a close strictly beyond the extreme of five bars ends it": (
        Reversals(),
        [*REVERSED, 90.0, 89.9],
        0.0,
        [0, 1, 1, 0],
    ),
    # Bar 206 closes at 80, beyond the level of 90; bar 207 is the second event, its level 80.
    "Reversals: a second event takes a new age and a new level": (
        Reversals(),
        [*REVERSED, *[96.0] * 4, 80.0, *[95.0] * 5, 85.0, *[95.0] * 7],
        0.0,
        [0] + [1] * 5 + [0] + [1] * 12 + [0],
    ),
    "Enzo: a market that never moved": (Enzo(), [0.1] * 260, 0.0, [0] * 61),
    "Reversals: a market that never moved": (Reversals(), [0.1] * 260, 0.0, [0] * 61),
}


@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize(("indicator", "close", "span", "expected"), HAND.values(), ids=list(HAND))
def test_readings_are_those_of_a_calculation_by_hand(
    indicator: Indicator, close: list[float], span: Any, expected: list[int], side: int
):
    _, readings = run(indicator, 100 + side * (np.array(close) - 100), span, span)
    assert readings == [side * reading for reading in expected]


@pytest.mark.prove
def test_reversals_bands_and_rsi_are_those_of_a_calculation_by_hand():
    values, _ = run(Reversals(), REVERSED)
    band = [99.5 - 20 * np.sqrt(0.05 * 0.95), 99.3 - 2 * np.sqrt(5.31)]
    np.testing.assert_allclose(values["lower"][199:], band, rtol=1e-12)
    flat, _ = run(Reversals(), [0.1] * 260)
    assert (flat["rsi"][14:] == 50.0).all()
    assert (flat["upper"][19:] == 0.1).all()
    assert (flat["lower"][19:] == 0.1).all()
    # After a gain of 1 the average gain is 13/14 of 1/14, the average loss half of 1/14; unchanged
    # prices keep the RSI.
    values, _ = run(Reversals(), [1.0] * 30 + [2.0] + [1.5] * 700)
    np.testing.assert_allclose(values["rsi"][31:], 100 * (13 / 14) / (13 / 14 + 0.5), rtol=1e-9)


@pytest.mark.prove
def test_enzos_kama_agrees_with_ta_lib_on_flat_and_on_straight_prices():
    # Whole numbers keep TA-Lib's running sum of changes exact, so its 0/0 is an exact one too.
    random = np.random.default_rng(11)
    moves = np.repeat(random.integers(-1, 2, 400), random.integers(1, 25, 400))
    close = 10_000.0 + np.cumsum(moves)
    values, _ = run(Enzo(), close)
    assert_values_agree("kama", values["kama"], talib.KAMA(close, 10))
    assert sum(np.ptp(close[t - 10 : t + 1]) == 0 for t in range(10, len(close))) > 100
    flat, _ = run(Enzo(), [0.1] * 260)
    assert (flat["kama"][10:] == 0.1).all()
    assert (flat["s"][15:] == 0.0).all()


@pytest.mark.parametrize("side", [1, -1])
def test_a_straight_trend_of_enzo_ends_on_the_eleventh_unchanged_bar(side: int):
    # At one a bar KAMA's gain is 4/9 and it lags by 5/4, the ATR is 1 and s = 5. After k >= 5
    # still bars s = 5/4 (5/9)^(k-5) (1 - (5/9)^5) / (13/14)^k: 0.131 at k = 10, 0.079 at 11.
    values, readings = run(Enzo(), 1000.0 + side * np.r_[np.arange(220.0), [219.0] * 20])
    k = np.arange(5.0, 21.0)
    slope = 5 / 4 * (5 / 9) ** (k - 5) * (1 - (5 / 9) ** 5) / (13 / 14) ** k
    np.testing.assert_allclose(values["s"][199:220], 5 * side, rtol=1e-6)
    np.testing.assert_allclose(values["s"][224:], side * slope, rtol=1e-6)
    assert readings == [side] * 31 + [0] * 10


# Bars (high, low, close, funding) after 199 of 99 to 101 closing at 100, which make ATR 2, lines
# at 94 and 106, direction +1; the first lines, and the readings.
STILL = (93.9, 93.9, 93.9)
PERPKIT = {
    "the gate closes only above 60 percent a year": (
        [(101.0, 99.0, 100.0, rate) for rate in (nan, 0.0, 0.60, 0.6000001, -5.0, 9.0, 0.60)],
        [94.0] * 7,
        [1, 1, 1, 0, 1, 0, 1],
    ),
    # Bar 200 falls through 94: ATR 2 + 5.1/10 = 2.51, upper line 97.45 + 3 x 2.51 = 104.98.
    "a turn is made behind a closed gate, and the short side has its own": (
        [(101.0, *STILL[1:], -0.61), *((*STILL, rate) for rate in (-0.60, 5.0, -0.7, nan))],
        [104.98],
        [0, -1, -1, 0, -1],
    ),
    # Bar 200 closes at 95: ATR 2 + 4/10 = 2.4, the stop stays at 94, and 1 <= 1.2. On bar 201 100
    # is far from it again.
    "a close within half a range of its stop reads neutral": (
        [(101.0, 95.0, 95.0, nan), (100.0, 95.0, 100.0, nan)],
        [94.0, 94.0],
        [0, 1],
    ),
    # Bar 200 spans 101 to 1: ATR 11.8, upper line 51 + 35.4 = 86.4, lower line still 94, which is 6
    # away, more than half the ATR. Bar 201: ATR 10.62; the last close was beyond both, so both
    # lines are 88 -+ 31.86.
    "a close beyond both crossed lines keeps the direction": (
        [(101.0, 1.0, 88.0, nan), (88.0, 88.0, 88.0, nan)],
        [94.0, 56.14],
        [1, 1],
    ),
}


@pytest.mark.parametrize(("bars", "lines", "expected"), PERPKIT.values(), ids=list(PERPKIT))
def test_perpkit_agrees_with_a_calculation_by_hand(
    bars: list[tuple[float, ...]], lines: list[float], expected: list[int]
):
    high, low, close, funding = np.array([(101.0, 99.0, 100.0, nan)] * 199 + bars).T
    values, readings = run(PerpKit(), close, high - close, close - low, funding)
    assert values["line"][9:199] == pytest.approx([94.0] * 190)
    assert values["line"][199 : 199 + len(lines)] == pytest.approx(lines)
    assert readings == expected


def test_the_first_bar_of_perpkit_with_a_range_is_not_tested_for_a_turn():
    # Nine bars of one price, then 110 to 90 closing at 90: ATR 2, lines 106 and 94, 90 < 94.
    values, _ = run(PerpKit(), [100.0] * 9 + [90.0], [0.0] * 9 + [20.0])
    assert values["direction"][9] == 1
    assert values["line"][9] == pytest.approx(94.0)
