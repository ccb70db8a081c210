"""Rebuilds the carries of indicators and alert engines by stepping whole sequences. Pure.

Sequences do not depend on each other, so many of them step in about the time of one.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np

from compute.alerts.engines import AlertEngine, BarWithReading
from compute.bars import NO_BARS, Funding, Prices, Series, Times
from compute.engine import Columns, Engine, StepFunction
from compute.indicators.contract import Bar, Indicator, Readings
from compute.stepper import Cell, SeriesKey
from schemas.vocabulary import ENGINE_KEYS


class SeriesHistory(NamedTuple):
    """The bars that a sequence has stepped, and the keys whose carries are rebuilt from them."""

    series_key: SeriesKey
    bars: Series
    funding: Funding
    stored_keys: Collection[str]


class HistoryBlock(NamedTuple):
    """A block of sequences, and the indicators that read them."""

    indicators: Sequence[Indicator]
    histories: Sequence[SeriesHistory]


def rebuild_carries(block: HistoryBlock) -> dict[Cell, bytes]:
    """Return the rebuilt carries; that of an alert engine lacks its publisher's part."""
    carries: dict[Cell, bytes] = {}
    for indicator in block.indicators:
        engine_key = ENGINE_KEYS[indicator.id]
        # An engine steps on readings, so its indicator is stepped even if only the engine's
        # carry is outdated.
        histories = [
            past for past in block.histories if {indicator.id, engine_key} & set(past.stored_keys)
        ]
        carry_data, readings = _step_histories(indicator, histories, _collect_bars(histories))
        carries |= _select_carries(indicator.id, histories, carry_data)
        engine_histories = [past for past in histories if engine_key in past.stored_keys]
        if engine_histories:
            chosen = np.repeat(
                [engine_key in past.stored_keys for past in histories], _count_bars(histories)
            )
            carry_data, _ = _step_histories(
                AlertEngine(),
                engine_histories,
                _collect_bars_with_readings(engine_histories, readings[chosen]),
            )
            carries |= _select_carries(engine_key, engine_histories, carry_data)
    return carries


def _step_histories(
    step_function: StepFunction[Columns], histories: Sequence[SeriesHistory], bars: Columns
) -> tuple[list[bytes], Readings]:
    """Step all bars from the first on; return the carries, and readings of shape (bars,)."""
    rows = np.arange(len(histories))
    engine = Engine((step_function,), len(histories))
    readings = engine.step(rows, _count_bars(histories), bars)[:, 0]
    return engine.dump_carries(0, rows), readings


def _select_carries(
    key: str, histories: Sequence[SeriesHistory], carries: Iterable[bytes]
) -> dict[Cell, bytes]:
    pairs = zip(histories, carries, strict=True)
    return {
        Cell(*history.series_key, key): data
        for history, data in pairs
        if key in history.stored_keys
    }


def _count_bars(histories: Sequence[SeriesHistory]) -> Times:
    return np.array([len(history.bars) for history in histories], dtype=np.int64)


def _collect_bars(histories: Sequence[SeriesHistory]) -> Bar:
    prices = (_collect_column(histories, name) for name in Bar._fields[:-1])
    funding = [history.funding.annualise(history.bars.close_time) for history in histories]
    return Bar(*(*prices, np.concatenate([NO_BARS.open, *funding])))


def _collect_bars_with_readings(
    histories: Sequence[SeriesHistory], readings: Readings
) -> BarWithReading:
    high, low, close = (_collect_column(histories, name) for name in ("high", "low", "close"))
    return BarWithReading(high, low, close, readings)


def _collect_column(histories: Sequence[SeriesHistory], name: str) -> Prices:
    return np.concatenate([NO_BARS.open, *(getattr(history.bars, name) for history in histories)])
