"""Pure functions that indicators share: windows, averages, latches (docs/indicators.md).

Assets lie on axis 0 and windows on the last axis, oldest value first, so that no asset's rounding
depends on the others. Carries start as NaN, and any value computed from NaN stays undefined.
"""

from typing import Protocol, cast

import numpy as np
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


class HighLowClose(Protocol):
    """A bar with the prices that a range needs; every field has shape (N,)."""

    @property
    def high(self) -> Floats:
        """The highest price."""

    @property
    def low(self) -> Floats:
        """The lowest price."""

    @property
    def close(self) -> Floats:
        """The last price."""


def make_undefined(*shape: int) -> Floats:
    """Return an array of NaN, as the start of a window, an average or a previous value."""
    return np.full(shape, np.nan)


def make_undefined_across(*shape: int) -> Floats:
    """Return an array of NaN in which assets are adjacent in memory, for windows of extremes."""
    # Extremes are found three to seven times as fast across assets, and their values do not
    # depend on the order. Sums do: their windows lie along each asset, so rounding stays the same.
    return make_undefined(*reversed(shape)).T


def start_carry(assets: int, **arrays: NDArray[np.generic]) -> Carry:
    """Return a carry of `arrays` plus the two that most indicators need: `bars` and `held`."""
    bars = np.zeros(assets, dtype=np.int64)
    return {"bars": bars, "held": np.zeros(assets, dtype=np.int8), **arrays}


def get_floats(carry: Carry, key: str) -> Floats:
    """Return the array under `key`, typed as float64."""
    return cast(Floats, carry[key])


def get_held_readings(carry: Carry) -> Readings:
    """Return the int8 readings held in the carry."""
    return cast(Readings, carry["held"])


def count_bar(carry: Carry) -> Counts:
    """Count this bar; return each asset's number of bars, this one included."""
    bars = cast(Counts, carry["bars"])
    bars += 1
    return bars


def withhold(carry: Carry, reading: Readings) -> Readings:
    """Return the reading, or NO_READING if the asset is still in its warmup."""
    shown = reading.copy()
    shown[cast(Counts, carry["bars"]) <= WARMUP] = NO_READING
    return shown


def push(window: Floats, value: Floats) -> None:
    """Drop the oldest value of each window and append `value`, in place."""
    if window.flags.c_contiguous:
        # One flat move, because NumPy copies an overlap of two dimensions through a temporary
        # array. The value that crosses into the row above is overwritten below.
        flat = window.reshape(-1)
        flat[:-1] = flat[1:]
    else:
        window[..., :-1] = window[..., 1:]
    window[..., -1] = value


def sample_sd(window: Floats) -> Floats:
    """Return the SD (n-1) over the last axis, 0 for equal values, NaN until the window is full."""
    _, squares = _compute_moments(window)
    variance: Floats = squares / (window.shape[-1] - 1)
    return np.sqrt(variance)


def mean_and_sd(window: Floats) -> tuple[Floats, Floats]:
    """Return mean and SD (n) over the last axis, exact for equal values, NaN until it is full."""
    total, squares = _compute_moments(window)
    periods = window.shape[-1]
    return window[..., -1] + total / periods, np.sqrt(squares / periods)


def _compute_moments(window: Floats) -> tuple[Floats, Floats]:
    """Return the sum of deviations from the newest value, and of squared ones from the mean."""
    # The short formula for squares may cancel digits. Here one deviation is 0 (the newest
    # value's), so the difference is at least 1/n of the sum of squares: log10(n) digits at most.
    deviations: Floats = window - window[..., -1:]
    # Without `optimize`, einsum is a plain loop over each window, faster than the method `sum`.
    total: Floats = np.einsum("...i->...", deviations)
    squares: Floats = np.einsum("...i,...i->...", deviations, deviations)
    return total, squares - total * total / window.shape[-1]


def divide(numerator: Floats, divisor: Floats, floor: Floats | float = ZERO_DIVISOR) -> Floats:
    """Return the quotient in the numerator's shape: 0 if |divisor| <= floor, NaN if either is."""
    # Not zeros: a NaN or an infinity in the numerator stays NaN. The condition is negated so that
    # a NaN divisor divides, and stays NaN too.
    quotient = numerator - numerator
    return np.divide(numerator, divisor, out=quotient, where=~(np.abs(divisor) <= floor))


def latch(side: Readings, score: Floats, enter: float, exit: float) -> Readings:
    """Return the side after `score`: taken at `enter`, kept until `exit`, unchanged by NaN."""
    holds = ~(side * score < exit)
    enters = (score >= enter).view(np.int8) - (score <= -enter).view(np.int8)
    return np.where(enters, enters, side * holds)


def ema(previous: Floats, value: Floats, period: Floats | float) -> Floats:
    """Return the exponential average after `value`; if it was NaN, it starts as that value."""
    return np.where(np.isnan(previous), value, previous + 2.0 / (period + 1.0) * (value - previous))


def wilder(average: Floats, count: Counts, value: Floats, period: int) -> Floats:
    """Update `average` by one value in place; return it, NaN while `count` < `period`.

    `average` starts at 0 and holds the sum of the values until `count` (this value included)
    reaches `period`, then their mean, then Wilder's (1978) average. If `count` < 1, the value is
    ignored.
    """
    begins = count <= period
    moved = average + np.where(begins, value, (value - average) / period)
    if not begins.any():
        average[...] = moved
        return moved
    np.divide(moved, period, out=moved, where=count == period)
    np.copyto(average, moved, where=count >= 1)
    return np.where(count < period, np.nan, moved)


def true_range(bar: HighLowClose, previous_close: Floats) -> Floats:
    """Return Wilder's true range, which includes the previous close if there is one."""
    # `fmax` and `fmin` ignore the NaN of a first bar, which has no previous close.
    true_high: Floats = np.fmax(bar.high, previous_close)
    return true_high - np.fmin(bar.low, previous_close)


def start_atr(assets: int) -> Carry:
    """Return the arrays that `atr` keeps in a carry."""
    return {"previous_close": make_undefined(assets), "atr": np.zeros(assets)}


def atr(carry: Carry, bar: HighLowClose, period: int) -> Floats:
    """Return the ATR after this bar, NaN before bar `period`; count the bar first.

    This replaces the carry's `previous_close` by a new array, so a caller may keep the old one.
    """
    count = cast(Counts, carry["bars"])
    spans = true_range(bar, get_floats(carry, "previous_close"))
    carry["previous_close"] = bar.close.copy()
    return wilder(get_floats(carry, "atr"), count, spans, period)
