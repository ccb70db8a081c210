"""Bayesian Trend: the probability that a local linear trend rises, given all bars so far.

Harvey (1989), *Forecasting, Structural Time Series Models and the Kalman Filter*: level and slope
are the state, log closes the observations, and the noises are proportional to the recent variance.
"""

import numpy as np

from compute.indicators.contract import Bar, Carry, Indicator, Readings, Values
from compute.indicators.windows import (
    count_bars,
    lag,
    latch,
    make_undefined,
    start_carry,
    withhold,
)

DECAY = 0.97
MIN_VARIANCE = 1e-10
SLOPE_NOISE = 0.002
OBSERVATION_NOISE = 0.25
# The normal quantiles of p = 0.80 and 0.55, that is of 2p - 1 = 0.60 and 0.10.
ENTER, EXIT = 0.8416212335729143, 0.12566134685507402


class BayesianTrend:
    """Reads `z` = slope / SD(slope): P(slope > 0) is Phi(z); defined from bar 2 on."""

    id = "bayesian_trend"
    name = "Bayesian Trend"
    version = 1
    note = "Probability of a rising trend in a Kalman filter; bullish from 80% until below 55%."

    def start(self, assets: int) -> Carry:
        """Return the carry of assets that have not yet seen a bar.

        The belief is the normal posterior of level and slope: two means, two variances and a
        covariance. `variance` is that of the returns.
        """
        belief = "level", "slope", "level_variance", "covariance", "slope_variance"
        names = "log_close", "variance", *belief
        return start_carry(assets, **{name: make_undefined(assets) for name in names})

    def advance(self, carry: Carry, bars: Bar) -> Values:
        """Move the filter by the bars; return `z`, `level`, `slope` and `slope_variance`."""
        counts = count_bars(carry, len(bars.close))
        log_closes = np.log(bars.close)
        log_returns = log_closes - lag(carry["log_close"], log_closes)
        carry["log_close"][...] = log_closes[-1]
        squares = log_returns * log_returns
        weighted = (1.0 - DECAY) * squares
        variance, level, slope = carry["variance"], carry["level"], carry["slope"]
        p, q, r = carry["level_variance"], carry["covariance"], carry["slope_variance"]
        levels, slopes, slope_variances = np.empty((3, *log_closes.shape))
        starts = np.any(counts <= 2, axis=1)
        for bar, (log_close, is_start) in enumerate(zip(log_closes, starts, strict=True)):
            variance = DECAY * variance + weighted[bar]
            if is_start:
                # The first bar has no return, and so no variance: the second one's square opens it.
                is_second = counts[bar] == 2
                variance = np.where(is_second, squares[bar], variance)
            # The floor keeps flat prices from ending in a division by 0.
            variance = np.maximum(variance, MIN_VARIANCE)
            if is_start:
                p, r = np.where(is_second, variance, p), np.where(is_second, variance, r)
                q = np.where(is_second, 0.0, q)
            # Predict the bar, before it is seen.
            level = level + slope
            joint = q + r
            p, q, r = p + q + joint + variance, joint, r + SLOPE_NOISE * variance
            # Update by its log close. One covariance stands for both off-diagonal entries, so the
            # matrix stays symmetric despite rounding.
            total = p + OBSERVATION_NOISE * variance
            level_gain, slope_gain = p / total, q / total
            surprise = log_close - level
            level, slope = level + level_gain * surprise, slope + slope_gain * surprise
            p, q, r = p * (1.0 - level_gain), q * (1.0 - level_gain), r - slope_gain * q
            if is_start:
                is_first = counts[bar] == 1
                level, slope = np.where(is_first, log_close, level), np.where(is_first, 0.0, slope)
            levels[bar], slopes[bar], slope_variances[bar] = level, slope, r
        carry["variance"], carry["level"], carry["slope"] = variance, level, slope
        carry["level_variance"], carry["covariance"], carry["slope_variance"] = p, q, r
        z = slopes / np.sqrt(slope_variances)
        return {"z": z, "level": levels, "slope": slopes, "slope_variance": slope_variances}

    def step(self, carry: Carry, bars: Bar) -> tuple[Carry, Readings]:
        """Advance by the bars and latch `z`."""
        score = self.advance(carry, bars)["z"]
        return carry, withhold(carry, latch(carry["held"], score, ENTER, EXIT))


INDICATOR: Indicator = BayesianTrend()
