"""Pure functions whose value on a bar needs that of the bar before: averages, latches, ranges.

They are the only parts of an indicator that loop over bars. Bars lie on axis 0, assets on the last
axis; what they keep between calls, they keep in an array of a carry, which they update in place.
"""

from typing import Protocol

import numpy as np

from compute.indicators.contract import Carry, Floats, Readings
from compute.indicators.windows import Counts, get_floats, make_undefined, mark_bars


class HighLowClose(Protocol):
    """Bars with the prices that a range needs; every field has shape (bars, N)."""

    @property
    def high(self) -> Floats:
        """The highest price."""

    @property
    def low(self) -> Floats:
        """The lowest price."""

    @property
    def close(self) -> Floats:
        """The last price."""


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
    starts = mark_bars(counts <= period)
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


def true_range(bars: HighLowClose, previous_close: Floats) -> Floats:
    """Return Wilder's true range, which includes the previous close if there is one."""
    # `fmax` and `fmin` ignore the NaN of a first bar, which has no previous close.
    true_high: Floats = np.fmax(bars.high, previous_close)
    return true_high - np.fmin(bars.low, previous_close)


def start_atr(assets: int) -> Carry:
    """Return the arrays that `atr` keeps in a carry."""
    return {"previous_close": make_undefined(assets), "atr": np.zeros(assets)}


def atr(carry: Carry, counts: Counts, bars: HighLowClose, period: int) -> Floats:
    """Return the ATR after each bar, NaN before bar `period`; count the bars first."""
    previous_close = get_floats(carry, "previous_close")
    spans = true_range(bars, lag(previous_close, bars.close))
    previous_close[...] = bars.close[-1]
    return wilder(get_floats(carry, "atr"), counts, spans, period)
