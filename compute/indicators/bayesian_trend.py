"""Bayesian Trend: the probability that a local linear trend rises, given all bars so far.

Harvey (1989), *Forecasting, Structural Time Series Models and the Kalman Filter*: level and slope
are the state, log closes the observations, and the noises are proportional to the recent variance.
"""

from typing import NamedTuple

import numpy as np

from compute.indicators.contract import Bar, Carry, Flags, Floats, Indicator, Readings, Values
from compute.indicators.windows import (
    count_bars,
    get_floats,
    get_held_readings,
    lag,
    latch,
    make_undefined,
    mark_bars,
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

    def advance(self, carry: Carry, bars: Bar) -> Values:
        """Move the filter by the bars; return `z`, `level`, `slope` and `slope_variance`."""
        counts = count_bars(carry, len(bars.close))
        log_close = np.log(bars.close)
        previous = get_floats(carry, "log_close")
        variance = _move_variance(
            get_floats(carry, "variance"), log_close - lag(previous, log_close)
        )
        previous[...] = log_close[-1]
        level, slope, slope_variance = np.empty((3, *log_close.shape))
        belief = Belief(*(get_floats(carry, key) for key in Belief._fields))
        starts = mark_bars(counts <= 2)
        for bar, is_start in enumerate(starts):
            if is_start:
                belief = _open_variances(belief, variance[bar], counts[bar] == 2)
            belief = _update(_predict(belief, variance[bar]), variance[bar], log_close[bar])
            if is_start:
                belief = _open_level(belief, log_close[bar], counts[bar] == 1)
            level[bar], slope[bar] = belief.level, belief.slope
            slope_variance[bar] = belief.slope_variance
        carry.update(belief._asdict())
        z = slope / np.sqrt(slope_variance)
        return {"z": z, "level": level, "slope": slope, "slope_variance": slope_variance}

    def step(self, carry: Carry, bars: Bar) -> tuple[Carry, Readings]:
        """Advance by the bars and latch `z`."""
        score = self.advance(carry, bars)["z"]
        return carry, withhold(carry, latch(get_held_readings(carry), score, ENTER, EXIT))


def _move_variance(previous: Floats, log_returns: Floats) -> Floats:
    """Return the decayed variance after each log return, and keep the last one in `previous`.

    One that was NaN starts as the square of the return.
    """
    squares = log_returns * log_returns
    variances, weighted = np.empty_like(squares), (1.0 - DECAY) * squares
    starts = bool(np.isnan(previous).any() or np.isnan(squares).any())
    last = previous
    for square, weight, moved in zip(squares, weighted, variances, strict=True):
        np.multiply(DECAY, last, out=moved)
        np.add(moved, weight, out=moved)
        if starts:
            np.copyto(moved, square, where=np.isnan(last))
        # The floor keeps flat prices from ending in a division by 0.
        last = np.maximum(moved, MIN_VARIANCE, out=moved)
    previous[...] = last
    return variances


def _open_variances(belief: Belief, variance: Floats, opens: Flags) -> Belief:
    """Return the belief with its initial variances for assets on their second bar."""
    # The first bar has no return, and so no variance to start from.
    return belief._replace(
        level_variance=np.where(opens, variance, belief.level_variance),
        covariance=np.where(opens, 0.0, belief.covariance),
        slope_variance=np.where(opens, variance, belief.slope_variance),
    )


def _open_level(belief: Belief, log_close: Floats, opens: Flags) -> Belief:
    """Return the belief with its initial level and slope for assets on their first bar."""
    return belief._replace(
        level=np.where(opens, log_close, belief.level), slope=np.where(opens, 0.0, belief.slope)
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


INDICATOR: Indicator = BayesianTrend()
