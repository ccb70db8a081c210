"""The engine gives the same results for any blocks, and stores carries in one form."""

import numpy as np
import pytest

from compute import engine as engine_module
from compute.engine import Engine
from compute.indicators.ceres import Ceres
from compute.indicators.contract import Bar
from compute.indicators.registry import INDICATORS
from tests.compute.test_indicators import made_up_bars
from tests.support.bar_sets import Array

pytestmark = pytest.mark.clause("steps")

SEQUENCES = 11


def stepped(
    block: int, turns: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[Array, list[list[bytes]]]:
    """Return readings and carries after steps of one and several bars, in blocks of some size."""
    monkeypatch.setattr(engine_module, "BLOCK_ROWS", block)
    monkeypatch.setattr(engine_module, "BLOCK_TURNS", turns)
    engine: Engine[Bar] = Engine(INDICATORS, SEQUENCES)
    market = [np.stack(column) for column in zip(*made_up_bars(SEQUENCES, 230), strict=True)]
    rows = np.array([7, 3, 4, 5, 10, 0, 1, 2, 9])
    readings, at = [], 0
    for counts in ([199] * 9, [1] * 9, [3, 1, 7, 2, 2, 5, 1, 1, 4], [1] * 9):
        stretches = [(row, at, at + count) for row, count in zip(rows, counts, strict=True)]
        columns = ([column[a:b, row] for row, a, b in stretches] for column in market)
        bar = Bar(*map(np.concatenate, columns))
        readings.append(engine.step(rows, np.array(counts), bar))
        at += max(counts)
    carries = [engine.dump_carries(column, rows) for column in range(len(INDICATORS))]
    return np.concatenate(readings), carries


@pytest.mark.prove
def test_the_size_of_blocks_changes_no_reading_and_no_carry(monkeypatch: pytest.MonkeyPatch):
    whole, held = stepped(1000, 1, monkeypatch)
    for block, turns in ((4, 1), (4, 50), (1000, 2), (1000, 1000)):
        readings, carries = stepped(block, turns, monkeypatch)
        assert np.array_equal(readings, whole)
        assert carries == held


def test_a_stored_carry_lies_by_name_and_each_window_from_old_to_new():
    engine: Engine[Bar] = Engine([Ceres()], 3)
    bars = made_up_bars(3, 40)
    for bar in bars:
        engine.step(np.arange(3), np.ones(3, dtype=np.int64), bar)
    for row, data in enumerate(engine.dump_carries(0, np.arange(3))):
        highs = np.array([bar.high[row] for bar in bars])
        lows = np.array([bar.low[row] for bar in bars])
        assert data == b"".join([np.int64(40), np.int8(0), highs, lows])
        assert data == engine.dump_carry(0, row)
