"""From due bars to changes: what replay, live runs and audit share. Pure.

A change is the difference between an indicator's new reading and the reading on the board, which
is the reading in the store. Order in a run: bar close, timeframe, ticker, indicator.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compute.bars import DAY_S, NO_BARS, NO_FUNDING, Funding, Series, Times, built
from compute.coverage import served
from compute.engine import Engine
from compute.indicators.contract import NO_READING, Bar, Indicator
from compute.universe import Universe
from schemas.vocabulary import LEGACY_KEYS, PERIOD_S, TIMEFRAMES, Timeframe, midnight_s

((LEGACY_KEY, ITS_INDICATOR),) = LEGACY_KEYS.items()
RUN_DELAY_S = 180


class Cell(NamedTuple):
    """Where a reading stands: ticker, timeframe, stored key (indicator id or `dexter`)."""

    ticker: str
    timeframe: Timeframe
    key: str


@dataclass(frozen=True, slots=True)
class Change:
    """A reading that moved on a bar; `before` is None for a first reading."""

    cell: Cell
    run: int
    close_time: int
    before: int | None
    after: int
    price: float


class DueBars(NamedTuple):
    """Bars of one timeframe in the order they step; every column has shape (bars,)."""

    due: Times
    close_time: Times
    row: Times
    bar: Bar

    def between(self, first: int, last: int) -> "DueBars":
        """Return the bars from one place to before another."""
        part = slice(first, last)
        bar = Bar(*(column[part] for column in self.bar))
        return DueBars(self.due[part], self.close_time[part], self.row[part], bar)


class Stepper:
    """Three engines and the board of current readings, over the assets given (in that order)."""

    def __init__(
        self, tickers: Sequence[str], universe: Universe, indicators: Sequence[Indicator]
    ) -> None:
        self.tickers: Final = tuple(sorted(tickers))
        self.row: Final = {ticker: row for row, ticker in enumerate(self.tickers)}
        self.engines: Final = {t: Engine(indicators, len(self.tickers)) for t in TIMEFRAMES}
        self.keys: Final = (*(i.id for i in indicators), LEGACY_KEY)
        self._legacy = [i.id for i in indicators].index(ITS_INDICATOR)
        shape = (len(self.tickers), len(self.keys))
        self.board: Final = {t: np.full(shape, NO_READING, dtype=np.int8) for t in TIMEFRAMES}
        self._renamed_at = midnight_s(universe.renamed_on)
        added = [universe.by_ticker[ticker].added_on for ticker in self.tickers]
        self._has_legacy = np.array([day < universe.renamed_on for day in added], dtype=bool)

    def place(self, cell: Cell, reading: int) -> None:
        """Put a stored reading on the board."""
        self.board[cell.timeframe][self.row[cell.ticker], self.keys.index(cell.key)] = reading

    def run(self, run: int, due: Mapping[Timeframe, DueBars]) -> list[Change]:
        """Step what is due at one nominal hour; return the changes in their order."""
        found: list[tuple[int, int, int, int, Change]] = []
        for order, (timeframe, bars) in enumerate(due.items()):
            for first, last in _stretches(bars.close_time):
                rows = bars.row[first:last]
                bar = Bar(*(column[first:last] for column in bars.bar))
                close_time = int(bars.close_time[first])
                for row, key, before, after in self._moves(timeframe, rows, bar, run):
                    cell = Cell(self.tickers[row], timeframe, self.keys[key])
                    price = float(bar.close[np.searchsorted(rows, row)])
                    change = Change(cell, run, close_time, before, after, price)
                    found.append((close_time, order, row, key, change))
        return [entry[-1] for entry in sorted(found, key=lambda entry: entry[:-1])]

    def _moves(
        self, timeframe: Timeframe, rows: Times, bar: Bar, run: int
    ) -> list[tuple[int, int, int | None, int]]:
        """Step, put the new readings on the board, and return (row, key, before, after)."""
        readings = self.engines[timeframe].step(rows, bar)
        legacy = readings[:, self._legacy].copy()
        legacy[~self._has_legacy[rows] | (run >= self._renamed_at)] = NO_READING
        after = np.column_stack([readings, legacy])
        board = self.board[timeframe]
        before = board[rows]
        moved = (after != before) & (after != NO_READING)
        board[rows] = np.where(moved, after, before)
        return [
            (int(rows[i]), int(k), _reading(before[i, k]), int(after[i, k]))
            for i, k in zip(*np.nonzero(moved), strict=True)
        ]


def _reading(value: np.int8) -> int | None:
    return None if value == NO_READING else int(value)


def _stretches(values: Times) -> Iterator[tuple[int, int]]:
    """Yield the bounds of the stretches of equal values."""
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    yield from ((a, b) for a, b in pairwise(edges) if b > a)


class Intake:
    """Holds the bars that are not yet part of every longer bar, and says what is due when."""

    def __init__(self, native: Mapping[str, Timeframe], ends: Mapping[str, int]) -> None:
        """Take each asset's native timeframe, and from when (epoch seconds) it no longer steps."""
        self.native: Final = dict(native)
        self._ends: Final = dict(ends)
        self._waiting: dict[tuple[str, Timeframe], Series] = {}
        self._funding: dict[str, Funding] = {}

    def add(self, ticker: str, bars: Series, funding: Funding) -> None:
        """Take in new bars and settlements of one asset, later than all before."""
        self._funding[ticker] = self._funding.get(ticker, NO_FUNDING).then(funding)
        for timeframe in self.timeframes(ticker):
            held = self._waiting.get((ticker, timeframe), NO_BARS)
            self._waiting[ticker, timeframe] = held.then(bars) if len(bars) else held

    def timeframes(self, ticker: str) -> tuple[Timeframe, ...]:
        """Return the timeframes that an asset's bars serve."""
        return served(self.native[ticker])

    def take(
        self, rows: Mapping[str, int], start: int, until: int
    ) -> Iterator[tuple[int, dict[Timeframe, DueBars]]]:
        """Take what is due at the runs from `start` to `until`, run by run, and forget it."""
        parts = {t: self._ready(t, rows, start, until) for t in TIMEFRAMES}
        for ticker, funding in self._funding.items():
            self._funding[ticker] = funding.between(self._waits_from(ticker, until) - DAY_S, until)
        cuts = {
            (int(bars.due[first]), timeframe): bars.between(first, last)
            for timeframe, bars in parts.items()
            for first, last in _stretches(bars.due)
        }
        order = {timeframe: place for place, timeframe in enumerate(TIMEFRAMES)}
        keys = sorted(cuts, key=lambda key: (key[0], order[key[1]]))
        for run, group in groupby(keys, key=lambda key: key[0]):
            yield run, {timeframe: cuts[run, timeframe] for _, timeframe in group}

    def resume(self, ticker: str, timeframe: Timeframe, bars: Series, funding: Funding) -> None:
        """Put back stored bars that a timeframe has not yet stepped, and the settlements held."""
        self._waiting[ticker, timeframe] = bars
        self._funding[ticker] = funding

    def waiting_for(self) -> list[int]:
        """Return when the longer bars that have begun will close."""
        return [
            -(-int(bars.close_time[0]) // PERIOD_S[timeframe]) * PERIOD_S[timeframe]
            for (_, timeframe), bars in self._waiting.items()
            if len(bars)
        ]

    def _waits_from(self, ticker: str, until: int) -> int:
        """Return the earliest time at which a bar that an asset has not yet stepped may close."""
        waiting = (self._waiting[ticker, timeframe] for timeframe in self.timeframes(ticker))
        return min([until, *(int(bars.close_time[0]) for bars in waiting if len(bars))])

    def _ready(
        self, timeframe: Timeframe, rows: Mapping[str, int], start: int, until: int
    ) -> DueBars:
        period_s = PERIOD_S[timeframe]
        tables: list[NDArray[np.float64]] = []
        times: list[NDArray[np.int64]] = []
        for (ticker, kind), waiting in self._waiting.items():
            if kind != timeframe or not len(waiting):
                continue
            own = self.native[ticker] == timeframe
            bars = waiting if own else built(waiting, period_s)
            due = np.maximum(bars.close_time, -(-start // period_s) * period_s)
            ready = due <= until
            bars, due = bars.where(ready), due[ready]
            if not len(bars):
                continue
            self._waiting[ticker, kind] = waiting.where(waiting.close_time > bars.close_time[-1])
            steps = due < self._ends.get(ticker, until + 1)
            bars, due = bars.where(steps), due[steps]
            funding = self._funding[ticker].annualised(bars.close_time)
            row = np.full(len(bars), rows[ticker])
            times.append(np.column_stack([due, bars.close_time, row]))
            columns = (bars.open, bars.high, bars.low, bars.close, bars.volume, funding)
            tables.append(np.column_stack(columns))
        return _sorted(times, tables)


def _sorted(times: list[NDArray[np.int64]], tables: list[NDArray[np.float64]]) -> DueBars:
    when = np.concatenate([np.empty((0, 3), dtype=np.int64), *times])
    table = np.concatenate([np.empty((0, 6)), *tables])
    order = np.lexsort((when[:, 2], when[:, 1], when[:, 0]))
    due, close_time, row = (np.ascontiguousarray(when[order, i]) for i in range(3))
    bar = Bar(*(np.ascontiguousarray(table[order, i]) for i in range(6)))
    return DueBars(due, close_time, row, bar)
