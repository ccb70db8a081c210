"""Enzo: the slope of an adaptive moving average in units of true range.

Kaufman (1995), *Smarter Trading*: KAMA; Wilder (1978): true range.
"""

import numpy as np

from compute.indicators.contract import (
    ZERO_DIVISOR,
    Bar,
    Carry,
    Floats,
    Indicator,
    Readings,
    Values,
)
from compute.indicators.windows import (
    Counts,
    atr,
    count_bars,
    divide,
    extend,
    extend_across,
    lag,
    latch,
    make_undefined,
    start_atr,
    start_carry,
    view_windows,
    withhold,
)

EFFICIENCY_PERIOD = 10
SEED_BAR = EFFICIENCY_PERIOD + 1
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
            closes=make_undefined(assets, SEED_BAR),
            kamas=make_undefined(assets, SLOPE_PERIOD + 1),
            **start_atr(assets),
        )

    def advance(self, carry: Carry, bars: Bar) -> Values:
        """Return `s` (5-bar rise of KAMA in ATRs), `kama` and `atr` in price units."""
        counts = count_bars(carry, len(bars.close))
        kama = _move_kama(carry, counts, bars.close)
        kamas = extend_across(carry["kamas"], kama)[1:]
        ranges = atr(carry, counts, bars.high, bars.low, bars.close, ATR_PERIOD)
        # The divisor is a price range, so its floor is relative to the price.
        rise = kama - kamas[:-SLOPE_PERIOD]
        score = divide(rise, ranges, floor=ZERO_DIVISOR * bars.close)
        return {"s": score, "kama": kama, "atr": ranges}

    def step(self, carry: Carry, bars: Bar) -> tuple[Carry, Readings]:
        """Advance by the bars; return the side latched by the slope."""
        score = self.advance(carry, bars)["s"]
        return carry, withhold(carry, latch(carry["held"], score, ENTER, EXIT))


def _move_kama(carry: Carry, counts: Counts, close: Floats) -> Floats:
    """Return KAMA after each bar; `kamas` must still end with the bar before the first."""
    previous_close = lag(carry["closes"][:, -1], close)
    closes = extend(carry["closes"], close)
    newest = closes[:, EFFICIENCY_PERIOD:]
    change = np.abs(newest - closes[:, :-EFFICIENCY_PERIOD])
    moves = view_windows(np.abs(closes[:, 1:] - closes[:, :-1]), EFFICIENCY_PERIOD)
    # The method `sum` adds in another order if the moves of a window are not adjacent in memory.
    path = np.ascontiguousarray(moves).sum(axis=-1)
    # A path that equals its change up to rounding, as one without a move, has a ratio of exactly 1,
    # as in TA-Lib. TA-Lib compares signed changes; the absolute ones make rises and falls mirror
    # each other. The comparison is negated so that NaN stays NaN.
    is_bent = ~(path <= np.maximum(change, ZERO_DIVISOR * newest))
    efficiency = np.divide(change, path, out=np.ones_like(path), where=is_bent)
    root = np.ascontiguousarray(efficiency.T) * (FASTEST - SLOWEST) + SLOWEST
    smoothing = root * root
    kama, previous, seeded = np.empty_like(close), carry["kamas"][:, -1], counts == SEED_BAR
    is_seeding = np.any(seeded, axis=1)
    for bar, moved in enumerate(kama):
        # KAMA starts on the first full window, from the close before this bar.
        if is_seeding[bar]:
            previous = np.where(seeded[bar], previous_close[bar], previous)
        np.subtract(close[bar], previous, out=moved)
        np.multiply(smoothing[bar], moved, out=moved)
        previous = np.add(previous, moved, out=moved)
    return kama


INDICATOR: Indicator = Enzo()
