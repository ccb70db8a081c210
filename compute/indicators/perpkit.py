"""PerpKit: a volatility-stop trend gated by the cost of carrying a perpetual.

SuperTrend (Seban); He, Manela, Ross, von Wachter (2022), *Fundamentals of Perpetual Futures*.
"""

import numpy as np

from compute.indicators.contract import (
    BEARISH,
    BULLISH,
    NEUTRAL,
    Bar,
    Carry,
    Floats,
    Indicator,
    Readings,
    Values,
)
from compute.indicators.windows import (
    atr,
    count_bars,
    hold_within,
    lag,
    make_undefined,
    start_atr,
    withhold,
)

ATR_PERIOD = 10
LINE_ATRS = 3.0
NEAR_ATRS = 0.5
COSTLY_FUNDING = 0.60


class PerpKit:
    """Follows SuperTrend, except near its stop or at an extreme funding rate against the side."""

    id = "perpkit"
    name = "PerpKit"
    version = 1
    note = (
        "SuperTrend(10, 3), neutral near its own stop and against extreme funding of the perpetual."
    )

    def start(self, assets: int) -> Carry:
        """Return the carry of assets that have not yet seen a bar."""
        return {
            "bars": np.zeros(assets, dtype=np.int64),
            "direction": np.zeros(assets, dtype=np.int8),
            "upper": make_undefined(assets),
            "lower": make_undefined(assets),
            **start_atr(assets),
        }

    def advance(self, carry: Carry, bars: Bar) -> Values:
        """Return `line` (the stop) and `atr` in price units and `direction`, +1 or -1."""
        counts = count_bars(carry, len(bars.close))
        previous_close = lag(carry["previous_close"], bars.close)
        ranges = atr(carry, counts, bars.high, bars.low, bars.close, ATR_PERIOD)
        middle, distance = (bars.high + bars.low) / 2.0, LINE_ATRS * ranges
        far, near = np.greater_equal, np.less_equal
        upper = _trail(carry["upper"], middle + distance, previous_close, far, near)
        lower = _trail(carry["lower"], middle - distance, previous_close, near, far)
        turns = (bars.close > upper).view(np.int8) - (bars.close < lower).view(np.int8)
        turns[counts == ATR_PERIOD] = BULLISH
        lowest = np.where(turns == BULLISH, np.int8(BULLISH), np.int8(BEARISH))
        highest = np.where(turns == BEARISH, np.int8(BEARISH), np.int8(BULLISH))
        direction = hold_within(carry["direction"], lowest, highest)
        line = np.where(direction == BULLISH, lower, upper)
        return {"line": line, "atr": ranges, "direction": np.where(direction, direction, np.nan)}

    def step(self, carry: Carry, bars: Bar) -> tuple[Carry, Readings]:
        """Advance by the bars; return the direction, NEUTRAL if it is near its stop or costly."""
        # Comparisons with NaN are false: an asset without funding is never costly.
        values = self.advance(carry, bars)
        is_near = np.abs(bars.close - values["line"]) <= NEAR_ATRS * values["atr"]
        is_costly = values["direction"] * bars.funding > COSTLY_FUNDING
        reading = np.where(is_near | is_costly, NEUTRAL, np.nan_to_num(values["direction"]))
        return carry, withhold(carry, reading.astype(np.int8))


def _trail(
    line: Floats, basic: Floats, previous_close: Floats, is_far: np.ufunc, is_near: np.ufunc
) -> Floats:
    """Return the line after each bar, in the memory of `basic`, and keep the last one in `line`.

    `is_far` compares the basic line with the line, `is_near` the close before. If both hold, the
    line stays. An undefined line becomes the basic line.
    """
    # A line only moves towards the price, unless the close before crossed it.
    last = line
    for moved, close in zip(basic, previous_close, strict=True):
        stays = is_far(moved, last)
        stays &= is_near(close, last)
        np.copyto(moved, last, where=stays)
        last = moved
    line[...] = last
    return basic


INDICATOR: Indicator = PerpKit()
