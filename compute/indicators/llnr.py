"""LLNR: the slope of a one-sided local linear regression, in units of noise.

Fan & Gijbels (1996), *Local Polynomial Modelling and Its Applications*, with a Gaussian kernel
over past bars only.
"""

import numpy as np

from compute.indicators.contract import Bar, Carry, Indicator, Readings, Values
from compute.indicators.windows import (
    count_bars,
    divide,
    extend,
    latch,
    make_undefined,
    sample_sd,
    start_carry,
    weigh,
    withhold,
)

PERIOD = 64
BANDWIDTH = 16
ENTER, EXIT = 0.75, 0.25

# The weights of `PERIOD` values, oldest first, whose weighted sum is the slope.
AGES = np.arange(-(PERIOD - 1.0), 1.0)
KERNEL = np.exp(-0.5 * (AGES / BANDWIDTH) ** 2)
CENTRED_AGES = AGES - (KERNEL * AGES).sum() / KERNEL.sum()
SLOPE_WEIGHTS = KERNEL * CENTRED_AGES / (KERNEL * CENTRED_AGES * CENTRED_AGES).sum()


class Llnr:
    """Reads `s` = `slope` (log price per bar) x sqrt(16) / `sigma`; defined from bar 65 on."""

    id = "llnr"
    name = "LLNR"
    version = 1
    note = "Slope of a locally weighted regression over 64 bars, in units of volatility."

    def start(self, assets: int) -> Carry:
        """Return the carry of assets that have not yet seen a bar."""
        return start_carry(assets, log_closes=make_undefined(assets, PERIOD + 1))

    def advance(self, carry: Carry, bars: Bar) -> Values:
        """Move the window by the bars; return `s`, `slope` (from bar 64) and `sigma`."""
        count_bars(carry, len(bars.close))
        log_closes = extend(carry["log_closes"], np.log(bars.close))
        # A slope does not depend on the level. Without the level, equal closes give exactly 0.
        slope = weigh(log_closes[:, 1:], SLOPE_WEIGHTS)
        sigma = sample_sd(log_closes[:, 1:] - log_closes[:, :-1], PERIOD)
        score = divide(slope * BANDWIDTH**0.5, sigma)
        return {"s": score, "slope": slope, "sigma": sigma}

    def step(self, carry: Carry, bars: Bar) -> tuple[Carry, Readings]:
        """Advance by the bars and latch `s`."""
        score = self.advance(carry, bars)["s"]
        return carry, withhold(carry, latch(carry["held"], score, ENTER, EXIT))


INDICATOR: Indicator = Llnr()
