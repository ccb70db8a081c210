"""PerpKit: a volatility-stop trend gated by the cost of carrying a perpetual.

SuperTrend (Seban); He, Manela, Ross, von Wachter (2022), *Fundamentals of Perpetual Futures*.
"""

from typing import cast

import numpy as np

from compute.indicators.contract import BULLISH, NEUTRAL, Bar, Carry, Floats, Readings, Values
from compute.indicators.windows import (
    atr,
    count_bar,
    get_floats,
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

    def advance(self, carry: Carry, bar: Bar) -> Values:
        """Return `line` (the stop) and `atr` in price units and `direction`, +1 or -1."""
        first = count_bar(carry) == ATR_PERIOD
        # Taken now: `atr` replaces it by this bar's close.
        previous_close = get_floats(carry, "previous_close")
        ranges = atr(carry, bar, ATR_PERIOD)
        _move_lines(carry, bar, LINE_ATRS * ranges, previous_close)
        upper, lower = get_floats(carry, "upper"), get_floats(carry, "lower")
        turn = (bar.close > upper).astype(np.int8) - (bar.close < lower)
        direction = np.where(turn != 0, turn, _get_direction(carry))
        direction[first] = BULLISH
        carry["direction"] = direction
        line = np.where(direction == BULLISH, lower, upper)
        return {"line": line, "atr": ranges, "direction": np.where(direction, direction, np.nan)}

    def step(self, carry: Carry, bar: Bar) -> tuple[Carry, Readings]:
        """Advance by one bar; return the direction, NEUTRAL if it is near its stop or costly."""
        # Comparisons with NaN are false: an asset without funding is never costly.
        values = self.advance(carry, bar)
        is_near = np.abs(bar.close - values["line"]) <= NEAR_ATRS * values["atr"]
        is_costly = values["direction"] * bar.funding > COSTLY_FUNDING
        reading = np.where(is_near | is_costly, np.int8(NEUTRAL), _get_direction(carry))
        return carry, withhold(carry, reading)


def _get_direction(carry: Carry) -> Readings:
    return cast(Readings, carry["direction"])


def _move_lines(carry: Carry, bar: Bar, distance: Floats, previous_close: Floats) -> None:
    """Move `upper` and `lower` by one bar; an undefined line becomes the basic line."""
    # A line only moves towards the price, unless the close before crossed it.
    middle = (bar.high + bar.low) / 2.0
    basic, line = middle + distance, get_floats(carry, "upper")
    carry["upper"] = np.where((basic >= line) & (previous_close <= line), line, basic)
    basic, line = middle - distance, get_floats(carry, "lower")
    carry["lower"] = np.where((basic <= line) & (previous_close >= line), line, basic)
