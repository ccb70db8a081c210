"""Steps the due bars of a block of assets, in this process or in another one. Pure.

Blocks do not depend on each other; merged, their results are those of one block.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from hashlib import sha256
from itertools import chain, pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np

from compute.alerts.alert_pipeline import Alert, AlertPipeline
from compute.bars import Funding, Series, Times
from compute.engine_state import EngineState
from compute.indicators.contract import Indicator
from compute.stepper import BarBuffer, Changes, Stepper
from compute.universe import Universe
from schemas.vocabulary import TIMEFRAMES, Timeframe
from store.market_rows import CarryRow, EpochRow

Item = TypeVar("Item")
StateRow = TypeVar("StateRow", CarryRow, EpochRow)


# The advanced block, and what its steps gave; the changes refer to the block's cells.
BlockResult = tuple[EngineState, Changes, list[Alert], list[CarryRow], list[EpochRow]]


def step_block(
    state: EngineState,
    arrived: Mapping[str, tuple[Series, Funding]],
    start: int,
    until: int,
    lagging: Mapping[str, int],
    building: Mapping[str, int],
    written_at: int | None,
    silent_until: Mapping[str, int],
) -> BlockResult:
    """Buffer the new bars and settlements of a block; step what is due at `start` to `until`.

    `lagging` and `building` are as for `BarBuffer.take_due`, `written_at` and `silent_until` as for
    `AlertPipeline.publish`.
    """
    # In a thread the state is the given object; another process returns a copy of its own.
    for ticker, (series, settlements) in arrived.items():
        state.buffer.add(ticker, series, settlements)
    due = state.buffer.take_due(state.stepper.row_by_series, start, until, lagging, building)
    changes, readings = state.stepper.step(due)
    firings = state.alerts.step(due, readings)
    alerts = state.alerts.publish(firings, until, building, written_at, silent_until)
    return state, changes, alerts, *state.take_carry_rows(due, alerts)


def merge_changes(parts: Sequence[Changes], cell_numbers: Sequence[Times]) -> Changes:
    """Return the changes of all blocks in order, as those of one.

    `cell_numbers` has for each block the numbers that its cells have among those of all assets.
    """
    numbered = [
        part._replace(cell=numbers[part.cell])
        for part, numbers in zip(parts, cell_numbers, strict=True)
    ]
    merged = Changes._make(map(np.concatenate, zip(*numbered, strict=True)))
    order = np.lexsort((merged.cell, merged.close_time, merged.run))
    return Changes._make(column[order] for column in merged)


def merge_alerts(parts: Iterable[Sequence[Alert]], engine_keys: Sequence[str]) -> list[Alert]:
    """Return the alerts of all blocks in order, as those of one; `engine_keys` are in its order."""

    def rank(alert: Alert) -> tuple[int, int, int, str, int]:
        ticker, timeframe, key = alert.cell
        place = TIMEFRAMES.index(timeframe), ticker, engine_keys.index(key)
        return alert.hour, alert.close_time, *place

    return sorted(chain.from_iterable(parts), key=rank)


def merge_rows(parts: Iterable[Sequence[StateRow]]) -> list[StateRow]:
    """Return the carries or epochs of all blocks in order, however many blocks there are."""
    rows = chain.from_iterable(parts)
    return sorted(rows, key=lambda row: (TIMEFRAMES.index(row.timeframe), row.ticker))


def build_state(
    universe: Universe,
    indicators: Sequence[Indicator],
    native_timeframes: Mapping[str, Timeframe],
    carries: Iterable[CarryRow] = (),
    revisions: Mapping[str, int] | None = None,
) -> EngineState:
    """Return the state of the assets whose native timeframe is given, with nothing restored."""
    stepper = Stepper(list(native_timeframes), universe, indicators)
    alerts = AlertPipeline(stepper.row_by_series, universe, indicators)
    ends, sunday_joining = universe.end_time_by_ticker, universe.sunday_joining_tickers
    buffer = BarBuffer(native_timeframes, ends, sunday_joining)
    carries = [row for row in carries if row.ticker in native_timeframes]
    return EngineState(stepper, alerts, buffer, carries, revisions)


@cache
def hash_code() -> str:
    """Return a digest of the sources of `compute` and the version of NumPy."""
    files = sorted(Path(__file__).parent.rglob("*.py"))
    return sha256(b"".join([np.__version__.encode(), *map(Path.read_bytes, files)])).hexdigest()


def split_into_blocks(
    items: Sequence[Item], max_size: int, min_count: int = 1
) -> list[Sequence[Item]]:
    """Split items into blocks of similar size: `min_count` or more, each of `max_size` or less."""
    count = min(max(min_count, -(-len(items) // max_size)), len(items))
    edges = [len(items) * number // count for number in range(count + 1)] if count else []
    return [items[first:last] for first, last in pairwise(edges)]
