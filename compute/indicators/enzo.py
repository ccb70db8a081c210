"""Enzo: the slope of an adaptive moving average in units of true range.

Kaufman (1995), *Smarter Trading*: KAMA; Wilder (1978): true range.
"""

import numpy as np

from compute.indicators.contract import ZERO_DIVISOR, Bar, Carry, Floats, Readings, Values
from compute.indicators.windows import (
    atr,
    count_bar,
    divide,
    get_floats,
    get_held_readings,
    latch,
    make_undefined,
    push,
    start_atr,
    start_carry,
    withhold,
)

EFFICIENCY_PERIOD = 10
FASTEST, SLOWEST = 2.0 / 3.0, 2.0 / 31.0
SLOPE_PERIOD = 5
ATR_PERIOD = 14
ENTER, EXIT = 0.50, 0.10


class Enzo:
    """Holds a side while Kaufman's average climbs or falls fast enough."""

    id = "enzo"
    name = "Enzo"
    version = 1
    note = "Slope of the adaptive moving average KAMA(10) over 5 bars, in units of ATR(14)."

    def start(self, assets: int) -> Carry:
        """Return the carry of assets that have not yet seen a bar."""
        return start_carry(
            assets,
            closes=make_undefined(assets, EFFICIENCY_PERIOD + 1),
            kamas=make_undefined(assets, SLOPE_PERIOD + 1),
            **start_atr(assets),
        )

    def advance(self, carry: Carry, bar: Bar) -> Values:
        """Return `s` (5-bar rise of KAMA in ATRs), `kama` and `atr` in price units."""
        count = count_bar(carry)
        closes, kamas = get_floats(carry, "closes"), get_floats(carry, "kamas")
        push(closes, bar.close)
        seeded = count == EFFICIENCY_PERIOD + 1
        # KAMA starts on the first full window, from the close before this bar.
        previous = np.where(seeded, closes[:, -2], kamas[:, -1])
        kama = previous + _compute_smoothing(closes) * (bar.close - previous)
        push(kamas, kama)
        ranges = atr(carry, bar, ATR_PERIOD)
        # The divisor is a price range, so its floor is relative to the price.
        score = divide(kama - kamas[:, 0], ranges, floor=ZERO_DIVISOR * bar.close)
        return {"s": score, "kama": kama, "atr": ranges}

    def step(self, carry: Carry, bar: Bar) -> tuple[Carry, Readings]:
        """Advance by one bar; return the side latched by the slope."""
        score = self.advance(carry, bar)["s"]
        carry["held"] = latch(get_held_readings(carry), score, ENTER, EXIT)
        return carry, withhold(carry, get_held_readings(carry))


def _compute_smoothing(closes: Floats) -> Floats:
    """Return KAMA's smoothing constant; it is the fastest if no price moved, as in TA-Lib."""
    change = np.abs(closes[:, -1] - closes[:, 0])
    path = np.abs(closes[:, 1:] - closes[:, :-1]).sum(axis=1)
    # A path that equals its change up to rounding has a ratio of exactly 1, as in TA-Lib. TA-Lib
    # compares signed changes; the absolute ones make rises and falls mirror each other. The
    # comparison is negated so that NaN stays NaN.
    is_bent = ~(path <= np.maximum(change, ZERO_DIVISOR * closes[:, -1]))
    efficiency = np.divide(change, path, out=np.ones_like(path), where=is_bent)
    root: Floats = efficiency * (FASTEST - SLOWEST) + SLOWEST
    return root * root
