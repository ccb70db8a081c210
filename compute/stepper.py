"""Buffers bars until all timeframes have stepped them, and steps those that are due. Pure.

Backfill, live runs and audit share it. A change is a new reading that differs from the cell's
current one, which is the stored one. Changes are ordered by run, bar close, timeframe, ticker,
indicator.
"""

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compute.bars import (
    DAY_S,
    NO_BARS,
    NO_FUNDING,
    Funding,
    Prices,
    Series,
    Times,
    resample_bars,
)
from compute.covered_assets import list_served_timeframes
from compute.indicator_engine import Engine
from compute.indicators.contract import NO_READING, Bar, Indicator, Readings
from compute.universe import Universe
from schemas.longer_bars import find_longer_close
from schemas.vocabulary import (
    LEGACY_KEYS,
    TIMEFRAME_DURATIONS_S,
    TIMEFRAMES,
    Timeframe,
    compute_midnight_s,
)

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


class BarBuffer:
    """Holds the bars that some timeframe has not stepped yet."""

    def __init__(
        self,
        native_timeframes: Mapping[str, Timeframe],
        ends: Mapping[str, int],
        sunday_joining: Collection[str],
    ) -> None:
        """Take the timeframe of each asset's bars, and when (epoch s) removed assets stop stepping.

        Sunday's hours of the assets in `sunday_joining` belong to Monday's daily bar.
        """
        self.native_timeframes: Final = dict(native_timeframes)
        self._ends: Final = dict(ends)
        self._sunday_joining: Final = frozenset(sunday_joining)
        self._pending: dict[SeriesKey, Series] = {}
        self._funding: dict[str, Funding] = {}

    def add(self, ticker: str, bars: Series, funding: Funding) -> None:
        """Add new bars and settlements of one asset, all later than those added before."""
        self._funding[ticker] = self._funding.get(ticker, NO_FUNDING).concatenate(funding)
        for timeframe in self.list_timeframes(ticker):
            pending = self._pending.get((ticker, timeframe), NO_BARS)
            self._pending[ticker, timeframe] = pending.concatenate(bars) if len(bars) else pending

    def list_timeframes(self, ticker: str) -> tuple[Timeframe, ...]:
        """Return the timeframes that an asset's bars serve."""
        return list_served_timeframes(self.native_timeframes[ticker])

    def take_due(
        self,
        row_by_series: Mapping[SeriesKey, int],
        start: int,
        until: int,
        lagging: Mapping[str, int],
        building: Container[str] = (),
    ) -> DueBars:
        """Remove and return the bars due at the runs from `start` to `until`.

        `lagging` has the watermarks of the assets that were not fetched up to `until`. Bars of the
        assets in `building` are due at their own closes, however long ago those were.
        """
        taken = []
        for series_key in sorted(self._pending, key=row_by_series.__getitem__):
            ticker = series_key[0]
            first, watermark = 0 if ticker in building else start, lagging.get(ticker, until)
            taken.append(
                (row_by_series[series_key], *self.take_series(series_key, first, watermark, until))
            )
        self.drop_settlements(until)
        return join_due(taken)

    def take_series(
        self, series_key: SeriesKey, start: int, watermark: int, until: int
    ) -> tuple[Times, Series, Prices]:
        """Take one sequence's due bars; return the runs that step them, bars and annual funding."""
        ticker, timeframe = series_key
        pending = self._pending.get(series_key, NO_BARS)
        period_s = TIMEFRAME_DURATIONS_S[timeframe]
        nothing = NO_BARS.close_time, NO_BARS, NO_BARS.open
        first_run = -(-start // period_s) * period_s
        # No bar of this timeframe steps at these runs. Building longer bars only when they may
        # close, and packing carries by indicator, halved the processor time of an hourly run.
        if first_run > until or not len(pending):
            return nothing
        bars = self.build_bars(series_key, pending)
        # A bar that came late steps at the next run of its timeframe. A longer bar waits until
        # the watermark has passed its close: an hour that is still missing belongs to it.
        due = np.maximum(bars.close_time, first_run)
        ready = (due <= until) & (bars.close_time <= watermark)
        bars, due = bars.select(ready), due[ready]
        if len(bars):
            self._pending[series_key] = pending.select(pending.close_time > bars.close_time[-1])
        steps = due < self._ends.get(ticker, until + 1)
        due, bars = due[steps], bars.select(steps)
        if not len(bars):
            return nothing
        return due, bars, self._funding[ticker].annualise(bars.close_time)

    def drop_settlements(self, until: int) -> None:
        """Drop the settlements that no later run needs."""
        # Annualised funding sums the 24 hours before a close, so the settlements of the day before
        # the oldest buffered bar stay.
        for ticker, settlements in self._funding.items():
            left = (self._pending[ticker, each] for each in self.list_timeframes(ticker))
            oldest = min([until, *(int(bars.close_time[0]) for bars in left if len(bars))])
            self._funding[ticker] = settlements.select_between(oldest - DAY_S, until)

    def joins_sundays(self, series_key: SeriesKey) -> bool:
        """Return whether the bars of a sequence are daily ones with Sunday's hours in Monday's."""
        ticker, timeframe = series_key
        is_built = self.native_timeframes.get(ticker) != timeframe
        return timeframe == "1d" and is_built and ticker in self._sunday_joining

    def build_bars(self, series_key: SeriesKey, bars: Series) -> Series:
        """Return the bars of a sequence's timeframe, built from those of the native one."""
        ticker, timeframe = series_key
        if self.native_timeframes[ticker] == timeframe:
            return bars
        return resample_bars(
            bars, TIMEFRAME_DURATIONS_S[timeframe], joins_sundays=self.joins_sundays(series_key)
        )

    def resume_series(
        self, series_key: SeriesKey, stepped_to: int, bars: Series, funding: Funding
    ) -> Series:
        """Buffer the stored bars that a sequence has not stepped; return those that it has."""
        is_pending = self._find_closes(series_key, bars.close_time) > stepped_to
        self._pending[series_key] = bars.select(is_pending)
        self._funding[series_key[0]] = funding
        series = self.build_bars(series_key, bars)
        return series.select(series.close_time <= stepped_to)

    def find_pending_closes(self) -> dict[SeriesKey, int]:
        """Return the next close of each sequence that has buffered bars."""
        return {
            series_key: int(self._find_closes(series_key, bars.close_time[:1])[0])
            for series_key, bars in self._pending.items()
            if len(bars)
        }

    def _find_closes(self, series_key: SeriesKey, close_time: Times) -> Times:
        """Return when the bars of a sequence close to which native bars belong, by their closes."""
        return find_longer_close(
            close_time,
            TIMEFRAME_DURATIONS_S[series_key[1]],
            joins_sundays=self.joins_sundays(series_key),
        )


def join_due(taken: Iterable[tuple[int, Times, Series, Prices]]) -> DueBars:
    """Return what `take_series` took, each with its row, as one: by row, and in order of close."""
    parts = sorted((one for one in taken if len(one[1])), key=itemgetter(0))
    rows, runs, series, fundings = zip(*parts, strict=True) if parts else ((), (), (), ())
    row, place = np.unique(np.array(rows, dtype=np.int64), return_inverse=True)
    length = np.zeros(len(row), dtype=np.int64)
    np.add.at(length, place, [len(bars) for bars in series])
    prices = ([getattr(bars, name) for bars in series] for name in Bar._fields[:-1])
    return DueBars(
        row=row,
        length=length,
        run=np.concatenate([NO_BARS.close_time, *runs]),
        close_time=np.concatenate([NO_BARS.close_time, *(bars.close_time for bars in series)]),
        bar=Bar(*(np.concatenate([NO_BARS.open, *column]) for column in (*prices, fundings))),
    )


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
