"""Momentum: the sign of the change over ten bars, an indicator for tests."""

import numpy as np

from compute.indicators.contract import Bar, Carry, Indicator, Readings, Values
from compute.indicators.windows import (
    count_bars,
    extend_across,
    make_undefined,
    start_carry,
    withhold,
)

PERIOD = 10


class Momentum:
    """Bullish if the close is above the close of ten bars ago, bearish if below."""

    id = "momentum"
    name = "Momentum"
    version = 1
    note = "The side on which the close lies of the close of ten bars ago."

    def start(self, assets: int) -> Carry:
        """Return the carry of assets that have not yet seen a bar."""
        return start_carry(assets, closes=make_undefined(assets, PERIOD))

    def advance(self, carry: Carry, bars: Bar) -> Values:
        """Return the change over ten bars, in price units."""
        count_bars(carry, len(bars.close))
        closes = extend_across(carry["closes"], bars.close)
        return {"change": bars.close - closes[:-PERIOD]}

    def step(self, carry: Carry, bars: Bar) -> tuple[Carry, Readings]:
        """Advance by the bars; return the sign of the change."""
        sides = np.sign(np.nan_to_num(self.advance(carry, bars)["change"])).astype(np.int8)
        carry["held"][...] = sides[-1]
        return carry, withhold(carry, sides)


INDICATOR: Indicator = Momentum()
