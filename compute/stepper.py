"""From due bars to changes: what backfill, live runs and audit share. Pure.

A change is the difference between an indicator's new reading and the reading on the board, which
is the reading in the store. Order: run, bar close, timeframe, ticker, indicator.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from compute.bars import Prices, Times
from compute.engine import Engine
from compute.indicators.contract import NO_READING, Bar, Indicator, Readings
from compute.universe import Universe
from schemas.vocabulary import LEGACY_KEYS, TIMEFRAMES, Timeframe, compute_midnight_s

((LEGACY_KEY, LEGACY_INDICATOR),) = LEGACY_KEYS.items()
SeriesKey = tuple[str, Timeframe]


class Cell(NamedTuple):
    """Where a reading stands: ticker, timeframe, stored key (indicator id or `dexter`)."""

    ticker: str
    timeframe: Timeframe
    key: str


class DueBars(NamedTuple):
    """Bars that are due at some runs: sequence by sequence, each in order of close.

    `row` and `length`, the engine's row of each sequence (ascending) and how many bars it has,
    have shape (sequences,), all other columns shape (bars,).
    """

    row: Times
    length: Times
    run: Times
    close_time: Times
    bar: Bar

    @property
    def first_index(self) -> Times:
        """The place of each sequence's first bar."""
        return np.cumsum(self.length) - self.length

    @property
    def last_index(self) -> Times:
        """The place of each sequence's last bar."""
        return np.cumsum(self.length) - 1


class Changes(NamedTuple):
    """Readings that moved, in their order; every column has shape (changes,).

    `cell` is a number in `Stepper.cells`; `before` is NO_READING for a first reading.
    """

    run: Times
    close_time: Times
    cell: Times
    before: Readings
    after: Readings
    price: Prices


def list_series_keys(tickers: Iterable[str]) -> tuple[SeriesKey, ...]:
    """Return the sequences of some assets in the order of their rows."""
    return tuple((t, timeframe) for timeframe in TIMEFRAMES for t in sorted(tickers))


def list_stored_keys(indicators: Iterable[Indicator]) -> tuple[str, ...]:
    """Return the stored keys of readings, the legacy key last."""
    return (*(i.id for i in indicators), LEGACY_KEY)


class Stepper:
    """The engine and the board of current readings, a row for every timeframe of every asset."""

    def __init__(
        self, tickers: Sequence[str], universe: Universe, indicators: Sequence[Indicator]
    ) -> None:
        self.tickers: Final = tuple(sorted(tickers))
        self.series_keys: Final = list_series_keys(tickers)
        series_keys = self.series_keys
        self.row_by_series: Final = {place: row for row, place in enumerate(series_keys)}
        self.stored_keys: Final = list_stored_keys(indicators)
        self.cells: Final = tuple(
            Cell(*place, key) for place in series_keys for key in self.stored_keys
        )
        self.indicators: Final = tuple(indicators)
        self.engine: Final[Engine[Bar]] = Engine(indicators, len(series_keys))
        self.current_readings: Final = np.full(
            (len(series_keys), len(self.stored_keys)), NO_READING, dtype=np.int8
        )
        self._legacy_column = [i.id for i in indicators].index(LEGACY_INDICATOR)
        renamed_at = compute_midnight_s(universe.renamed_on)
        added = [universe.by_ticker[ticker].added_on for ticker, _ in series_keys]
        until = [renamed_at if day < universe.renamed_on else -1 for day in added]
        self._legacy_until = np.array(until, dtype=np.int64)

    def set_reading(self, cell: Cell, reading: int) -> None:
        """Put a stored reading on the board."""
        self.current_readings[self.row_by_series[cell[:2]], self.stored_keys.index(cell.key)] = (
            reading
        )

    def step(self, due: DueBars) -> tuple[Changes, Readings]:
        """Step what is due at some runs and move the board.

        Return the changes, and the readings of every bar, shape (bars, keys).
        """
        row = np.repeat(due.row, due.length)
        readings = self._step_readings(due, row)
        # Only a sequence's first bars (the warm-up) or last ones (the renaming) read nothing, so
        # that what they leave as it is is the board before them, or is not looked at again.
        stays, current = readings == NO_READING, self.current_readings[row]
        after = np.where(stays, current, readings)
        before = np.roll(after, 1, axis=0)
        before[due.first_index] = current[due.first_index]
        bar, key = np.nonzero((after != before) & ~stays)
        moved = after[bar, key]
        self.current_readings[row[bar], key] = moved
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

    def _step_readings(self, due: DueBars, row: Times) -> Readings:
        """Step; return the readings of every bar, shape (bars, keys), the legacy key's too."""
        readings = self.engine.step(due.row, due.length, due.bar)
        legacy = readings[:, self._legacy_column].copy()
        legacy[due.run >= self._legacy_until[row]] = NO_READING
        return np.column_stack([readings, legacy])
