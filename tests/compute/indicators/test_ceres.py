"""Ceres against TA-Lib's `MAX` and `MIN`."""

import numpy as np
import pytest
import talib

from compute.indicators.ceres import Ceres
from compute.indicators.contract import NO_READING, Bar
from tests.support.bar_sets import (
    Array,
    BarSet,
    Series,
    assert_readings_agree,
    assert_values_agree,
    step_bar_set,
)
from tests.support.one_bar import step_bar

pytestmark = pytest.mark.clause("indicators")

FIRST_DEFINED_BAR = 41
PINNED = (1, "66a177f63a087ed4")


def expected_channels(series: Series) -> dict[str, Array]:
    def over_previous(extreme, prices, period):
        return np.r_[np.nan, extreme(prices, period)[:-1]]

    return {
        "highest40": over_previous(talib.MAX, series["high"], 40),
        "lowest40": over_previous(talib.MIN, series["low"], 40),
        "highest20": over_previous(talib.MAX, series["high"], 20),
        "lowest20": over_previous(talib.MIN, series["low"], 20),
    }


def expected_readings(close: Array, channels: dict[str, Array]) -> Array:
    side, readings = 0, []
    columns = (channels[key] for key in ("highest40", "lowest40", "highest20", "lowest20"))
    for price, highest40, lowest40, highest20, lowest20 in zip(close, *columns, strict=True):
        if price > highest40:
            side = 1
        elif price < lowest40:
            side = -1
        elif (side == 1 and price < lowest20) or (side == -1 and price > highest20):
            side = 0
        readings.append(side)
    return np.array(readings)


def readings_over(close: Array, span: Array) -> list[int]:
    carry, readings = Ceres().start(1), []
    for price, half in zip(close, span, strict=True):
        one, half = np.array([price]), np.array([half])
        bar = Bar(one, one + half, one - half, one, np.ones(1), np.array([np.nan]))
        carry, reading = step_bar(Ceres(), carry, bar)
        readings.append(int(reading[0]))
    assert readings[:199] == [NO_READING] * 199
    return readings[199:]


def test_channels_and_readings_agree_with_ta_lib(bar_set: BarSet):
    values = readings = 0
    for label, series, ours, reading in step_bar_set(Ceres(), bar_set):
        channels = expected_channels(series)
        for name, theirs in channels.items():
            values += assert_values_agree(f"{label} {name}", ours[name], theirs)
        theirs = expected_readings(series["close"], channels)
        # Extremes are not rounded: no close is near a threshold without being on its side.
        never = np.zeros(len(theirs), dtype=bool)
        readings += assert_readings_agree(label, reading, theirs, never)
    print(f"ceres: {values} channel values and {readings} readings agree with TA-Lib")
    assert values > 4 * bar_set.min_bars
    assert readings > bar_set.min_readings


@pytest.mark.parametrize("side", [1, -1])
def test_a_breakout_is_strict_and_is_left_through_the_shorter_channel(side):
    # 199 bars of 99 to 101; a close on the edge, one beyond it; 20 bars of 109 to 111, so that
    # the shorter channel ends at 109 and the longer one still at 99; again on and beyond.
    offsets = [0.0] * 199 + [1.0, 3.0] + [10.0] * 20 + [9.0, 8.5, 9.0]
    spans = [1.0] * 199 + [0.0, 0.0] + [1.0] * 20 + [0.0, 0.0, 0.0]
    readings = readings_over(100 + side * np.array(offsets), np.array(spans))
    assert readings == [0, side] + [side] * 20 + [side, 0, 0]


def test_a_fall_through_both_channels_turns_the_side_at_once():
    close = np.array([100.0] * 199 + [101.0, 99.0, 102.0])
    assert readings_over(close, np.zeros(202)) == [1, -1, 1]


def test_a_side_taken_during_the_warmup_is_the_first_reading():
    close = np.array([100.0] * 40 + [101.0] * 160)
    assert readings_over(close, np.zeros(200)) == [1]
