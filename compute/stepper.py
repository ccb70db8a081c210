"""From due bars to changes: what backfill, live runs and audit share. Pure.

A change is the difference between an indicator's new reading and the reading on the board, which
is the reading in the store. Order: run, bar close, timeframe, ticker, indicator.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from compute.bars import DAY_S, NO_BARS, NO_FUNDING, Funding, Prices, Series, Times, built
from compute.coverage import served
from compute.engine import Engine
from compute.indicators.contract import NO_READING, Bar, Indicator, Readings
from compute.universe import Universe
from schemas.vocabulary import LEGACY_KEYS, PERIOD_S, TIMEFRAMES, Timeframe, midnight_s

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


class Intake:
    """Holds the bars that are not yet part of every longer bar, and says what is due when."""

    def __init__(self, native: Mapping[str, Timeframe], ends: Mapping[str, int]) -> None:
        """Take each asset's native timeframe, and from when (epoch seconds) it no longer steps."""
        self.native: Final = dict(native)
        self._ends: Final = dict(ends)
        self._waiting: dict[Place, Series] = {}
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
        self, rows: Mapping[Place, int], start: int, until: int, behind: Mapping[str, int]
    ) -> Due:
        """Take what is due at the runs from `start` to `until` and forget it.

        `behind` holds the watermarks of the assets of which not all up to `until` has come.
        """
        parts: list[tuple[int, Times, Series, Prices]] = []
        for place in sorted(self._waiting, key=rows.__getitem__):
            due, bars = self._ready(place, start, behind.get(place[0], until), until)
            if len(bars):
                funding = self._funding[place[0]].annualised(bars.close_time)
                parts.append((rows[place], due, bars, funding))
        for ticker, held in self._funding.items():
            self._funding[ticker] = held.between(self._waits_from(ticker, until) - DAY_S, until)
        return _joined(parts)

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

    def _ready(self, place: Place, start: int, watermark: int, until: int) -> tuple[Times, Series]:
        """Take one sequence's due bars; return the runs at which they step, and the bars."""
        ticker, timeframe = place
        waiting, period_s = self._waiting[place], PERIOD_S[timeframe]
        first_run = -(-start // period_s) * period_s
        if first_run > until:
            return NO_BARS.close_time, NO_BARS
        bars = waiting if self.native[ticker] == timeframe else built(waiting, period_s)
        due = np.maximum(bars.close_time, first_run)
        ready = (due <= until) & (bars.close_time <= watermark)
        bars, due = bars.where(ready), due[ready]
        if len(bars):
            self._waiting[place] = waiting.where(waiting.close_time > bars.close_time[-1])
        steps = due < self._ends.get(ticker, until + 1)
        return due[steps], bars.where(steps)


def _joined(parts: Sequence[tuple[int, Times, Series, Prices]]) -> Due:
    """Put sequences (row, runs, bars, funding) one after another."""
    rows, runs, series, funding = zip(*parts, strict=True) if parts else ((), (), (), ())
    prices = ([getattr(bars, name) for bars in series] for name in Bar._fields[:-1])
    return Due(
        row=np.array(rows, dtype=np.int64),
        length=np.array([len(bars) for bars in series], dtype=np.int64),
        run=np.concatenate([NO_BARS.close_time, *runs]),
        close_time=np.concatenate([NO_BARS.close_time, *(bars.close_time for bars in series)]),
        bar=Bar(*(np.concatenate([NO_BARS.open, *column]) for column in (*prices, funding))),
    )
