"""Ceres: channel breakout with a shorter exit channel.

Donchian's channel rule as told in Faith (2003), *The Original Turtle Trading Rules*.
"""

import numpy as np

from compute.indicators.contract import BEARISH, BULLISH, NEUTRAL, Bar, Carry, Readings, Values
from compute.indicators.windows import (
    count_bar,
    floats,
    held_readings,
    push,
    start_carry,
    undefined_across,
    withhold,
)

ENTRY_PERIOD = 40
EXIT_PERIOD = 20


class Ceres:
    """Takes the side of a 40-bar breakout and leaves it on a 20-bar one against it."""

    id = "ceres"
    name = "Ceres"
    version = 1
    note = "Breakouts of the 40-bar channel, held until the 20-bar channel breaks the other way."

    def start(self, assets: int) -> Carry:
        """Return the carry of assets that have not yet seen a bar."""
        return start_carry(
            assets,
            highs=undefined_across(assets, ENTRY_PERIOD),
            lows=undefined_across(assets, ENTRY_PERIOD),
        )

    def advance(self, carry: Carry, bar: Bar) -> Values:
        """Return the channels over the previous bars, this one excluded, in price units."""
        count_bar(carry)
        highs, lows = floats(carry, "highs"), floats(carry, "lows")
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
        held = held_readings(carry)
        leaves_long = (held == BULLISH) & (bar.close < channel["lowest20"])
        leaves_short = (held == BEARISH) & (bar.close > channel["highest20"])
        held[leaves_long | leaves_short] = NEUTRAL
        np.copyto(held, np.int8(BEARISH), where=bar.close < channel["lowest40"])
        np.copyto(held, np.int8(BULLISH), where=bar.close > channel["highest40"])
        return carry, withhold(carry, held)
