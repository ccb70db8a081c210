"""Margins are the values that other software computes, next to the documented thresholds."""

import numpy as np
import pytest
import talib

from compute.bars import NO_FUNDING, RawBar, Series
from compute.indicators.registry import INDICATORS
from compute.own_bars.margins import Margin, find_margin
from tests.support.small_market import DENSE, list_opens, make_bars

pytestmark = pytest.mark.clause("verify")

BY_ID = {indicator.id: indicator for indicator in INDICATORS}
COUNT = 600
BARS = Series.from_rows(
    [RawBar(*row) for row in make_bars("BTC", list_opens(DENSE, DENSE + COUNT * 3600))], 3600
)


def find_last(indicator: str, index: int = COUNT - 1) -> Margin:
    margin = find_margin(BY_ID[indicator], BARS, NO_FUNDING, index)
    assert margin is not None
    return margin


@pytest.mark.parametrize(
    ("indicator", "thresholds"),
    [
        ("trend_oracle", {0.30, 0.10}),
        ("bayesian_trend", {0.8416212335729143, 0.12566134685507402}),
        ("enzo", {0.50, 0.10}),
        ("llnr", {0.75, 0.25}),
    ],
)
def test_a_score_is_held_against_the_nearest_threshold_of_its_latch(indicator, thresholds):
    margin = find_last(indicator)
    assert abs(margin.threshold) in thresholds
    assert all(
        margin.share <= abs(margin.value - sign * one) / one
        for one in thresholds
        for sign in (1, -1)
    )


def test_the_score_of_enzo_is_that_of_ta_lib():
    kama, ranges = talib.KAMA(BARS.close, 10), talib.ATR(BARS.high, BARS.low, BARS.close, 14)
    assert find_last("enzo").value == pytest.approx((kama[-1] - kama[-6]) / ranges[-1], abs=1e-6)


def test_the_bands_and_the_rsi_of_reversals_are_those_of_ta_lib():
    margin = find_last("reversals")
    upper, _, lower = talib.BBANDS(BARS.close, 20, 2, 2)
    rsi = talib.RSI(BARS.close, 14)[-1]
    candidates = [
        (rsi, 30.0),
        (rsi, 70.0),
        (BARS.close[-1], upper[-1]),
        (BARS.close[-1], lower[-1]),
    ]
    nearest = min(candidates, key=lambda pair: abs(pair[0] - pair[1]) / pair[1])
    assert (margin.value, margin.threshold) == pytest.approx(nearest)


def test_the_channels_of_ceres_exclude_the_bar_itself():
    margin = find_last("ceres")
    lines = [
        one
        for period in (20, 40)
        for one in (BARS.high[-period - 1 : -1].max(), BARS.low[-period - 1 : -1].min())
    ]
    close = BARS.close[-1]
    assert (margin.value, margin.threshold) == (close, min(lines, key=lambda p: abs(close / p - 1)))


def test_perpkit_is_held_against_the_distance_from_its_stop():
    margin = find_last("perpkit")
    assert (margin.name, margin.threshold) == ("the distance from the stop line in ATRs", 0.5)
    assert margin.value >= 0


def test_a_value_that_is_not_defined_yet_has_no_margin():
    assert find_margin(BY_ID["trend_oracle"], BARS, NO_FUNDING, 10) is None


def test_a_margin_says_how_far_the_value_is_from_the_threshold():
    assert str(Margin("s", 0.2985, 0.3)) == "s is 0.2985, 0.50% from 0.3"
    assert Margin("s", 0.2985, 0.3).is_near
    assert not Margin("s", 0.29, 0.3).is_near
    assert np.isclose(Margin("s", -0.2, -0.1).share, 1)
