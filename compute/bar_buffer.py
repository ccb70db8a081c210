"""Buffers bars until all timeframes have stepped them, and selects those due at a run. Pure."""

from collections.abc import Collection, Container, Iterable, Mapping
from operator import itemgetter
from typing import Final

import numpy as np

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
from compute.indicators.contract import Bar
from compute.stepper import DueBars, SeriesKey
from schemas.longer_bars import find_longer_close
from schemas.vocabulary import TIMEFRAME_DURATIONS_S, Timeframe


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

    def has_series(self, series_key: SeriesKey) -> bool:
        """Return whether a sequence has had bars."""
        return series_key in self._pending

    def take_series(
        self, series_key: SeriesKey, start: int, watermark: int, until: int
    ) -> tuple[Times, Series, Prices]:
        """Take one sequence's due bars; return the runs that step them, bars and annual funding."""
        ticker, timeframe = series_key
        pending, period_s = self._pending[series_key], TIMEFRAME_DURATIONS_S[timeframe]
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
