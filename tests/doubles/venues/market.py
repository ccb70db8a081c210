"""One symbol's bars and settlements at a venue, served by the clock, and their faults.

Times are epoch seconds. A fault is given by its bar's open time, so it shows on every page.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import ArrayLike

from compute.bars import HOUR_S, RawBar
from compute.sources.simulated import SimulatedSource, choose_start
from compute.universe import Universe

EVER = 2**40
PERIODS = {"30m": HOUR_S // 2, "1h": HOUR_S}


class Market:
    """One symbol's whole history and future; the time decides which part is served."""

    def __init__(
        self,
        bars: ArrayLike | Sequence[RawBar],
        settlements: Sequence[tuple[int, float]] = (),
        *,
        period_s: int = HOUR_S,
    ) -> None:
        """Take bars (rows of a RawBar's six numbers) and (time, rate) pairs, both oldest first."""
        self.table = np.asarray(bars, dtype=np.float64).reshape(-1, 6)
        self.settlements = list(settlements)
        self.period_s = period_s
        self._opens = self.table[:, 0].astype(np.int64)
        self._settled_at = [at for at, _ in self.settlements]
        # Faulty bars by open time: late by seconds, revised at a time, repeated, missing.
        self._late: dict[int, int] = {}
        self._revised: dict[int, tuple[int, RawBar]] = {}
        self._repeated: set[int] = set()
        self._gaps: list[tuple[int, int]] = []
        self._is_shuffled = False
        self._most_rows = EVER

    def all_bars(self) -> list[RawBar]:
        """Return every bar as it closes, without any fault."""
        return [self._bar(place) for place in range(len(self.table))]

    def get_bar(self, open_time: int) -> RawBar:
        """Return the bar that opens at a time, without any fault."""
        return self._bar(int(np.searchsorted(self._opens, open_time)))

    def delay(self, open_time: int, by_s: int) -> None:
        """Let a bar disappear when it closes, until some seconds later."""
        self._late[open_time] = by_s

    def withhold(self, first: int, last: int | None = None) -> None:
        """Never show the bars that open in [first, last], one bar by default."""
        self._gaps.append((first, first if last is None else last))

    def revise(self, bar: RawBar, at: int) -> None:
        self._revised[bar.open_time] = at, bar

    def repeat(self, open_time: int) -> None:
        self._repeated.add(open_time)

    def shorten(self, most_rows: int) -> None:
        """Return only the newest rows of a page that would have more."""
        self._most_rows = most_rows

    def shuffle(self) -> None:
        self._is_shuffled = True

    def get_page(
        self, now: int, first: int, last: int, limit: int, *, is_newest: bool = False
    ) -> list[RawBar]:
        """Return the bars that open in [first, last], oldest first, the forming one included.

        If there are more than `limit`, only the oldest or the newest are returned.
        """
        begin = int(np.searchsorted(self._opens, first, side="left"))
        places = range(begin, int(np.searchsorted(self._opens, min(last, now), side="right")))
        shown = (
            bar
            for place in (reversed(places) if is_newest else places)
            for bar in self._shown(place, now)
        )
        bars = list(islice(shown, limit))
        bars = (bars[::-1] if is_newest else bars)[-self._most_rows :]
        return bars[1::2] + bars[::2] if self._is_shuffled else bars

    def list_settlements(self, now: int, first: int, last: int) -> list[tuple[int, float]]:
        """Return the settlements in [first, last], oldest first."""
        begin = bisect_right(self._settled_at, first - 1)
        return self.settlements[begin : bisect_right(self._settled_at, min(last, now))]

    def _shown(self, place: int, now: int) -> Iterator[RawBar]:
        bar = self._bar(place)
        opened = bar.open_time
        closed = opened + self.period_s
        if any(first <= opened <= last for first, last in self._gaps):
            return
        if closed <= now < closed + self._late.get(opened, 0):
            return
        since, revised = self._revised.get(opened, (EVER, bar))
        bar = revised if now >= since else bar
        if closed > now:
            # A forming bar, after a share of its time, on its way to the low.
            share = (now - opened) / self.period_s
            close = bar.open + (bar.low - bar.open) * share
            bar = RawBar(opened, bar.open, bar.open, close, close, bar.volume * share)
        yield from (bar,) * (2 if opened in self._repeated else 1)

    def _bar(self, place: int) -> RawBar:
        opened, *rest = self.table[place].tolist()
        return RawBar(int(opened), *rest)


HOUR = 1_790_769_600  # 2026-09-30T12:00:00Z, when a bar has closed and the next one opens
NOW = HOUR + 180
FUNDED_EVERY_S = 8 * HOUR_S


def make_bar(hours: int) -> RawBar:
    """Return the bar that opens some hours after HOUR."""
    price = 20_000.0 + hours
    return RawBar(HOUR + hours * HOUR_S, price, price + 9, price - 9, price + 0.5, 10.25)


def make_market(before: int = 50, after: int = 5) -> Market:
    """Return bars from some hours before HOUR until some after it, and matching rates."""
    rates = [(HOUR - n * FUNDED_EVERY_S, n * 0.0001) for n in range(before, -1, -1)]
    return Market([make_bar(hours) for hours in range(-before, after)], rates)


WEEK_S = 7 * 86_400
HALF_S = HOUR_S // 2
_NEW_YORK = ZoneInfo("America/New_York")


async def make_simulated_markets(
    universe: Universe, tickers: Iterable[str], first: int, until: int
) -> dict[str, Market]:
    """Return markets of the simulated source: bars that close, and rates, in (first, until].

    Late bars are included; the few bars that never come are gaps.
    """
    later = until + WEEK_S
    source = SimulatedSource(universe, choose_start(first).origin, lambda: later * 1000)
    made = {}
    for ticker in tickers:
        fetched = await source.fetch(ticker, first, until)
        funding = fetched.funding
        rates = zip(funding.settled_at.tolist(), funding.rate.tolist(), strict=True)
        bars = fetched.bars
        columns = bars.open_time, bars.open, bars.high, bars.low, bars.close, bars.volume
        made[ticker] = Market(np.stack(columns, axis=1), list(rates))
    return made


def halve_bars(market: Market) -> Market:
    """Return a stock's market in half-hour bars, as Alpaca has them.

    Two halves make the hourly bar exactly; a day's first bar, from 09:30 on, is one half.
    """
    halves = [half for bar in market.all_bars() for half in _halve_bar(bar)]
    return Market(halves, period_s=HALF_S)


def _halve_bar(bar: RawBar) -> Iterator[RawBar]:
    if datetime.fromtimestamp(bar.open_time, _NEW_YORK).hour == 9:
        yield bar._replace(open_time=bar.open_time + HALF_S)
        return
    opened, low, high, closed = bar.open, bar.low, bar.high, bar.close
    middle, half = (opened + closed) / 2, bar.volume / 2
    later = bar.open_time + HALF_S
    if closed >= opened:
        yield RawBar(bar.open_time, opened, middle, low, middle, half)
        yield RawBar(later, middle, high, middle, closed, half)
    else:
        yield RawBar(bar.open_time, opened, high, middle, middle, half)
        yield RawBar(later, middle, middle, low, closed, half)
