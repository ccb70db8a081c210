"""Trend Oracle: the mean of three volatility-normalised crossovers of exponential averages.

Baz, Granger, Harvey, Le Roux, Rattray (2015), *Dissecting Investment Strategies in the Cross
Section and Time Series*. The response falls again if a trend is extreme.
"""

import numpy as np

from compute.indicators.contract import Bar, Carry, Floats, Readings, Values
from compute.indicators.windows import (
    count_bar,
    divide,
    ema,
    get_floats,
    get_held_readings,
    latch,
    make_undefined,
    make_undefined_across,
    push,
    sample_sd,
    start_carry,
    withhold,
)

FAST, SLOW = (8, 16, 32), (24, 48, 96)
PERIODS = np.array(FAST + SLOW, dtype=np.float64)
SPEEDS = len(FAST)
PRICE_PERIOD = 63
CROSSOVER_PERIOD = 126
RESPONSE_PEAK = 0.89
ENTER, EXIT = 0.30, 0.10


class TrendOracle:
    """Reads the mean response `s` of the three crossovers; `s` is defined from bar 188 on."""

    id = "trend_oracle"
    name = "Trend Oracle"
    version = 1
    note = "Mean of three normalised EMA spreads; overstretched trends stop counting."

    def start(self, assets: int) -> Carry:
        """Return the carry of assets that have not yet seen a bar."""
        return start_carry(
            assets,
            averages=make_undefined_across(assets, 2 * SPEEDS),
            log_closes=make_undefined(assets, PRICE_PERIOD),
            crossovers=make_undefined(assets, SPEEDS, CROSSOVER_PERIOD),
        )

    def advance(self, carry: Carry, bar: Bar) -> Values:
        """Move the averages and windows by one bar; return `s`."""
        count_bar(carry)
        log_close = np.log(bar.close)
        averages = ema(get_floats(carry, "averages"), log_close[:, np.newaxis], PERIODS)
        carry["averages"] = averages

        push(get_floats(carry, "log_closes"), log_close)
        noise = sample_sd(get_floats(carry, "log_closes"))
        gaps = averages[:, :SPEEDS] - averages[:, SPEEDS:]
        scaled = divide(gaps, noise[:, np.newaxis])
        # Three windows of 126 values are the costliest part of a step (0.1 of 0.7 ms for 251
        # assets). Running sums would be O(1), but they round in another order: that needs a new
        # version, and so a rebuild of every stored carry.
        push(get_floats(carry, "crossovers"), scaled)
        return {"s": _compute_response(divide(scaled, sample_sd(get_floats(carry, "crossovers"))))}

    def step(self, carry: Carry, bar: Bar) -> tuple[Carry, Readings]:
        """Advance by one bar and latch `s`."""
        score = self.advance(carry, bar)["s"]
        carry["held"] = latch(get_held_readings(carry), score, ENTER, EXIT)
        return carry, withhold(carry, get_held_readings(carry))


def _compute_response(z: Floats) -> Floats:
    """Return the mean over the speeds of z exp(-z^2/4) / 0.89, which peaks at about 1."""
    responses = z * np.exp(z * z * -0.25) / RESPONSE_PEAK
    mean: Floats = (responses[:, 0] + responses[:, 1] + responses[:, 2]) / SPEEDS
    return mean
