"""LLNR: the slope of a one-sided local linear regression, in units of noise.

Fan & Gijbels (1996), *Local Polynomial Modelling and Its Applications*, with a Gaussian kernel
over past bars only.
"""

import numpy as np

from compute.indicators.contract import Bar, Carry, Floats, Readings, Values
from compute.indicators.windows import (
    count_bar,
    divide,
    get_floats,
    get_held_readings,
    latch,
    make_undefined,
    push,
    sample_sd,
    start_carry,
    withhold,
)

PERIOD = 64
BANDWIDTH = 16
ENTER, EXIT = 0.75, 0.25


def _compute_slope_weights() -> Floats:
    """Return the weights of `PERIOD` values, oldest first, whose weighted sum is the slope."""
    time = np.arange(-(PERIOD - 1.0), 1.0)
    kernel = np.exp(-0.5 * (time / BANDWIDTH) ** 2)
    centred = time - (kernel * time).sum() / kernel.sum()
    weights: Floats = kernel * centred / (kernel * centred * centred).sum()
    return weights


SLOPE_WEIGHTS = _compute_slope_weights()


class Llnr:
    """Reads `s` = `slope` (log price per bar) x sqrt(16) / `sigma`; defined from bar 65 on."""

    id = "llnr"
    name = "LLNR"
    version = 1
    note = "Slope of a locally weighted regression over 64 bars, in units of volatility."

    def start(self, assets: int) -> Carry:
        """Return the carry of assets that have not yet seen a bar."""
        return start_carry(assets, log_closes=make_undefined(assets, PERIOD + 1))

    def advance(self, carry: Carry, bar: Bar) -> Values:
        """Move the window by one bar; return `s`, `slope` (from bar 64) and `sigma`."""
        count_bar(carry)
        window = get_floats(carry, "log_closes")
        push(window, np.log(bar.close))
        # A slope does not depend on the level. Without the level, equal closes give exactly 0.
        below_newest = window[:, 1:] - window[:, -1:]
        slope: Floats = np.einsum("ij,j->i", below_newest, SLOPE_WEIGHTS)
        sigma = sample_sd(window[:, 1:] - window[:, :-1])
        score = divide(slope * BANDWIDTH**0.5, sigma)
        return {"s": score, "slope": slope, "sigma": sigma}

    def step(self, carry: Carry, bar: Bar) -> tuple[Carry, Readings]:
        """Advance by one bar and latch `s`."""
        score = self.advance(carry, bar)["s"]
        carry["held"] = latch(get_held_readings(carry), score, ENTER, EXIT)
        return carry, withhold(carry, get_held_readings(carry))
