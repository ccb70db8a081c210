"""Reversals: an extreme RSI, then a return of the close into its Bollinger bands.

Wilder (1978), *New Concepts in Technical Trading Systems*: RSI; Bollinger (2001), *Bollinger on
Bollinger Bands*.
"""

from typing import cast

import numpy as np
from numpy.typing import NDArray

from compute.indicators.contract import (
    BEARISH,
    BULLISH,
    NEUTRAL,
    Bar,
    Carry,
    Floats,
    Readings,
    Values,
)
from compute.indicators.windows import (
    count_bar,
    divide,
    get_floats,
    get_held_readings,
    make_undefined,
    make_undefined_across,
    mean_and_sd,
    push,
    start_carry,
    wilder,
    withhold,
)

RSI_PERIOD = 14
BAND_PERIOD = 20
BAND_SDS = 2.0
EXTREME_PERIOD = 5
OVERSOLD, OVERBOUGHT = 30.0, 70.0
MAX_AGE = 12

Flags = NDArray[np.bool_]


class Reversals:
    """Takes a side when the close re-enters its band soon after an extreme RSI."""

    id = "reversals"
    name = "Reversals"
    version = 1
    note = "RSI extremes with a return inside the Bollinger bands; a reading lasts at most 12 bars."

    def start(self, assets: int) -> Carry:
        """Return the carry of assets that have not yet seen a bar."""
        return start_carry(
            assets,
            closes=make_undefined(assets, BAND_PERIOD),
            highs=make_undefined_across(assets, EXTREME_PERIOD),
            lows=make_undefined_across(assets, EXTREME_PERIOD),
            rsis=make_undefined_across(assets, EXTREME_PERIOD),
            gain=np.zeros(assets),
            loss=np.zeros(assets),
            upper=make_undefined(assets),
            lower=make_undefined(assets),
            age=np.zeros(assets, dtype=np.int64),
            level=make_undefined(assets),
        )

    def advance(self, carry: Carry, bar: Bar) -> Values:
        """Return `rsi` (0 to 100), `upper` and `lower`, the bands in price units."""
        rsi = _move_rsi(carry, bar)
        closes = get_floats(carry, "closes")
        push(closes, bar.close)
        push(get_floats(carry, "highs"), bar.high)
        push(get_floats(carry, "lows"), bar.low)
        push(get_floats(carry, "rsis"), rsi)
        middle, sd = mean_and_sd(closes)
        width = BAND_SDS * sd
        carry["upper"], carry["lower"] = middle + width, middle - width
        return {
            "rsi": rsi,
            "upper": get_floats(carry, "upper"),
            "lower": get_floats(carry, "lower"),
        }

    def step(self, carry: Carry, bar: Bar) -> tuple[Carry, Readings]:
        """Advance by one bar; return the side of a reversal until it is too old or has failed."""
        # `advance` overwrites the bands of the bar before, so they are compared first.
        previous_close = get_floats(carry, "closes")[:, -1]
        was_below = previous_close <= get_floats(carry, "lower")
        was_above = previous_close >= get_floats(carry, "upper")
        values = self.advance(carry, bar)
        rsis = get_floats(carry, "rsis")
        bullish = was_below & (bar.close > values["lower"]) & (rsis.min(axis=1) <= OVERSOLD)
        bearish = was_above & (bar.close < values["upper"]) & (rsis.max(axis=1) >= OVERBOUGHT)
        return carry, withhold(carry, _update_sides(carry, bar.close, bullish, bearish & ~bullish))


def _move_rsi(carry: Carry, bar: Bar) -> Floats:
    """Return Wilder's RSI; `closes` must still end with the bar before this one."""
    changes = count_bar(carry) - 1
    change = bar.close - get_floats(carry, "closes")[:, -1]
    gain = wilder(get_floats(carry, "gain"), changes, np.maximum(change, 0.0), RSI_PERIOD)
    loss = wilder(get_floats(carry, "loss"), changes, np.maximum(-change, 0.0), RSI_PERIOD)
    moved = gain + loss
    # Any sum above 0 divides; only two averages of exactly 0 give 50.
    rsi = divide(100.0 * gain, moved, floor=0.0)
    rsi[moved == 0.0] = 50.0
    return rsi


def _update_sides(carry: Carry, close: Floats, bullish: Flags, bearish: Flags) -> Readings:
    """Update side, age and level by one bar; return the side."""
    side, level = get_held_readings(carry), get_floats(carry, "level")
    age = cast(NDArray[np.int64], carry["age"])
    age += 1
    failed = side * (close - level) < 0.0
    side[failed | (age >= MAX_AGE)] = NEUTRAL
    side[bullish], side[bearish] = BULLISH, BEARISH
    age[(side == NEUTRAL) | bullish | bearish] = 0
    np.copyto(level, get_floats(carry, "lows").min(axis=1), where=bullish)
    np.copyto(level, get_floats(carry, "highs").max(axis=1), where=bearish)
    return side
