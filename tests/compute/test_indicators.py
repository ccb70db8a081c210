"""What holds for every indicator, whatever bars come, one by one or many at once."""

import hashlib
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from compute.alerts.rules import AlertEngine, BarWithReading
from compute.bars import MAX_PRICE, MIN_VALUE
from compute.indicator_engine import StepFunction
from compute.indicators.contract import NO_READING, WARMUP, Bar, Carry, Indicator
from compute.indicators.registry import INDICATORS
from schemas.vocabulary import INDICATOR_IDS, LOGGED_IDS
from tests.support.bar_sets import Array, advance_bar, step_bar

pytestmark = [pytest.mark.clause("indicators"), pytest.mark.sampled(3)]

every_indicator = pytest.mark.parametrize("indicator", INDICATORS, ids=lambda i: i.id)

# In the order of the specification: the bar on which every raw value is defined, the version, and
# a digest of the results. If the formula, a parameter or the carry was meant to change, raise
# `version`, then pin. Of Reversals, the first event also needs the bands of the bar before.
FACTS = {
    "trend_oracle": (188, 1, "6b6c9e2fac6664ca"),
    "bayesian_trend": (2, 1, "560475968bbdb2e1"),
    "reversals": (20, 1, "0216b17cabb61520"),
    "ceres": (41, 1, "66a177f63a087ed4"),
    "enzo": (16, 1, "59c1334807b942a0"),
    "llnr": (65, 1, "45eef376905bf19d"),
    "perpkit": (10, 1, "aa2f7abcec5a2ed1"),
}


class Generator:
    """Knuth's 64-bit linear congruential generator, one stream per asset: the same everywhere."""

    def __init__(self, assets: int) -> None:
        self.state = np.arange(1, assets + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)

    def below(self, bound: int) -> Array:
        self.state = self.state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        return ((self.state >> np.uint64(33)) % np.uint64(bound)).astype(np.int64)


@cache
def made_up_bars(assets: int, count: int) -> list[Bar]:
    """Return bars of whole ticks: drifts that change, every eighth asset calm, gaps in funding."""
    draw = Generator(assets)
    close = 1_000_000 + 1000 * draw.below(1000)
    drift, width = np.zeros_like(close), np.full_like(close, 100)
    is_calm = np.arange(assets) % 8 == 7
    bars = []
    for _ in range(count):
        turns = draw.below(40) == 0
        drift = np.where(turns, draw.below(61) - 30, drift)
        width = np.where(turns, 20 + draw.below(200), width)
        opened = close
        moved = close * (draw.below(1000) * width // 500 - width + drift) // 10_000
        close = close + np.where(is_calm, draw.below(31) - 15, moved)
        high = np.maximum(opened, close) + close * draw.below(60) // 10_000
        low = np.minimum(opened, close) - close * draw.below(60) // 10_000
        funding = np.where(draw.below(4) == 0, np.nan, (draw.below(2001) - 1000) / 1000)
        volume = draw.below(100_000)
        prices = (column / 100 for column in (opened, high, low, close))
        bars.append(Bar(*prices, volume.astype(np.float64), funding))
    return bars


def flat_bars(assets: int, count: int, price: float) -> list[Bar]:
    column = np.full(assets, price)
    return [Bar(column, column, column, column, column * 0.0, column * np.nan)] * count


def rows_of(bar: Bar, rows: Array) -> Bar:
    return Bar(*(column[rows] for column in bar))


def step_rows(indicator: Indicator, carry: Carry, bar: Bar, rows: Array) -> Array:
    """Step only the given rows, as the engine does: gather, step, scatter."""
    gathered = {key: array[rows] for key, array in carry.items()}
    moved, reading = step_bar(indicator, gathered, rows_of(bar, rows))
    for key, array in moved.items():
        carry[key][rows] = array
    return reading


def readings_over(indicator: Indicator, bars: list[Bar]) -> tuple[Carry, Array]:
    """Return the last carry and the readings, shape (bars, assets)."""
    carry, readings = indicator.start(len(bars[0].close)), []
    for bar in bars:
        carry, reading = step_bar(indicator, carry, bar)
        readings.append(reading)
    return carry, np.array(readings)


def assert_same_bytes(ours: dict[str, Array], theirs: dict[str, Array]) -> None:
    assert ours.keys() == theirs.keys()
    for key, array in theirs.items():
        assert ours[key].dtype == array.dtype, key
        assert ours[key].tobytes() == array.tobytes(), key


def layout(carry: Carry) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(key, array.dtype.str, array.shape[1:]) for key, array in sorted(carry.items())]


@pytest.mark.clause("1.10", "1.21")
@every_indicator
def test_the_first_reading_comes_on_bar_200(indicator):
    _, readings = readings_over(indicator, made_up_bars(5, 210))
    assert readings.dtype == np.int8
    assert (readings[:WARMUP] == NO_READING).all()
    assert np.isin(readings[WARMUP:], (-1, 0, 1)).all()


@every_indicator
def test_raw_values_are_defined_from_the_stated_bar_on_even_while_prices_stand_still(indicator):
    moving, first = made_up_bars(3, 260), FACTS[indicator.id][0]
    stuck = flat_bars(3, 260, float(moving[99].close[0]))
    carry = indicator.start(3)
    for count, bar in enumerate(moving[:200] + stuck + moving[200:], start=1):
        values = np.array(list(advance_bar(indicator, carry, bar).values()))
        assert values.shape[1:] == (3,)
        assert (np.isfinite(values).all(axis=0) == (count >= first)).all(), count


@every_indicator
@pytest.mark.parametrize(("assets", "count"), [(0, 3), (1, 1), (2, 2)])
def test_few_assets_and_bars_give_no_reading(indicator, assets, count):
    _, readings = readings_over(indicator, made_up_bars(assets, count))
    assert readings.tolist() == [[NO_READING] * assets] * count


@every_indicator
@pytest.mark.parametrize("price", [0.1, 1e-9, 104_729.37])
def test_flat_prices_read_neutral(indicator, price):
    carry, readings = readings_over(indicator, flat_bars(2, 300, price))
    assert (readings[WARMUP:] == 0).all()
    values = advance_bar(indicator, carry, flat_bars(2, 1, price)[0])
    assert all(np.isfinite(column).all() for column in values.values())


@pytest.mark.clause("3.1.1")
@every_indicator
def test_every_reading_occurs(indicator):
    _, readings = readings_over(indicator, made_up_bars(64, 600))
    assert set(np.unique(readings)) == {NO_READING, -1, 0, 1}


@every_indicator
def test_mixed_warmups_and_missing_bars_change_nothing(indicator):
    bars = made_up_bars(9, 420)
    draw = Generator(9)
    start = np.arange(9) * 23
    company = indicator.start(9)
    by_itself = [indicator.start(1) for _ in range(9)]
    for at, bar in enumerate(bars):
        rows = np.flatnonzero((start <= at) & (draw.below(10) > 0))
        reading = step_rows(indicator, company, bar, rows)
        for place, row in enumerate(rows):
            by_itself[row], single = step_bar(
                indicator, by_itself[row], rows_of(bar, rows[place : place + 1])
            )
            assert single[0] == reading[place], (at, row)
    for row, carry in enumerate(by_itself):
        assert_same_bytes({key: array[row : row + 1] for key, array in company.items()}, carry)


@every_indicator
def test_one_asset_steps_by_itself_as_among_251_bit_for_bit(indicator):
    bars = made_up_bars(251, 260)
    company, readings = readings_over(indicator, bars)
    for row in (0, 7, 128, 250):
        only = np.array([row])
        carry, by_itself = readings_over(indicator, [rows_of(bar, only) for bar in bars])
        assert np.array_equal(by_itself[:, 0], readings[:, row])
        assert_same_bytes({key: array[only] for key, array in company.items()}, carry)


@every_indicator
def test_a_step_changes_neither_its_bar_nor_an_earlier_reading(indicator):
    carry, kept = indicator.start(6), []
    for bar in made_up_bars.__wrapped__(6, 260):
        before = [column.tobytes() for column in bar]
        carry, reading = step_bar(indicator, carry, bar)
        assert [column.tobytes() for column in bar] == before
        kept.append((reading, reading.copy()))
    assert all(np.array_equal(reading, copy) for reading, copy in kept)


@every_indicator
@pytest.mark.sampled(1)
def test_the_results_of_an_indicator_change_only_with_its_version(indicator):
    carry, readings = readings_over(indicator, made_up_bars(64, 600))
    digest = hashlib.sha256(repr(layout(carry)).encode() + readings.tobytes()).hexdigest()[:16]
    assert (indicator.version, digest) == FACTS[indicator.id][1:]


@pytest.mark.clause("1.4")
def test_the_registry_lists_all_in_the_order_of_the_specification():
    assert tuple(indicator.id for indicator in INDICATORS) == INDICATOR_IDS == tuple(FACTS)


@pytest.mark.clause("1.18")
def test_the_universe_logs_all_but_perpkit():
    assert {*INDICATOR_IDS} - {*LOGGED_IDS} == {"perpkit"}


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


@pytest.mark.clause("steps")
@every_indicator
@settings(max_examples=12, deadline=None)
@given(seed=SEEDS, count=st.integers(1, 420), lengths=SPLITS)
def test_blocks_of_bars_give_the_values_the_readings_and_the_carry_of_single_bars(
    indicator: Any, seed: int, count: int, lengths: list[int]
):
    bars, found = make_bars(seed, count), []
    for edges in (list_edges(count, lengths), list_edges(count, [1])):
        readings, carry = step_in_blocks(indicator, bars, edges)
        moved, parts = indicator.start(len(MOVES)), []
        for start, end in edges:
            part = indicator.advance(moved, Bar(*(column[start:end] for column in bars)))
            parts.append({key: value.copy() for key, value in part.items()})
        values = {f"{k} value": np.concatenate([part[k] for part in parts]) for k in parts[0]}
        found.append({**values, **carry, "reading": readings})
    assert_same_bytes(found[0], found[1])


@pytest.mark.clause("steps")
@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, count=st.integers(1, 200), lengths=SPLITS)
@pytest.mark.prove
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
