"""The guarantees of the engine state for carries, epochs and revisions.

The engine gives the same results for any blocks, and stores carries in one form.
"""

from collections.abc import Iterable

import numpy as np
import pytest

from compute import indicator_engine as engine_module
from compute.alerts.alert_pipeline import AlertPipeline
from compute.bars import HOUR_S, NO_FUNDING, Series
from compute.engine_state import EngineState
from compute.indicator_engine import Engine
from compute.indicators.ceres import Ceres
from compute.indicators.contract import Bar, Carry, Indicator
from compute.indicators.registry import INDICATORS
from compute.rebuild import rebuild_series
from compute.stepper import BarBuffer, Cell, Stepper
from compute.universe import Universe
from schemas.vocabulary import ENGINE_KEYS, LEGACY_KEYS
from store.market_rows import CarryRow, EpochRow
from tests.compute.test_indicators import made_up_bars
from tests.doubles.scripted_source import (
    ALTERNATING,
    AlternatingIndicator,
    list_hours,
    make_universe,
)
from tests.support.bar_sets import Array

pytestmark = pytest.mark.clause("steps")

HOURS = list_hours("01:00", "08:00")
INDICATOR_CELL = Cell("BTC", "1h", "enzo")
ENGINE_CELL = Cell("BTC", "4h", ENGINE_KEYS["enzo"])


class NextIndicator(AlternatingIndicator):
    version = 2


class WiderIndicator(AlternatingIndicator):
    def start(self, assets: int) -> Carry:
        return {"bars": np.zeros((assets, 2), dtype=np.int64)}


def make_state(
    carries: Iterable[CarryRow] = (), indicators: tuple[Indicator, ...] = ALTERNATING
) -> EngineState:
    """Return the state of BTC, which alert engines follow, and of ETH, which they do not."""
    plain = make_universe({"BTC": "24x7", "ETH": "24x7"})
    btc, eth = plain.assets
    followed = btc.model_copy(update={"alerts": True})
    universe = Universe(assets=(followed, eth), renamed_on=plain.renamed_on)
    stepper = Stepper(["BTC", "ETH"], universe, indicators)
    alerts = AlertPipeline(stepper.row_by_series, universe, indicators)
    return EngineState(stepper, alerts, BarBuffer({"BTC": "1h", "ETH": "1h"}, {}, ()), carries)


def make_bars(hours: list[int]) -> Series:
    closes = np.array(hours, dtype=np.int64)
    prices = 100.0 + closes // HOUR_S % 24
    return Series(closes - HOUR_S, closes, prices, prices, prices, prices, np.ones(len(closes)))


def step(state: EngineState, hours: list[int]) -> tuple[dict[Cell, CarryRow], list[EpochRow]]:
    """Step bars of BTC; return the carries by cell and the epochs that a batch stores."""
    state.buffer.add("BTC", make_bars(hours), NO_FUNDING)
    due = state.buffer.take_due(state.stepper.row_by_series, hours[0], hours[-1], {})
    _, readings = state.stepper.step(due)
    carries, epochs = state.take_carry_rows(
        due, state.alerts.publish(state.alerts.step(due, readings), hours[-1])
    )
    return {Cell(c.ticker, c.timeframe, c.indicator): c for c in carries}, epochs


def step_nothing(state: EngineState) -> tuple[list[CarryRow], list[EpochRow]]:
    """Run an hour at which nothing is due; return the carries and epochs that its batch stores."""
    due = state.buffer.take_due(state.stepper.row_by_series, HOURS[4], HOURS[4], {})
    return state.take_carry_rows(due, [])


def restate(state: EngineState, hours: list[int]) -> None:
    """Rebuild the hourly sequence of BTC from restated bars."""
    state.revisions["BTC"] += 1
    to = state.find_stepped_to("BTC")["1h"]
    rebuilt = rebuild_series(state, ("BTC", "1h"), to, make_bars(hours), NO_FUNDING, {})
    state.begin_epochs(("BTC", "1h"), rebuilt, "split 2:1")


def test_a_rebuilt_carry_and_its_epoch_are_stored_with_the_next_batch_once():
    state = make_state()
    step(state, HOURS[:5])
    restate(state, HOURS[:5])
    rebuilt = state.carries.get(INDICATOR_CELL)
    carries, epochs = step_nothing(state)
    assert carries == [rebuilt]
    assert epochs == [EpochRow(*INDICATOR_CELL, 1, 1, 1, HOURS[4] + 1, "split 2:1")]
    assert step_nothing(state) == ([], [])


def test_the_legacy_key_is_in_the_epoch_of_its_indicator():
    state = make_state()
    step(state, HOURS[:5])
    restate(state, HOURS[:5])
    ((legacy, current),) = LEGACY_KEYS.items()
    assert state.get_epoch(INDICATOR_CELL._replace(key=legacy)) == 1
    assert state.get_epoch(INDICATOR_CELL._replace(key=current)) == 1


@pytest.mark.parametrize("indicator", [NextIndicator(), WiderIndicator()])
def test_carries_of_another_version_or_layout_are_outdated_and_not_restored(indicator: Indicator):
    carries, _ = step(make_state(), HOURS)
    state = make_state(carries.values(), (indicator,))
    fresh = state.dump_carry(INDICATOR_CELL)
    assert state.list_outdated_cells(("BTC", "1h")) == [INDICATOR_CELL]
    state.restore_carries(("BTC", "1h"))
    assert state.dump_carry(INDICATOR_CELL) == fresh


def test_carries_of_this_code_are_restored_as_they_were_stored():
    carries, _ = step(make_state(), HOURS)
    state = make_state(carries.values())
    for timeframe in ("1h", "4h", "1d"):
        assert state.list_outdated_cells(("BTC", timeframe)) == []
        state.restore_carries(("BTC", timeframe))
    assert {cell: state.dump_carry(cell) for cell in carries} == {
        cell: carry.data for cell, carry in carries.items()
    }


def test_the_carry_of_an_engine_that_did_not_follow_every_bar_is_outdated():
    carries, _ = step(make_state(), HOURS)
    carries[ENGINE_CELL] = carries[ENGINE_CELL]._replace(close_time=HOURS[3])
    state = make_state(carries.values())
    assert state.list_outdated_cells(("BTC", "4h")) == [ENGINE_CELL]
    state.begin_epochs(("BTC", "4h"), {ENGINE_CELL})
    (epoch,) = state.new_epochs
    assert (epoch.from_close_time, epoch.reason) == (HOURS[7] + 1, "was not followed for a while")


SEQUENCES = 11


def stepped(turns: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Array, list[list[bytes]]]:
    """Return readings and carries after steps of one and several bars, in blocks of some size."""
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
    whole, held = stepped(1, monkeypatch)
    for turns in (2, 50, 1000):
        readings, carries = stepped(turns, monkeypatch)
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
