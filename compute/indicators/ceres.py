"""Ceres: a channel breakout with a shorter channel for the exit.

Donchian's channel rule as described in Faith (2003), *The Original Turtle Trading Rules*.
"""

import numpy as np

from compute.indicators.contract import (
    BEARISH,
    BULLISH,
    NEUTRAL,
    Bar,
    Carry,
    Indicator,
    Readings,
    Values,
)
from compute.indicators.windows import (
    count_bars,
    extend_across,
    find_highest,
    find_lowest,
    hold_within,
    make_undefined_across,
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

    def advance(self, carry: Carry, bars: Bar) -> Values:
        """Return the channels over each bar's previous bars, itself excluded, in price units."""
        count_bars(carry, len(bars.close))
        highs = extend_across(carry["highs"], bars.high)[:-1]
        lows = extend_across(carry["lows"], bars.low)[:-1]
        return {
            "highest40": find_highest(highs, ENTRY_PERIOD),
            "lowest40": find_lowest(lows, ENTRY_PERIOD),
            "highest20": find_highest(highs[ENTRY_PERIOD - EXIT_PERIOD :], EXIT_PERIOD),
            "lowest20": find_lowest(lows[ENTRY_PERIOD - EXIT_PERIOD :], EXIT_PERIOD),
        }

    def step(self, carry: Carry, bars: Bar) -> tuple[Carry, Readings]:
        """Advance by the bars; return the side of the last breakout still held."""
        channel = self.advance(carry, bars)
        # A breakout forces its side, and one of the shorter channel forbids the other side. A bar
        # that breaks both channels turns the side around.
        highest = np.where(bars.close < channel["lowest20"], np.int8(NEUTRAL), np.int8(BULLISH))
        highest[bars.close < channel["lowest40"]] = BEARISH
        lowest = np.where(bars.close > channel["highest20"], np.int8(NEUTRAL), np.int8(BEARISH))
        lowest[bars.close > channel["highest40"]] = BULLISH
        return carry, withhold(carry, hold_within(carry["held"], lowest, highest))


INDICATOR: Indicator = Ceres()
