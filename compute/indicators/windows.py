"""Pure functions that indicators share: carries, windows, averages, latches (docs/indicators.md).

Bars and values have bars on axis 0 and assets on the last axis. In a carry, assets lie on axis 0
and windows on the last axis, oldest value first, so that no asset's rounding depends on the others,
nor on how many bars a step takes. Carries start as NaN, and any value computed from NaN stays
undefined. Functions whose value needs that of the bar before are the only parts of an indicator
that loop over bars; what they keep between calls, they keep in an array of a carry, in place.
"""

from collections.abc import Iterator
from math import prod
from typing import Any, cast

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from compute.indicators.contract import (
    NO_READING,
    WARMUP,
    ZERO_DIVISOR,
    Carry,
    Floats,
    Readings,
)

Counts = NDArray[np.int64]
# Values of windows that are summed at a time: 256 KiB stay in a core's cache.
MAX_VALUES = 32_768


def make_undefined(*shape: int) -> Floats:
    """Return an array of NaN, as the start of a window, an average or a previous value."""
    return np.full(shape, np.nan)


def make_undefined_across(*shape: int) -> Floats:
    """Return an array of NaN in which assets are adjacent in memory, for windows of extremes."""
    # Extremes are found three to seven times as fast across assets, and their values do not
    # depend on the order. Sums do: their windows lie along each asset, so rounding stays the same.
    return make_undefined(*reversed(shape)).T


def start_carry(assets: int, **arrays: NDArray[Any]) -> Carry:
    """Return a carry of `arrays` plus the two that most indicators need: `bars` and `held`."""
    bars = np.zeros(assets, dtype=np.int64)
    return {"bars": bars, "held": np.zeros(assets, dtype=np.int8), **arrays}


def count_bars(carry: Carry, added: int) -> Counts:
    """Count new bars; return each one's number in its sequence, from 1, shape (added, N)."""
    carry["bars"] += added
    return _number_bars(carry, added)


def _number_bars(carry: Carry, newest: int) -> Counts:
    """Return the numbers of the newest counted bars, shape (newest, N)."""
    bars: Counts = carry["bars"]
    if newest == 1:
        return bars[np.newaxis]
    return bars - np.arange(newest - 1, -1, -1)[:, np.newaxis]


def withhold(carry: Carry, readings: Readings) -> Readings:
    """Return the readings of counted bars, with NO_READING for those of the warmup."""
    return np.where(_number_bars(carry, len(readings)) <= WARMUP, np.int8(NO_READING), readings)


def extend(window: Floats, values: Floats) -> Floats:
    """Append new values to each window, in place; return the series over which the windows move.

    `window` has shape (N, ..., period), `values` (bars, ..., N) and the series
    (N, ..., period - 1 + bars): a whole window ends at each bar. It may share memory with `window`.
    """
    if len(values) == 1:
        if window.flags.c_contiguous:
            # One flat move, because NumPy copies an overlap of two dimensions through a temporary
            # array. The value that crosses into the row above is overwritten below.
            flat = window.reshape(-1)
            flat[:-1] = flat[1:]
        else:
            window[..., :-1] = window[..., 1:]
        window[..., -1] = values[0].T
        return window
    kept = window.shape[-1] - 1
    series = np.empty((*window.shape[:-1], kept + len(values)))
    series[..., :kept] = window[..., 1:]
    series[..., kept:] = values.T
    window[...] = series[..., -kept - 1 :]
    return series


def extend_across(window: Floats, values: Floats) -> Floats:
    """Append new values to each window, in place; return the old window and them, bars on axis 0.

    `window` has shape (N, period), `values` (bars, N) and the result (period + bars, N).
    """
    series = np.concatenate([window.T, values])
    window.T[...] = series[len(values) :]
    return series


def find_highest(series: Floats, period: int) -> Floats:
    """Return the highest value of every `period` bars in a row, which lie on axis 0."""
    return _find_extremes(np.maximum, series, period)


def find_lowest(series: Floats, period: int) -> Floats:
    """Return the lowest value of every `period` bars in a row, which lie on axis 0."""
    return _find_extremes(np.minimum, series, period)


def _find_extremes(choose: np.ufunc, series: Floats, period: int) -> Floats:
    if len(series) == period:
        return cast(Floats, choose.reduce(series, axis=0, keepdims=True))
    # Extremes of 1, 2, 4, ... bars: joining two neighbours doubles the reach.
    reach, extremes = 1, series
    while reach < period:
        shift = min(reach, period - reach)
        extremes = choose(extremes[:-shift], extremes[shift:])
        reach += shift
    return extremes


def view_windows(series: Floats, period: int) -> Floats:
    """Return every window of `period` values of a series, shape (N, ..., bars, period)."""
    if series.shape[-1] == period:
        return series[..., np.newaxis, :]
    return sliding_window_view(series, period, axis=-1)


def sample_sd(series: Floats, period: int) -> Floats:
    """Return the SD (n-1) of every window of a series, shape (bars, ..., N).

    It is 0 for equal values, and NaN until the window is full.
    """
    _, squares = _compute_moments(view_windows(series, period))
    return np.sqrt(_to_bars(squares) / (period - 1))


def mean_and_sd(series: Floats, period: int) -> tuple[Floats, Floats]:
    """Return mean and SD (n) of every window, exact for equal values, NaN until it is full."""
    total, squares = _compute_moments(view_windows(series, period))
    newest = series[..., period - 1 :]
    return _to_bars(newest + total / period), np.sqrt(_to_bars(squares) / period)


def weigh(series: Floats, weights: Floats) -> Floats:
    """Return the weighted sum of every window, less the window's newest value; shape (bars, N)."""
    windows = view_windows(series, len(weights))
    total = np.empty(windows.shape[:-1])
    for place, deviations in _iterate_deviations(windows):
        np.einsum("...i,i->...", deviations, weights, out=total[place])
    return _to_bars(total)


def _to_bars(values: Floats) -> Floats:
    """Return values of shape (N, ..., bars) with bars on axis 0 and assets adjacent."""
    return np.ascontiguousarray(values.T)


def _compute_moments(windows: Floats) -> tuple[Floats, Floats]:
    """Return the sum of deviations from the newest value, and of squared ones from the mean."""
    # The short formula for squares may cancel digits. Here one deviation is 0 (the newest
    # value's), so the difference is at least 1/n of the sum of squares: log10(n) digits at most.
    total, squares = np.empty((2, *windows.shape[:-1]))
    for place, deviations in _iterate_deviations(windows):
        # Without `optimize`, einsum is a plain loop over each window, faster than the method `sum`.
        np.einsum("...i->...", deviations, out=total[place])
        np.einsum("...i,...i->...", deviations, deviations, out=squares[place])
    return total, squares - total * total / windows.shape[-1]


def _iterate_deviations(windows: Floats) -> Iterator[tuple[slice, Floats]]:
    """Yield parts of the windows, less their newest values, with their places on axis 0."""
    # A window is summed from memory of its own, where its values are adjacent, so that the order
    # of additions is the same for every number of assets and bars.
    size = max(1, MAX_VALUES // max(1, prod(windows.shape[1:])))
    buffer = np.empty((min(size, len(windows)), *windows.shape[1:]))
    for first in range(0, len(windows), size):
        part = windows[first : first + size]
        place = slice(first, first + len(part))
        yield place, np.subtract(part, part[..., -1:], out=buffer[: len(part)])


def divide(numerator: Floats, divisor: Floats, floor: Floats | float = ZERO_DIVISOR) -> Floats:
    """Return the quotient in the numerator's shape: 0 if |divisor| <= floor, NaN if either is."""
    # Not zeros: a NaN or an infinity in the numerator stays NaN. The condition is negated so that
    # a NaN divisor divides, and stays NaN too.
    quotient = numerator - numerator
    return np.divide(numerator, divisor, out=quotient, where=~(np.abs(divisor) <= floor))


def lag(previous: Floats, values: Floats) -> Floats:
    """Return each bar's value on the bar before; `previous` is that of the bar before the first."""
    return np.concatenate([previous[np.newaxis], values[:-1]])


def latch(side: Readings, score: Floats, enter: float, exit: float) -> Readings:
    """Return the sides after each `score`, and keep the last one in `side`.

    A side is taken at `enter`, kept until `exit`, and unchanged by NaN.
    """
    highest = (~(score < exit)).view(np.int8) - (score <= -enter).view(np.int8)
    lowest = (score >= enter).view(np.int8) - (~(score > -exit)).view(np.int8)
    return hold_within(side, lowest, highest)


def hold_within(side: Readings, lowest: Readings, highest: Readings) -> Readings:
    """Return the sides on each bar, and keep the last one in `side`.

    A bar holds the side before it, as far as it is within the bar's bounds, which have shape
    (bars, N). If the bounds cross, the lowest counts.
    """
    held, previous = np.empty_like(lowest), side
    for low, high, moved in zip(lowest, highest, held, strict=True):
        np.minimum(previous, high, out=moved)
        np.maximum(moved, low, out=moved)
        previous = moved
    side[...] = previous
    return held


def ema(previous: Floats, values: Floats, periods: Floats) -> Floats:
    """Return the exponential averages after each value; one that was NaN starts as the value.

    `previous` has shape (averages, N), `periods` (averages,) and the result (bars, averages, N).
    """
    rates = (2.0 / (periods + 1.0))[:, np.newaxis]
    averages = np.empty((len(values), *previous.shape))
    starts = bool(np.isnan(previous).any() or np.isnan(values).any())
    for value, moved in zip(values, averages, strict=True):
        np.subtract(value, previous, out=moved)
        np.multiply(rates, moved, out=moved)
        np.add(previous, moved, out=moved)
        if starts:
            np.copyto(moved, value, where=np.isnan(previous))
        previous = moved
    return averages


def wilder(average: Floats, counts: Counts, values: Floats, period: int) -> Floats:
    """Return the averages after each value, NaN while the count is below `period`.

    `average` starts at 0 and is updated in place. It holds the sum of the values until the count
    (this value included) reaches `period`, then their mean, then Wilder's (1978) average. If the
    count is below 1, the value is ignored.
    """
    averages, previous = np.empty_like(values), average
    starts = np.any(counts <= period, axis=1)
    for is_start, count, value, moved in zip(starts, counts, values, averages, strict=True):
        np.subtract(value, previous, out=moved)
        np.divide(moved, period, out=moved)
        if not is_start:
            previous = np.add(previous, moved, out=moved)
            continue
        np.copyto(moved, value, where=count <= period)
        np.add(previous, moved, out=moved)
        np.divide(moved, period, out=moved, where=count == period)
        previous = np.where(count >= 1, moved, previous)
        np.copyto(moved, np.nan, where=count < period)
    average[...] = previous
    return averages


def start_atr(assets: int) -> Carry:
    """Return the arrays that `atr` keeps in a carry."""
    return {"previous_close": make_undefined(assets), "atr": np.zeros(assets)}


def atr(
    carry: Carry, counts: Counts, high: Floats, low: Floats, close: Floats, period: int
) -> Floats:
    """Return the ATR after each bar, NaN before bar `period`; count the bars first."""
    previous_close = lag(carry["previous_close"], close)
    carry["previous_close"][...] = close[-1]
    # The true range includes the previous close. `fmax` and `fmin` ignore the NaN of a first bar,
    # which has none.
    ranges = np.fmax(high, previous_close) - np.fmin(low, previous_close)
    return wilder(carry["atr"], counts, ranges, period)
