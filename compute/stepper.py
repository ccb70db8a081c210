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
from schemas.vocabulary import LEGACY_KEYS, TIMEFRAMES, Timeframe, midnight_s

((LEGACY_KEY, ITS_INDICATOR),) = LEGACY_KEYS.items()
Place = tuple[str, Timeframe]


class Cell(NamedTuple):
    """Where a reading stands: ticker, timeframe, stored key (indicator id or `dexter`)."""

    ticker: str
    timeframe: Timeframe
    key: str


class Due(NamedTuple):
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
    def first(self) -> Times:
        """The place of each sequence's first bar."""
        return np.cumsum(self.length) - self.length

    @property
    def last(self) -> Times:
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


def places_of(tickers: Iterable[str]) -> tuple[Place, ...]:
    """Return the sequences of some assets in the order of their rows."""
    return tuple((t, timeframe) for timeframe in TIMEFRAMES for t in sorted(tickers))


def keys_of(indicators: Iterable[Indicator]) -> tuple[str, ...]:
    """Return the stored keys of readings, the legacy key last."""
    return (*(i.id for i in indicators), LEGACY_KEY)


class Stepper:
    """The engine and the board of current readings, a row for every timeframe of every asset."""

    def __init__(
        self, tickers: Sequence[str], universe: Universe, indicators: Sequence[Indicator]
    ) -> None:
        self.tickers: Final = tuple(sorted(tickers))
        self.places: Final = places_of(tickers)
        places = self.places
        self.row: Final = {place: row for row, place in enumerate(places)}
        self.keys: Final = keys_of(indicators)
        self.cells: Final = tuple(Cell(*place, key) for place in places for key in self.keys)
        self.indicators: Final = tuple(indicators)
        self.engine: Final[Engine[Bar]] = Engine(indicators, len(places))
        self.board: Final = np.full((len(places), len(self.keys)), NO_READING, dtype=np.int8)
        self._legacy = [i.id for i in indicators].index(ITS_INDICATOR)
        renamed_at = midnight_s(universe.renamed_on)
        added = [universe.by_ticker[ticker].added_on for ticker, _ in places]
        until = [renamed_at if day < universe.renamed_on else -1 for day in added]
        self._legacy_until = np.array(until, dtype=np.int64)

    def place(self, cell: Cell, reading: int) -> None:
        """Put a stored reading on the board."""
        self.board[self.row[cell[:2]], self.keys.index(cell.key)] = reading

    def run(self, due: Due) -> tuple[Changes, Readings]:
        """Step what is due at some runs and move the board.

        Return the changes, and the readings of every bar, shape (bars, keys).
        """
        row = np.repeat(due.row, due.length)
        readings = self._readings(due, row)
        # Only a sequence's first bars (the warm-up) or last ones (the renaming) read nothing, so
        # that what they leave as it is is the board before them, or is not looked at again.
        stays, held = readings == NO_READING, self.board[row]
        after = np.where(stays, held, readings)
        before = np.roll(after, 1, axis=0)
        before[due.first] = held[due.first]
        bar, key = np.nonzero((after != before) & ~stays)
        moved = after[bar, key]
        self.board[row[bar], key] = moved
        order = np.lexsort((due.close_time[bar], due.run[bar]))
        bar, key = bar[order], key[order]
        changes = Changes(
            run=due.run[bar],
            close_time=due.close_time[bar],
            cell=row[bar] * len(self.keys) + key,
            before=before[bar, key],
            after=moved[order],
            price=due.bar.close[bar],
        )
        return changes, readings

    def _readings(self, due: Due, row: Times) -> Readings:
        """Step; return the readings of every bar, shape (bars, keys), the legacy key's too."""
        readings = self.engine.step(due.row, due.length, due.bar)
        legacy = readings[:, self._legacy].copy()
        legacy[due.run >= self._legacy_until[row]] = NO_READING
        return np.column_stack([readings, legacy])
