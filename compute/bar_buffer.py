"""Bars that are not yet part of every longer bar, and what is due at a run. Pure."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from compute.bars import DAY_S, NO_BARS, NO_FUNDING, Funding, Prices, Series, Times, resample_bars
from compute.coverage import list_served_timeframes
from compute.indicators.contract import Bar
from compute.stepper import DueBars, SeriesKey
from schemas.vocabulary import TIMEFRAME_DURATIONS_S, Timeframe


class BarBuffer:
    """Holds the bars that are not yet part of every longer bar, and says what is due when."""

    def __init__(self, native_timeframes: Mapping[str, Timeframe], ends: Mapping[str, int]) -> None:
        """Take each asset's native timeframe, and from when (epoch seconds) it no longer steps."""
        self._native_timeframes: Final = dict(native_timeframes)
        self._ends: Final = dict(ends)
        self._pending: dict[SeriesKey, Series] = {}
        self._funding: dict[str, Funding] = {}

    @property
    def native_timeframes(self) -> Mapping[str, Timeframe]:
        """The timeframe of each asset's bars, a read-only view."""
        return MappingProxyType(self._native_timeframes)

    def set_native_timeframe(self, ticker: str, native: Timeframe) -> None:
        """Take bars of this timeframe from now on."""
        self._native_timeframes[ticker] = native

    def add(self, ticker: str, bars: Series, funding: Funding) -> None:
        """Add new bars and settlements of one asset, later than all before."""
        self._funding[ticker] = self._funding.get(ticker, NO_FUNDING).concatenate(funding)
        for timeframe in self.list_timeframes(ticker):
            pending = self._pending.get((ticker, timeframe), NO_BARS)
            self._pending[ticker, timeframe] = pending.concatenate(bars) if len(bars) else pending

    def list_timeframes(self, ticker: str) -> tuple[Timeframe, ...]:
        """Return the timeframes that an asset's bars serve."""
        return list_served_timeframes(self._native_timeframes[ticker])

    def take_due(
        self,
        row_by_series: Mapping[SeriesKey, int],
        start: int,
        until: int,
        lagging: Mapping[str, int],
    ) -> DueBars:
        """Remove and return what is due at the runs from `start` to `until`.

        `lagging` has the watermarks of the assets of which not all up to `until` has come.
        """
        parts: list[tuple[int, Times, Series, Prices]] = []
        for series_key in sorted(self._pending, key=row_by_series.__getitem__):
            due, bars = self._take_ready(
                series_key, start, lagging.get(series_key[0], until), until
            )
            if len(bars):
                funding = self._funding[series_key[0]].annualise(bars.close_time)
                parts.append((row_by_series[series_key], due, bars, funding))
        for ticker, settlements in self._funding.items():
            self._funding[ticker] = settlements.select_between(
                self._find_earliest_pending(ticker, until) - DAY_S, until
            )
        return _concatenate_due(parts)

    def restore_series(
        self, ticker: str, timeframe: Timeframe, bars: Series, funding: Funding
    ) -> None:
        """Put back stored bars that a timeframe has not yet stepped, and the settlements held."""
        self._pending[ticker, timeframe] = bars
        self._funding[ticker] = funding

    def list_pending_closes(self) -> list[int]:
        """Return when the longer bars that have begun will close."""
        return [
            -(-int(bars.close_time[0]) // TIMEFRAME_DURATIONS_S[timeframe])
            * TIMEFRAME_DURATIONS_S[timeframe]
            for (_, timeframe), bars in self._pending.items()
            if len(bars)
        ]

    def _find_earliest_pending(self, ticker: str, until: int) -> int:
        """Return the earliest time at which a bar that an asset has not yet stepped may close."""
        pending = (self._pending[ticker, timeframe] for timeframe in self.list_timeframes(ticker))
        return min([until, *(int(bars.close_time[0]) for bars in pending if len(bars))])

    def _take_ready(
        self, series_key: SeriesKey, start: int, watermark: int, until: int
    ) -> tuple[Times, Series]:
        """Take one sequence's due bars; return the runs at which they step, and the bars."""
        ticker, timeframe = series_key
        pending, period_s = self._pending[series_key], TIMEFRAME_DURATIONS_S[timeframe]
        first_run = -(-start // period_s) * period_s
        if first_run > until:
            return NO_BARS.close_time, NO_BARS
        bars = (
            pending
            if self._native_timeframes[ticker] == timeframe
            else resample_bars(pending, period_s)
        )
        due = np.maximum(bars.close_time, first_run)
        ready = (due <= until) & (bars.close_time <= watermark)
        bars, due = bars.select(ready), due[ready]
        if len(bars):
            self._pending[series_key] = pending.select(pending.close_time > bars.close_time[-1])
        steps = due < self._ends.get(ticker, until + 1)
        return due[steps], bars.select(steps)


def _concatenate_due(parts: Sequence[tuple[int, Times, Series, Prices]]) -> DueBars:
    """Put sequences (row, runs, bars, funding) one after another."""
    rows, runs, series, funding = zip(*parts, strict=True) if parts else ((), (), (), ())
    prices = ([getattr(bars, name) for bars in series] for name in Bar._fields[:-1])
    return DueBars(
        row=np.array(rows, dtype=np.int64),
        length=np.array([len(bars) for bars in series], dtype=np.int64),
        run=np.concatenate([NO_BARS.close_time, *runs]),
        close_time=np.concatenate([NO_BARS.close_time, *(bars.close_time for bars in series)]),
        bar=Bar(*(np.concatenate([NO_BARS.open, *column]) for column in (*prices, funding))),
    )
