"""Trend Oracle: the mean of three volatility-normalised crossovers of exponential averages.

Baz, Granger, Harvey, Le Roux, Rattray (2015), *Dissecting Investment Strategies in the Cross
Section and Time Series*. The response falls again if a trend is extreme.
"""

import numpy as np

from compute.indicators.contract import Bar, Carry, Indicator, Readings, Values
from compute.indicators.windows import (
    count_bars,
    divide,
    ema,
    extend,
    latch,
    make_undefined,
    make_undefined_across,
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

    def advance(self, carry: Carry, bars: Bar) -> Values:
        """Move the averages and windows by the bars; return `s`."""
        count_bars(carry, len(bars.close))
        log_close = np.log(bars.close)
        previous = carry["averages"].T
        averages = ema(previous, log_close, PERIODS)
        previous[...] = averages[-1]

        noise = sample_sd(extend(carry["log_closes"], log_close), PRICE_PERIOD)
        gaps = averages[:, :SPEEDS] - averages[:, SPEEDS:]
        scaled = divide(gaps, noise[:, np.newaxis])
        # Three windows of 126 values are the costliest part of a step. Running sums would be O(1),
        # but they round in another order: that needs a new version, and so a rebuild of every
        # stored carry.
        crossovers = extend(carry["crossovers"], scaled)
        z = divide(scaled, sample_sd(crossovers, CROSSOVER_PERIOD))
        # The response of each speed peaks at about 1.
        responses = z * np.exp(z * z * -0.25) / RESPONSE_PEAK
        return {"s": (responses[:, 0] + responses[:, 1] + responses[:, 2]) / SPEEDS}

    def step(self, carry: Carry, bars: Bar) -> tuple[Carry, Readings]:
        """Advance by the bars and latch `s`."""
        score = self.advance(carry, bars)["s"]
        return carry, withhold(carry, latch(carry["held"], score, ENTER, EXIT))


INDICATOR: Indicator = TrendOracle()
