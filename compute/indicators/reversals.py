"""Reversals: an extreme RSI, then a return of the close into its Bollinger bands.

Wilder (1978), *New Concepts in Technical Trading Systems*: RSI; Bollinger (2001), *Bollinger on
Bollinger Bands*.
"""

import numpy as np

from compute.indicators.contract import NEUTRAL, Bar, Carry, Indicator, Readings, Values
from compute.indicators.windows import (
    count_bars,
    divide,
    extend,
    extend_across,
    find_highest,
    find_lowest,
    lag,
    make_undefined,
    make_undefined_across,
    mean_and_sd,
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

    def advance(self, carry: Carry, bars: Bar) -> Values:
        """Return `rsi` (0 to 100), `upper` and `lower`, the bands in price units."""
        counts = count_bars(carry, len(bars.close)) - 1
        change = bars.close - lag(carry["closes"][:, -1], bars.close)
        gain = wilder(carry["gain"], counts, np.maximum(change, 0.0), RSI_PERIOD)
        loss = wilder(carry["loss"], counts, np.maximum(-change, 0.0), RSI_PERIOD)
        moved = gain + loss
        # Any sum above 0 divides; only two averages of exactly 0 give 50.
        rsi = divide(100.0 * gain, moved, floor=0.0)
        rsi[moved == 0.0] = 50.0
        middle, sd = mean_and_sd(extend(carry["closes"], bars.close), BAND_PERIOD)
        width = BAND_SDS * sd
        upper, lower = middle + width, middle - width
        carry["upper"], carry["lower"] = upper[-1], lower[-1]
        return {"rsi": rsi, "upper": upper, "lower": lower}

    def step(self, carry: Carry, bars: Bar) -> tuple[Carry, Readings]:
        """Advance by the bars; return the side of a reversal until it is too old or has failed."""
        # `advance` replaces the bands and the close of the bar before, so they are read first.
        upper, lower = carry["upper"], carry["lower"]
        previous_close = lag(carry["closes"][:, -1], bars.close)
        values = self.advance(carry, bars)
        was_below = previous_close <= lag(lower, values["lower"])
        was_above = previous_close >= lag(upper, values["upper"])
        rsis, lows, highs = (
            extend_across(carry[key], column)[1:]
            for key, column in (("rsis", values["rsi"]), ("lows", bars.low), ("highs", bars.high))
        )
        is_oversold = find_lowest(rsis, EXTREME_PERIOD) <= OVERSOLD
        is_overbought = find_highest(rsis, EXTREME_PERIOD) >= OVERBOUGHT
        bullish = was_below & (bars.close > values["lower"]) & is_oversold
        bearish = was_above & (bars.close < values["upper"]) & is_overbought & ~bullish
        levels = np.where(
            bullish, find_lowest(lows, EXTREME_PERIOD), find_highest(highs, EXTREME_PERIOD)
        )
        events = bullish.view(np.int8) - bearish.view(np.int8)
        # Those of the last event, which ends at the close `level` or at an age.
        side, level, age = carry["held"], carry["level"], carry["age"]
        sides, fires = np.empty_like(events), events != NEUTRAL
        for bar, event in enumerate(events):
            age += 1
            ends = side * (bars.close[bar] - level) < 0.0
            ends |= age >= MAX_AGE
            np.copyto(side, np.int8(NEUTRAL), where=ends)
            np.copyto(side, event, where=fires[bar])
            np.copyto(level, levels[bar], where=fires[bar])
            age *= (side != NEUTRAL) & ~fires[bar]
            sides[bar] = side
        return carry, withhold(carry, sides)


INDICATOR: Indicator = Reversals()
