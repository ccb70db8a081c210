"""LLNR against weighted least squares: NumPy's `polyfit`, on samples statsmodels' `WLS`."""

import numpy as np
import pytest

from compute.indicators.llnr import Llnr
from tests.support.bar_sets import (
    Array,
    BarSet,
    assert_readings_agree,
    assert_values_agree,
    compute_plain_latch,
    divide,
    near_thresholds,
    step_bar_set,
)

pytestmark = pytest.mark.clause("indicators")

FIRST_DEFINED_BAR = 65
PINNED = (1, "45eef376905bf19d")

TIME = np.arange(-63.0, 1.0)
KERNEL = np.exp(-((TIME / 16) ** 2) / 2)


def windows_of(values: Array) -> Array:
    return np.lib.stride_tricks.sliding_window_view(values, 64)


def fitted_slopes(x: Array) -> Array:
    slopes = np.full(len(x), np.nan)
    slopes[63:] = np.polyfit(TIME, windows_of(x).T, 1, w=np.sqrt(KERNEL))[0]
    return slopes


def return_sds(x: Array) -> Array:
    sds = np.full(len(x), np.nan)
    sds[64:] = np.std(windows_of(np.diff(x)), axis=1, ddof=1)
    return sds


def test_llnr_agrees_with_polyfit(bar_set: BarSet):
    values = readings = 0
    for label, series, ours, reading in step_bar_set(Llnr(), bar_set):
        x = np.log(series["close"])
        slopes, sigmas = fitted_slopes(x), return_sds(x)
        score = divide(slopes * 4, sigmas)
        np.testing.assert_allclose(ours["sigma"], sigmas, rtol=1e-9, err_msg=label)
        np.testing.assert_allclose(ours["slope"], slopes, rtol=1e-9, atol=1e-13, err_msg=label)
        values += assert_values_agree(label, ours["s"], score)
        near = near_thresholds(score, 0.75, 0.25)
        readings += assert_readings_agree(
            label, reading, compute_plain_latch(score, 0.75, 0.25), near
        )
    print(f"llnr: {values} scores and {readings} readings agree with polyfit")
    assert values > bar_set.min_readings
    assert readings > bar_set.min_readings


def test_llnr_slopes_agree_with_statsmodels_wls(bar_set: BarSet):
    # Imported here, because it takes seconds, which every collection of the tests would spend.
    from statsmodels.regression.linear_model import WLS
    from statsmodels.tools import add_constant

    design = add_constant(TIME)
    every = 5 if bar_set.is_full else 90
    values = 0
    for label, series, ours, _ in step_bar_set(Llnr(), bar_set):
        x = np.log(series["close"])
        ends = range(64, len(x), every)
        fits = [WLS(x[end - 63 : end + 1], design, weights=KERNEL).fit() for end in ends]
        slopes = np.array([fit.params[1] for fit in fits])
        scores = divide(slopes * 4, return_sds(x)[64::every])
        values += assert_values_agree(label, ours["s"][64::every], scores)
    print(f"llnr: {values} scores agree with statsmodels WLS")
    assert values > bar_set.min_readings // every
