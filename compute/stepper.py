"""Steps due bars and returns the changed readings; shared by backfill, live runs and audit. Pure.

A change is a new reading that differs from the cell's current one, which is the stored one.
Changes are ordered by run, bar close, timeframe, ticker, indicator.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compute.bars import Prices, Times
from compute.indicator_engine import Engine
from compute.indicators.contract import NO_READING, Bar, Indicator, Readings
from compute.universe import Universe
from schemas.vocabulary import LEGACY_KEYS, TIMEFRAMES, Timeframe, compute_midnight_s

((LEGACY_KEY, LEGACY_INDICATOR),) = LEGACY_KEYS.items()
SeriesKey = tuple[str, Timeframe]


class Cell(NamedTuple):
    """The key of a reading: ticker, timeframe, stored key (an indicator's id or `dexter`)."""

    ticker: str
    timeframe: Timeframe
    key: str


class DueBars(NamedTuple):
    """Bars that are due at some runs: sequence by sequence, each in order of close.

    `row` (the engine's row of a sequence, ascending) and `length` (the number of its bars) have
    shape (sequences,); all other columns have shape (bars,).
    """

    row: Times
    length: Times
    run: Times
    close_time: Times
    bar: Bar

    @property
    def first_index(self) -> Times:
        """The index of each sequence's first bar."""
        return np.cumsum(self.length) - self.length

    @property
    def last_index(self) -> Times:
        """The index of each sequence's last bar."""
        return np.cumsum(self.length) - 1


class Changes(NamedTuple):
    """Changed readings in order; every column has shape (changes,).

    `cell` is a number in `Stepper.cells`; `before` is NO_READING for a first reading.
    """

    run: Times
    close_time: Times
    cell: Times
    before: Readings
    after: Readings
    price: Prices

    def select(self, chosen: NDArray[np.bool_]) -> "Changes":
        """Return the chosen changes in their order."""
        return Changes._make(column[chosen] for column in self)


class Stepper:
    """The engine and the current readings, with a row for every timeframe of every asset."""

    def __init__(
        self, tickers: Sequence[str], universe: Universe, indicators: Sequence[Indicator]
    ) -> None:
        self.tickers: Final = tuple(sorted(tickers))
        # In row order: by timeframe, then by ticker.
        self.series_keys: Final[tuple[SeriesKey, ...]] = tuple(
            (ticker, timeframe) for timeframe in TIMEFRAMES for ticker in self.tickers
        )
        series_keys = self.series_keys
        self.row_by_series: Final[Mapping[SeriesKey, int]] = {
            place: row for row, place in enumerate(series_keys)
        }
        self.stored_keys: Final = (*(i.id for i in indicators), LEGACY_KEY)
        self.cells: Final = tuple(
            Cell(*place, key) for place in series_keys for key in self.stored_keys
        )
        self.indicators: Final = tuple(indicators)
        self._engine: Final[Engine[Bar]] = Engine(indicators, len(series_keys))
        self._current_readings: Final = np.full(
            (len(series_keys), len(self.stored_keys)), NO_READING, dtype=np.int8
        )
        # `dexter` repeats the readings of `enzo` up to the renaming, for assets older than it.
        self._legacy_column = [i.id for i in indicators].index(LEGACY_INDICATOR)
        renamed_at = compute_midnight_s(universe.renamed_on)
        added = [universe.by_ticker[ticker].added_on for ticker, _ in series_keys]
        until = [renamed_at if day < universe.renamed_on else -1 for day in added]
        self._legacy_until = np.array(until, dtype=np.int64)

    def get_readings(self) -> dict[Cell, int]:
        """Return the current reading of every cell that has one."""
        pairs = zip(self.cells, self._current_readings.ravel().tolist(), strict=True)
        return {cell: reading for cell, reading in pairs if reading != NO_READING}

    def set_reading(self, cell: Cell, reading: int) -> None:
        """Set the current reading of a cell."""
        row, column = self._locate(cell)
        self._current_readings[row, column] = reading

    def dump_carry(self, cell: Cell) -> bytes:
        """Return the carry of a cell's indicator, to be stored."""
        row, column = self._locate(cell)
        return self._engine.dump_carries(column, np.array([row]))[0]

    def dump_carries(self, rows: Times) -> dict[Cell, bytes]:
        """Return the carries of all indicators of some sequences, to be stored."""
        series_keys: list[SeriesKey] = [self.series_keys[row] for row in rows.tolist()]
        return {
            Cell(*series_key, indicator.id): data
            for column, indicator in enumerate(self.indicators)
            for series_key, data in zip(
                series_keys, self._engine.dump_carries(column, rows), strict=True
            )
        }

    def restore_carry(self, cell: Cell, data: bytes) -> None:
        """Restore a carry that `dump_carry` returned for the same indicator and layout."""
        row, column = self._locate(cell)
        self._engine.restore_carry(column, row, data)

    def step(self, due: DueBars) -> tuple[Changes, Readings]:
        """Step due bars and update the current readings.

        Return the changes, and the readings on every bar, shape (bars, keys).
        """
        row = np.repeat(due.row, due.length)
        read = self._engine.step(due.row, due.length, due.bar)
        legacy = read[:, self._legacy_column].copy()
        legacy[due.run >= self._legacy_until[row]] = NO_READING
        readings = np.column_stack([read, legacy])
        # Only a sequence's first bars (the warmup) or its last ones (after the renaming) have no
        # reading. They take the current one: so the first bars change nothing, and nothing is
        # compared with the last ones.
        stays, current = readings == NO_READING, self._current_readings[row]
        after = np.where(stays, current, readings)
        before = np.roll(after, 1, axis=0)
        before[due.first_index] = current[due.first_index]
        bar, key = np.nonzero((after != before) & ~stays)
        moved = after[bar, key]
        self._current_readings[row[bar], key] = moved
        order = np.lexsort((due.close_time[bar], due.run[bar]))
        bar, key = bar[order], key[order]
        changes = Changes(
            run=due.run[bar],
            close_time=due.close_time[bar],
            cell=row[bar] * len(self.stored_keys) + key,
            before=before[bar, key],
            after=moved[order],
            price=due.bar.close[bar],
        )
        return changes, readings

    def _locate(self, cell: Cell) -> tuple[int, int]:
        return self.row_by_series[cell[:2]], self.stored_keys.index(cell.key)
