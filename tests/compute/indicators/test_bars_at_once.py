"""Steps of many bars at once against steps of one bar at a time: equal, bit for bit."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compute.alerts.engines import AlertEngine, BarWithReading
from compute.bars import MAX_PRICE, MIN_VALUE
from compute.engine import StepFunction
from compute.indicators.contract import NO_READING, Bar, Carry
from compute.indicators.registry import INDICATORS
from tests.support.bar_sets import Array

pytestmark = pytest.mark.clause("indicators", "steps")

every_indicator = pytest.mark.parametrize("indicator", INDICATORS, ids=lambda i: i.id)

# One asset each: how far a log price moves on a bar, and how often it moves at all.
MOVES = np.array([0.01, 0.0003, 0.01, 0.05, 3.0, 0.0, 30.0, 1e-14])
MOVING = np.array([1.0, 1.0, 0.3, 0.02, 0.5, 0.0, 1.0, 0.5])
LOWEST, HIGHEST = np.log(MIN_VALUE), np.log(MAX_PRICE)

# The lengths of the blocks; the last one repeats until the bars end.
SPLITS = st.lists(st.integers(1, 130), min_size=1, max_size=6)
SEEDS = st.integers(0, 2**32 - 1)


def make_bars(seed: int, count: int) -> Bar:
    """Return bars of shape (count, assets): walks, plateaus, jumps, prices at both bounds."""
    rng = np.random.default_rng(seed)
    shape = (count, len(MOVES))
    moves = MOVES * rng.standard_normal(shape) * (rng.random(shape) < MOVING)
    start = rng.uniform(LOWEST, HIGHEST, len(MOVES))
    close = np.exp(np.clip(start + np.cumsum(moves, axis=0), LOWEST, HIGHEST))
    opened = np.vstack([close[:1], close[:-1]])
    # Many bars close at their high or low.
    reach = np.exp(np.abs(rng.standard_normal((2, *shape)) * MOVES) * (rng.random(shape) < 0.6))
    high = np.minimum(np.maximum(opened, close) * reach[0], MAX_PRICE)
    low = np.maximum(np.minimum(opened, close) / reach[1], MIN_VALUE)
    funding = np.where(rng.random(shape) < 0.3, np.nan, rng.standard_normal(shape))
    return Bar(opened, high, low, close, np.ones(shape), funding)


def list_edges(count: int, lengths: list[int]) -> list[tuple[int, int]]:
    """Return the first bar of each block, and the one after its last."""
    edges, end = [], 0
    while end < count:
        start, end = end, min(end + lengths[min(len(edges), len(lengths) - 1)], count)
        edges.append((start, end))
    return edges


def step_in_blocks(
    function: StepFunction[Any], bars: Any, edges: list[tuple[int, int]]
) -> tuple[Array, Carry]:
    """Step blocks of bars; return the readings and the last carry."""
    carry, readings = function.start(bars.close.shape[1]), []
    for start, end in edges:
        carry, reading = function.step(carry, type(bars)(*(c[start:end] for c in bars)))
        readings.append(reading)
    return np.concatenate(readings), carry


def assert_same_bytes(ours: dict[str, Array], theirs: dict[str, Array]) -> None:
    assert ours.keys() == theirs.keys()
    for key, array in theirs.items():
        assert ours[key].dtype == array.dtype, key
        assert ours[key].tobytes() == array.tobytes(), key


@every_indicator
@settings(max_examples=12, deadline=None)
@given(seed=SEEDS, count=st.integers(1, 420), lengths=SPLITS)
def test_blocks_of_bars_give_the_readings_and_the_carry_of_single_bars(
    indicator: Any, seed: int, count: int, lengths: list[int]
):
    bars = make_bars(seed, count)
    readings, carry = step_in_blocks(indicator, bars, list_edges(count, lengths))
    by_bar, expected = step_in_blocks(indicator, bars, list_edges(count, [1]))
    assert readings.tobytes() == by_bar.tobytes()
    assert_same_bytes(carry, expected)


@every_indicator
@settings(max_examples=12, deadline=None)
@given(seed=SEEDS, count=st.integers(1, 420), lengths=SPLITS)
def test_blocks_of_bars_give_the_raw_values_of_single_bars(
    indicator: Any, seed: int, count: int, lengths: list[int]
):
    bars, found = make_bars(seed, count), []
    for edges in (list_edges(count, lengths), list_edges(count, [1])):
        carry, parts = indicator.start(len(MOVES)), []
        for start, end in edges:
            part = indicator.advance(carry, Bar(*(column[start:end] for column in bars)))
            parts.append({key: value.copy() for key, value in part.items()})
        found.append({key: np.concatenate([part[key] for part in parts]) for key in parts[0]})
    assert_same_bytes(found[0], found[1])


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, count=st.integers(1, 200), lengths=SPLITS)
def test_blocks_of_bars_give_the_actions_and_the_carry_of_single_bars(
    seed: int, count: int, lengths: list[int]
):
    bars, rng = make_bars(seed, count), np.random.default_rng(seed)
    held = rng.choice([NO_READING, -1, 0, 1], size=(count // 5 + 1, len(MOVES)))
    readings = np.repeat(held, 5, axis=0)[:count].astype(np.int8)
    columns = BarWithReading(bars.high, bars.low, bars.close, readings)
    actions, carry = step_in_blocks(AlertEngine(), columns, list_edges(count, lengths))
    by_bar, expected = step_in_blocks(AlertEngine(), columns, list_edges(count, [1]))
    assert actions.tobytes() == by_bar.tobytes()
    assert_same_bytes(carry, expected)
