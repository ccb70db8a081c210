"""Bayesian Trend against statsmodels' Kalman filter and SciPy's normal distribution."""

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from compute.indicators.bayesian_trend import ENTER, EXIT, BayesianTrend
from tests.support.bar_sets import (
    Array,
    BarSet,
    assert_readings_agree,
    assert_values_agree,
    compute_plain_latch,
    near_thresholds,
    step_bar_set,
)

pytestmark = pytest.mark.clause("indicators")

FIRST_DEFINED_BAR = 2
PINNED = (1, "560475968bbdb2e1")

TRANSITION = np.array([[1.0, 1.0], [0.0, 1.0]])
NOISE = np.diag([1.0, 0.002])


def variances(x: Array) -> Array:
    """Return v of the bars from the second on."""
    returns = np.diff(x)
    v = [max(returns[0] ** 2, 1e-10)]
    for r in returns[1:]:
        v.append(max(0.97 * v[-1] + 0.03 * r**2, 1e-10))
    return np.array(v)


def filtered(x: Array) -> tuple[Array, Array, Array]:
    """Return level, slope and the slope's variance, NaN variance on the first bar."""
    # Imported here, because it takes seconds, which every collection of the tests would spend.
    from statsmodels.tsa.statespace.kalman_filter import KalmanFilter

    v = variances(x)
    model = KalmanFilter(k_endog=1, k_states=2, tolerance=0)
    model.bind(x[1:].copy())
    model["design"] = np.array([[1.0, 0.0]])
    model["transition"] = TRANSITION
    model["selection"] = np.eye(2)
    model["obs_cov"] = (0.25 * v).reshape(1, 1, -1)
    # statsmodels adds a bar's state noise after it: on bar t, the noise of bar t + 1.
    model["state_cov"] = NOISE[:, :, np.newaxis] * np.append(v[1:], v[-1])
    predicted = TRANSITION @ np.diag([v[0], v[0]]) @ TRANSITION.T + NOISE * v[0]
    model.initialize_known(TRANSITION @ np.array([x[0], 0.0]), predicted)
    result = model.filter()
    level, slope = result.filtered_state
    spread = result.filtered_state_cov[1, 1]
    return np.append(x[0], level), np.append(0.0, slope), np.append(np.nan, spread)


def test_bayesian_trend_agrees_with_statsmodels(bar_set: BarSet):
    values = readings = 0
    for label, series, ours, reading in step_bar_set(BayesianTrend(), bar_set):
        level, slope, slope_variance = filtered(np.log(series["close"]))
        z = slope / np.sqrt(slope_variance)
        score = 2 * ndtr(z) - 1
        np.testing.assert_allclose(ours["level"], level, rtol=1e-12, err_msg=label)
        np.testing.assert_allclose(ours["slope"], slope, rtol=1e-9, atol=1e-13, err_msg=label)
        np.testing.assert_allclose(ours["slope_variance"], slope_variance, rtol=1e-9, err_msg=label)
        assert_values_agree(label, ours["z"], z)
        values += assert_values_agree(label, 2 * ndtr(ours["z"]) - 1, score)
        near = near_thresholds(score, 0.60, 0.10)
        readings += assert_readings_agree(
            label, reading, compute_plain_latch(score, 0.60, 0.10), near
        )
    print(f"bayesian_trend: {values} scores and {readings} readings agree with statsmodels")
    assert values > bar_set.min_bars
    assert readings > bar_set.min_readings


def test_the_latch_thresholds_are_the_normal_quantiles_of_the_stated_probabilities():
    assert pytest.approx(ndtri(0.80), rel=1e-15) == ENTER
    assert pytest.approx(ndtri(0.55), rel=1e-14) == EXIT
