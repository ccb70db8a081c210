"""Trend Oracle against pandas' `ewm(adjust=False)` and NumPy's SD."""

import numpy as np
import pandas as pd
import pytest

from compute.indicators.trend_oracle import TrendOracle
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

FIRST_DEFINED_BAR = 188
PINNED = (1, "6b6c9e2fac6664ca")


def rolling_sd(values: Array, period: int) -> Array:
    sds = np.full(len(values), np.nan)
    if len(values) >= period:
        windows = np.lib.stride_tricks.sliding_window_view(values, period)
        # Equal values have an SD of exactly 0 once the newest is subtracted.
        sds[period - 1 :] = np.std(windows - windows[:, -1:], axis=1, ddof=1)
    return sds


def expected_score(closes: Array) -> Array:
    # Only differences of logs count, so the first may be 0, which keeps more digits of the rest.
    x = pd.Series(np.log(closes / closes[0]))
    total = np.zeros(len(x))
    for fast, slow in ((8, 24), (16, 48), (32, 96)):
        gap = x.ewm(span=fast, adjust=False).mean() - x.ewm(span=slow, adjust=False).mean()
        y = divide(gap.to_numpy(), rolling_sd(x.to_numpy(), 63))
        z = divide(y, rolling_sd(y, 126))
        total += z * np.exp(-(z**2) / 4) / 0.89
    return total / 3


def test_trend_oracle_agrees_with_pandas(bar_set: BarSet):
    values = readings = 0
    for label, series, ours, reading in step_bar_set(TrendOracle(), bar_set):
        score = expected_score(series["close"])
        values += assert_values_agree(label, ours["s"], score)
        near = near_thresholds(score, 0.30, 0.10)
        readings += assert_readings_agree(
            label, reading, compute_plain_latch(score, 0.30, 0.10), near
        )
    print(f"trend_oracle: {values} scores and {readings} readings agree with pandas")
    assert values > bar_set.min_readings
    assert readings > bar_set.min_readings
