"""Bayesian Trend: the probability that a local linear trend rises, given all bars so far.

Harvey (1989), *Forecasting, Structural Time Series Models and the Kalman Filter*: level and slope
are the state, log closes the observations, and the noises are proportional to the recent variance.
"""

from typing import NamedTuple

import numpy as np

from compute.indicators.contract import Bar, Carry, Floats, Readings, Values
from compute.indicators.windows import (
    count_bar,
    get_floats,
    get_held_readings,
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


class Belief(NamedTuple):
    """The normal posterior of level and slope; every field has shape (N,)."""

    level: Floats
    slope: Floats
    level_variance: Floats
    covariance: Floats
    slope_variance: Floats


class BayesianTrend:
    """Reads `z` = slope / SD(slope): P(slope > 0) is Phi(z); defined from bar 2 on."""

    id = "bayesian_trend"
    name = "Bayesian Trend"
    version = 1
    note = "Probability of a rising trend in a Kalman filter; bullish from 80% until below 55%."

    def start(self, assets: int) -> Carry:
        """Return the carry of assets that have not yet seen a bar."""
        arrays = {key: make_undefined(assets) for key in Belief._fields}
        return start_carry(
            assets, log_close=make_undefined(assets), variance=make_undefined(assets), **arrays
        )

    def advance(self, carry: Carry, bar: Bar) -> Values:
        """Move the filter by one bar; return `z`, `level`, `slope` and `slope_variance`."""
        count = count_bar(carry)
        log_close = np.log(bar.close)
        variance = _update_variance(
            get_floats(carry, "variance"), log_close - get_floats(carry, "log_close")
        )
        belief = Belief(*(get_floats(carry, key) for key in Belief._fields))
        belief = _update(
            _predict(_open_variances(belief, variance, count == 2), variance), variance, log_close
        )
        first = count == 1
        belief = belief._replace(
            level=np.where(first, log_close, belief.level),
            slope=np.where(first, 0.0, belief.slope),
        )
        carry.update(belief._asdict(), log_close=log_close, variance=variance)
        return {
            "z": belief.slope / np.sqrt(belief.slope_variance),
            "level": belief.level,
            "slope": belief.slope,
            "slope_variance": belief.slope_variance,
        }

    def step(self, carry: Carry, bar: Bar) -> tuple[Carry, Readings]:
        """Advance by one bar and latch `z`."""
        score = self.advance(carry, bar)["z"]
        carry["held"] = latch(get_held_readings(carry), score, ENTER, EXIT)
        return carry, withhold(carry, get_held_readings(carry))


def _update_variance(previous: Floats, log_return: Floats) -> Floats:
    """Return the decayed variance after one log return; if it was NaN, it starts as the square."""
    # The floor keeps flat prices from ending in a division by 0.
    square = log_return * log_return
    moved = np.where(np.isnan(previous), square, DECAY * previous + (1.0 - DECAY) * square)
    return np.maximum(moved, MIN_VARIANCE)


def _open_variances(belief: Belief, variance: Floats, opens: Floats) -> Belief:
    """Return the belief with its initial variances for assets on their second bar."""
    # The first bar has no return, and so no variance to start from.
    return belief._replace(
        level_variance=np.where(opens, variance, belief.level_variance),
        covariance=np.where(opens, 0.0, belief.covariance),
        slope_variance=np.where(opens, variance, belief.slope_variance),
    )


def _predict(belief: Belief, variance: Floats) -> Belief:
    """Return the belief one bar ahead, before it sees that bar."""
    level_and_slope = belief.covariance + belief.slope_variance
    return Belief(
        belief.level + belief.slope,
        belief.slope,
        belief.level_variance + belief.covariance + level_and_slope + variance,
        level_and_slope,
        belief.slope_variance + SLOPE_NOISE * variance,
    )


def _update(belief: Belief, variance: Floats, log_close: Floats) -> Belief:
    """Return the belief after it has seen the bar's log close."""
    # One covariance for both off-diagonal entries: the matrix stays symmetric despite rounding.
    total = belief.level_variance + OBSERVATION_NOISE * variance
    level_gain = belief.level_variance / total
    slope_gain = belief.covariance / total
    surprise = log_close - belief.level
    return Belief(
        belief.level + level_gain * surprise,
        belief.slope + slope_gain * surprise,
        belief.level_variance * (1.0 - level_gain),
        belief.covariance * (1.0 - level_gain),
        belief.slope_variance - slope_gain * belief.covariance,
    )
