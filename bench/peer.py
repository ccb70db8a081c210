"""The seven indicators as a user of TA-Lib, pandas and NumPy would write them; no project code.

Every function takes whole columns with time on the last axis: shape (bars,) for one asset, or
(assets, bars) for all at once. Only the two recursions that no library offers (Kalman filter,
SuperTrend) are loops: over Python floats for one asset, over NumPy rows for all.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd
import talib
from numpy.typing import NDArray

Column = NDArray[np.float64]
Flags = NDArray[np.bool_]
Readings = NDArray[np.int8]


class Columns(NamedTuple):
    """Bars of one asset, shape (bars,), or of all, shape (assets, bars)."""

    high: Column
    low: Column
    close: Column
    funding: Column


def to_pandas(x: Column) -> pd.Series | pd.DataFrame:
    return pd.Series(x) if x.ndim == 1 else pd.DataFrame(x.T)


def compute_rolling_sd(x: Column, period: int) -> Column:
    return to_pandas(x).rolling(period).std().to_numpy().T


def apply_per_asset(function: Callable[..., Column], *columns: Column) -> Column:
    if columns[0].ndim == 1:
        return function(*columns)
    return np.array([function(*rows) for rows in zip(*columns, strict=True)])


def shift(x: Column, bars: int = 1) -> Column:
    earlier = np.full_like(x, np.nan)
    earlier[..., bars:] = x[..., :-bars]
    return earlier


def find_last_bar(flags: Flags) -> NDArray[np.int64]:
    """Return for each bar the index of the latest flagged bar up to it, or -1."""
    return np.maximum.accumulate(np.where(flags, np.arange(flags.shape[-1]), -1), axis=-1)


def hold_between(sets: Flags, clears: Flags) -> Flags:
    return find_last_bar(sets) > find_last_bar(clears)


def to_readings(bullish: Flags, bearish: Flags) -> Readings:
    return bullish.astype(np.int8) - bearish


def compute_latch(s: Column, enter: float, leave: float) -> Readings:
    return to_readings(hold_between(s >= enter, s < leave), hold_between(s <= -enter, s > -leave))


def trend_oracle(bars: Columns) -> Readings:
    x = np.log(bars.close)
    frame, noise, total = to_pandas(x), compute_rolling_sd(x, 63), np.zeros_like(x)
    for fast, slow in ((8, 24), (16, 48), (32, 96)):
        gap = frame.ewm(span=fast, adjust=False).mean() - frame.ewm(span=slow, adjust=False).mean()
        y = gap.to_numpy().T / noise
        z = y / compute_rolling_sd(y, 126)
        # 0.89 scales the peak to about 1; an extreme z counts less.
        total += z * np.exp(-z * z / 4) / 0.89
    return compute_latch(total / 3, 0.30, 0.10)


def bayesian_trend(bars: Columns) -> Readings:
    x = np.log(bars.close)
    squares = to_pandas(np.diff(x) ** 2)
    v = np.maximum(squares.ewm(alpha=0.03, adjust=False).mean().to_numpy().T, 1e-10)
    z = _filter_one(x, v) if x.ndim == 1 else _filter_all(x, v)
    # Latching z at the normal quantiles of 0.80 and 0.55 saves computing the probability.
    return compute_latch(z, 0.8416212335729143, 0.12566134685507402)


def _filter_one(closes: Column, variances: Column) -> Column:
    # Python floats are faster than NumPy scalars in a loop. p, q and r are the
    # covariance matrix of level and slope: [[p, q], [q, r]].
    observed, noise = closes.tolist(), variances.tolist()
    level, slope, p, q, r = observed[0], 0.0, noise[0], 0.0, noise[0]
    z = [float("nan")]
    for x, v in zip(observed[1:], noise, strict=True):
        level += slope
        p += 2.0 * q + r + v
        q += r
        r += 0.002 * v
        total = p + 0.25 * v
        gain, gain_of_slope, surprise = p / total, q / total, x - level
        level += gain * surprise
        slope += gain_of_slope * surprise
        r -= gain_of_slope * q
        p *= 1.0 - gain
        q *= 1.0 - gain
        z.append(slope / r**0.5)
    return np.array(z)


def _filter_all(closes: Column, variances: Column) -> Column:
    observed, noise = np.ascontiguousarray(closes.T), np.ascontiguousarray(variances.T)
    level, slope, p, r = observed[0], np.zeros(len(closes)), noise[0], noise[0]
    q, z = slope, np.full_like(observed, np.nan)
    for bar, v in enumerate(noise, start=1):
        level = level + slope
        p = p + 2.0 * q + r + v
        q = q + r
        r = r + 0.002 * v
        total = p + 0.25 * v
        gain, gain_of_slope, surprise = p / total, q / total, observed[bar] - level
        level = level + gain * surprise
        slope = slope + gain_of_slope * surprise
        r = r - gain_of_slope * q
        p = p * (1.0 - gain)
        q = q * (1.0 - gain)
        z[bar] = slope / np.sqrt(r)
    return z.T


def reversals(bars: Columns) -> Readings:
    c = bars.close
    rsi = apply_per_asset(lambda x: talib.RSI(x, 14), c)
    upper, _, lower = np.moveaxis(
        apply_per_asset(lambda x: np.array(talib.BBANDS(x, 20, 2.0, 2.0)), c), -2, 0
    )
    before = shift(c)
    lowest_rsi = apply_per_asset(lambda x: talib.MIN(x, 5), rsi)
    highest_rsi = apply_per_asset(lambda x: talib.MAX(x, 5), rsi)
    bullish = (before <= shift(lower)) & (c > lower) & (lowest_rsi <= 30.0)
    bearish = (before >= shift(upper)) & (c < upper) & (highest_rsi >= 70.0) & ~bullish
    # The latest event holds for 12 bars, unless the close passes the extreme before it.
    event = np.maximum(find_last_bar(bullish), find_last_bar(bearish))
    is_long, seen = find_last_bar(bullish) > find_last_bar(bearish), np.maximum(event, 0)
    lowest = np.take_along_axis(apply_per_asset(lambda x: talib.MIN(x, 5), bars.low), seen, axis=-1)
    highest = np.take_along_axis(
        apply_per_asset(lambda x: talib.MAX(x, 5), bars.high), seen, axis=-1
    )
    age = np.arange(c.shape[-1]) - event
    failed = (age > 0) & np.where(is_long, c < lowest, c > highest)
    holds = (event >= 0) & (age < 12) & (find_last_bar(failed) < event)
    return to_readings(holds & is_long, holds & ~is_long)


def ceres(bars: Columns) -> Readings:
    c = bars.close
    # Shifted by a bar: a channel does not include the bar that may break out of it.
    highest40 = shift(apply_per_asset(lambda x: talib.MAX(x, 40), bars.high))
    highest20 = shift(apply_per_asset(lambda x: talib.MAX(x, 20), bars.high))
    lowest40 = shift(apply_per_asset(lambda x: talib.MIN(x, 40), bars.low))
    lowest20 = shift(apply_per_asset(lambda x: talib.MIN(x, 20), bars.low))
    return to_readings(
        hold_between(c > highest40, c < lowest20), hold_between(c < lowest40, c > highest20)
    )


def enzo(bars: Columns) -> Readings:
    kama = apply_per_asset(lambda x: talib.KAMA(x, 10), bars.close)
    atr = apply_per_asset(
        lambda h, low, c: talib.ATR(h, low, c, 14), bars.high, bars.low, bars.close
    )
    return compute_latch((kama - shift(kama, 5)) / atr, 0.50, 0.10)


def _compute_slope_weights() -> Column:
    """Return the weights of a weighted `np.polyfit` slope."""
    # The slope is linear in the values, so fitting the identity matrix yields the weights.
    time = np.arange(-63.0, 1.0)
    root = np.exp(-0.25 * (time / 16.0) ** 2)
    return np.polyfit(time, np.eye(64), 1, w=root)[0]


# Computed once: calling polyfit for every bar would make the peer needlessly slow.
SLOPE_WEIGHTS = _compute_slope_weights()


def llnr(bars: Columns) -> Readings:
    x = np.log(bars.close)
    slope = np.full_like(x, np.nan)
    slope[..., 63:] = apply_per_asset(lambda row: np.convolve(row, SLOPE_WEIGHTS[::-1], "valid"), x)
    returns = x - shift(x)
    return compute_latch(slope * 4.0 / compute_rolling_sd(returns, 64), 0.75, 0.25)


def perpkit(bars: Columns) -> Readings:
    atr = apply_per_asset(
        lambda h, low, c: talib.ATR(h, low, c, 10), bars.high, bars.low, bars.close
    )
    middle = (bars.high + bars.low) / 2.0
    lines = _compute_supertrend_of_one if middle.ndim == 1 else _compute_supertrend_of_all
    direction, line = lines(bars.close, middle + 3.0 * atr, middle - 3.0 * atr)
    is_near = np.abs(bars.close - line) <= 0.5 * atr
    return np.where(is_near | (direction * bars.funding > 0.60), 0, direction).astype(np.int8)


def _compute_supertrend_of_one(
    close: Column, upper: Column, lower: Column
) -> tuple[Column, Column]:
    first = 10  # TA-Lib's first ATR
    closes, uppers, lowers = close.tolist(), upper.tolist(), lower.tolist()
    direction, before, top, bottom = 1, closes[first], uppers[first], lowers[first]
    directions, lines = [0] * first + [1], [float("nan")] * first + [bottom]
    for c, u, d in zip(closes[first + 1 :], uppers[first + 1 :], lowers[first + 1 :], strict=True):
        if u < top or before > top:
            top = u
        if d > bottom or before < bottom:
            bottom = d
        if c < bottom:
            direction = -1
        elif c > top:
            direction = 1
        directions.append(direction)
        lines.append(bottom if direction == 1 else top)
        before = c
    return np.array(directions, dtype=np.float64), np.array(lines)


def _compute_supertrend_of_all(
    close: Column, upper: Column, lower: Column
) -> tuple[Column, Column]:
    first = 10
    closes, uppers, lowers = (np.ascontiguousarray(x.T) for x in (close, upper, lower))
    directions, lines = np.zeros_like(closes), np.full_like(closes, np.nan)
    direction, top, bottom = np.ones(len(close)), uppers[first], lowers[first]
    directions[first], lines[first] = direction, bottom
    for bar in range(first + 1, len(closes)):
        before, c = closes[bar - 1], closes[bar]
        top = np.where((uppers[bar] < top) | (before > top), uppers[bar], top)
        bottom = np.where((lowers[bar] > bottom) | (before < bottom), lowers[bar], bottom)
        direction = np.where(c < bottom, -1.0, np.where(c > top, 1.0, direction))
        directions[bar] = direction
        lines[bar] = np.where(direction > 0, bottom, top)
    return directions.T, lines.T


INDICATORS: dict[str, Callable[[Columns], Readings]] = {
    "trend_oracle": trend_oracle,
    "bayesian_trend": bayesian_trend,
    "reversals": reversals,
    "ceres": ceres,
    "enzo": enzo,
    "llnr": llnr,
    "perpkit": perpkit,
}


def read_one_by_one(bars: Columns, ids: list[str]) -> Readings:
    """Return readings, shape (assets, indicators, bars), computed one asset at a time."""
    out = np.empty((len(bars.close), len(ids), bars.close.shape[-1]), dtype=np.int8)
    for asset, rows in enumerate(zip(*bars, strict=True)):
        for column, id in enumerate(ids):
            out[asset, column] = INDICATORS[id](Columns(*rows))
    return out


def read_all_at_once(bars: Columns, ids: list[str]) -> Readings:
    """Return the same readings, computed for all assets at once; TA-Lib still runs per asset."""
    return np.stack([INDICATORS[id](bars) for id in ids], axis=1)
