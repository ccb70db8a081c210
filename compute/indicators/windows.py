"""Pure pieces the indicators share: windows, averages, latches; the rules are INDICATORS.md's.

Assets lie on axis 0 and a window on the last axis, oldest first, so that no asset's rounding
depends on the others. A carry starts as NaN: what is not yet defined stays NaN by itself.
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
    """What a range is measured on: any bar, shape (N,)."""

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
    """Return an array of NaN: the start of a window, an average or a previous value."""
    return np.full(shape, np.nan)


def make_undefined_across(*shape: int) -> Floats:
    """Return the same with assets side by side in memory, for what is read across them.

    So for extremes of short windows. A sum's rounding depends on the order in memory, an extreme's
    value does not.
    """
    return make_undefined(*reversed(shape)).T


def start_carry(assets: int, **arrays: NDArray[np.generic]) -> Carry:
    """Return a carry of `arrays` with the two that most indicators need: `bars` and `held`."""
    bars = np.zeros(assets, dtype=np.int64)
    return {"bars": bars, "held": np.zeros(assets, dtype=np.int8), **arrays}


def get_floats(carry: Carry, key: str) -> Floats:
    """Return the float64 array under `key`, for the type checker's sake."""
    return cast(Floats, carry[key])


def get_held_readings(carry: Carry) -> Readings:
    """Return the int8 readings held in the carry."""
    return cast(Readings, carry["held"])


def count_bar(carry: Carry) -> Counts:
    """Count this bar in and return each asset's number of bars, this one included."""
    bars = cast(Counts, carry["bars"])
    bars += 1
    return bars


def withhold(carry: Carry, reading: Readings) -> Readings:
    """Return the reading, NO_READING for an asset still in its warm-up."""
    shown = reading.copy()
    shown[cast(Counts, carry["bars"]) <= WARMUP] = NO_READING
    return shown


def push(window: Floats, value: Floats) -> None:
    """Shift a window by one place and put `value` in as the newest, in place."""
    if window.flags.c_contiguous:
        # One flat move: NumPy copies a 2-d overlap through a temporary. The value that crosses
        # into the row above is the one overwritten.
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
    """Return the sum of deviations from the newest value, and of squared ones from the mean.

    With one deviation from the newest value being 0, the difference is at least 1/n of the sum
    of squares, so that the short formula loses no more than log10(n) digits.
    """
    deviations: Floats = window - window[..., -1:]
    # Without `optimize`, einsum is a plain loop over each window, faster than the method `sum`.
    total: Floats = np.einsum("...i->...", deviations)
    squares: Floats = np.einsum("...i,...i->...", deviations, deviations)
    return total, squares - total * total / window.shape[-1]


def divide(numerator: Floats, divisor: Floats, floor: Floats | float = ZERO_DIVISOR) -> Floats:
    """Return the quotient, 0 where |divisor| <= floor, NaN where either is NaN.

    Its shape is the numerator's.
    """
    quotient = numerator - numerator
    return np.divide(numerator, divisor, out=quotient, where=~(np.abs(divisor) <= floor))


def latch(side: Readings, score: Floats, enter: float, exit: float) -> Readings:
    """Return what is held after `score`: taken at `enter`, kept until `exit`; NaN is no news."""
    holds = ~(side * score < exit)
    enters = (score >= enter).view(np.int8) - (score <= -enter).view(np.int8)
    return np.where(enters, enters, side * holds)


def ema(previous: Floats, value: Floats, period: Floats | float) -> Floats:
    """Return the exponential average moved by `value`; NaN before starts it as that value."""
    return np.where(np.isnan(previous), value, previous + 2.0 / (period + 1.0) * (value - previous))


def wilder(average: Floats, count: Counts, value: Floats, period: int) -> Floats:
    """Move `average` by one value in place and return it, NaN while `count` < `period`.

    `average` starts at 0 and holds the sum of the values until `count` (this value included)
    reaches `period`, then their mean, then Wilder's (1978) average; `count` < 1 is no value.
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
    """Return Wilder's true range: high - low of the bar and the previous close, if there is one."""
    true_high: Floats = np.fmax(bar.high, previous_close)
    return true_high - np.fmin(bar.low, previous_close)


def start_atr(assets: int) -> Carry:
    """Return the arrays that `atr` keeps in a carry."""
    return {"previous_close": make_undefined(assets), "atr": np.zeros(assets)}


def atr(carry: Carry, bar: HighLowClose, period: int) -> Floats:
    """Return the ATR after this bar, NaN before bar `period`; the bar must be counted already.

    It replaces `previous_close` (never in place), so a caller may take the old one before.
    """
    count = cast(Counts, carry["bars"])
    spans = true_range(bar, get_floats(carry, "previous_close"))
    carry["previous_close"] = bar.close.copy()
    return wilder(get_floats(carry, "atr"), count, spans, period)
