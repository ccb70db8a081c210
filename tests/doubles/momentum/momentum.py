"""Momentum: the sign of the change over ten bars, an indicator for tests."""

import numpy as np

from compute.indicators.contract import Bar, Carry, Readings, Values
from compute.indicators.windows import (
    count_bar,
    get_floats,
    get_held_readings,
    make_undefined,
    push,
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

    def advance(self, carry: Carry, bar: Bar) -> Values:
        """Return the change over ten bars, in price units."""
        count_bar(carry)
        closes = get_floats(carry, "closes")
        change = bar.close - closes[:, 0]
        push(closes, bar.close)
        return {"change": change}

    def step(self, carry: Carry, bar: Bar) -> tuple[Carry, Readings]:
        """Advance by one bar; return the sign of the change."""
        change = self.advance(carry, bar)["change"]
        held = get_held_readings(carry)
        held[:] = np.sign(np.nan_to_num(change))
        return carry, withhold(carry, held)
