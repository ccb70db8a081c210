"""Ceres: a channel breakout with a shorter channel for the exit.

Donchian's channel rule as described in Faith (2003), *The Original Turtle Trading Rules*.
"""

import numpy as np

from compute.indicators.contract import BEARISH, BULLISH, NEUTRAL, Bar, Carry, Readings, Values
from compute.indicators.windows import (
    count_bar,
    get_floats,
    get_held_readings,
    make_undefined_across,
    push,
    start_carry,
    withhold,
)

ENTRY_PERIOD = 40
EXIT_PERIOD = 20


class Ceres:
    """Takes the side of a 40-bar breakout and leaves it on a 20-bar breakout against it."""

    id = "ceres"
    name = "Ceres"
    version = 1
    note = "Breakouts of the 40-bar channel, held until the 20-bar channel breaks the other way."

    def start(self, assets: int) -> Carry:
        """Return the carry of assets that have not yet seen a bar."""
        return start_carry(
            assets,
            highs=make_undefined_across(assets, ENTRY_PERIOD),
            lows=make_undefined_across(assets, ENTRY_PERIOD),
        )

    def advance(self, carry: Carry, bar: Bar) -> Values:
        """Return the channels over the previous bars, this one excluded, in price units."""
        count_bar(carry)
        highs, lows = get_floats(carry, "highs"), get_floats(carry, "lows")
        channels = {
            "highest40": highs.max(axis=1),
            "lowest40": lows.min(axis=1),
            "highest20": highs[:, -EXIT_PERIOD:].max(axis=1),
            "lowest20": lows[:, -EXIT_PERIOD:].min(axis=1),
        }
        push(highs, bar.high)
        push(lows, bar.low)
        return channels

    def step(self, carry: Carry, bar: Bar) -> tuple[Carry, Readings]:
        """Advance by one bar; return the side of the last breakout still held."""
        channel = self.advance(carry, bar)
        side = get_held_readings(carry)
        leaves_long = (side == BULLISH) & (bar.close < channel["lowest20"])
        leaves_short = (side == BEARISH) & (bar.close > channel["highest20"])
        # Exits come first: a bar that also breaks the 40-bar channel turns the side around.
        side[leaves_long | leaves_short] = NEUTRAL
        np.copyto(side, np.int8(BEARISH), where=bar.close < channel["lowest40"])
        np.copyto(side, np.int8(BULLISH), where=bar.close > channel["highest40"])
        return carry, withhold(carry, side)
