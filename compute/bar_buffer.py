"""Bars that are not yet part of every longer bar, and what is due at a run. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from compute.bars import DAY_S, NO_BARS, NO_FUNDING, Funding, Prices, Series, Times, built
from compute.coverage import served
from compute.indicators.contract import Bar
from compute.stepper import Due, Place
from schemas.vocabulary import PERIOD_S, Timeframe


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
