"""One symbol's bars and settlements at a venue, served by the clock, and their faults.

Times are epoch seconds. A fault is given by its bar's open time, so it shows on every page.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import ArrayLike

from compute.bars import HOUR_S, RawBar, Series
from compute.sources.simulated import SimulatedSource, compute_origin
from compute.universe import Universe

EVER = 2**40
PERIODS = {"30m": HOUR_S // 2, "1h": HOUR_S}


@dataclass(frozen=True)
class Split:
    """From `at` on, `ratio` new shares stand for one old share."""

    at: int
    ratio: float

    def scale(self, bar: RawBar) -> RawBar:
        prices = (price / self.ratio for price in bar[1:5])
        return RawBar(bar.open_time, *prices, bar.volume * self.ratio)


@dataclass
class Faults:
    """Faulty bars by open time: late by seconds, revised at a time, missing, repeated, shuffled.

    A page has at most `most_rows`: the newest ones, whatever was requested.
    """

    late: dict[int, int] = field(default_factory=dict)
    revised: dict[int, tuple[int, RawBar]] = field(default_factory=dict)
    repeated: set[int] = field(default_factory=set)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    is_shuffled: bool = False
    most_rows: int = EVER
    split: Split | None = None


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
        self._faults = Faults()

    def all_bars(self) -> list[RawBar]:
        """Return every bar as it closes, without any fault."""
        return [self._bar(place) for place in range(len(self.table))]

    def delay(self, open_time: int, by_s: int) -> None:
        """Let a bar disappear when it closes, until some seconds later."""
        self._faults.late[open_time] = by_s

    def withhold(self, first: int, last: int | None = None) -> None:
        """Never show the bars that open in [first, last], one bar by default."""
        self._faults.gaps.append((first, first if last is None else last))

    def revise(self, bar: RawBar, at: int) -> None:
        self._faults.revised[bar.open_time] = at, bar

    def repeat(self, open_time: int) -> None:
        self._faults.repeated.add(open_time)

    def shorten(self, most_rows: int) -> None:
        """Return only the newest rows of a page that would have more."""
        self._faults.most_rows = most_rows

    def shuffle(self) -> None:
        self._faults.is_shuffled = True

    def split(self, ratio: float, at: int) -> None:
        """Divide every price by `ratio` from a time on; the bars are given on the old scale."""
        self._faults.split = Split(at, ratio)

    def get_page(
        self,
        now: int,
        first: int,
        last: int,
        limit: int,
        *,
        is_newest: bool = False,
        is_adjusted: bool = True,
    ) -> list[RawBar]:
        """Return the bars that open in [first, last], oldest first, the forming one included.

        If there are more than `limit`, only the oldest or the newest are returned. If
        `is_adjusted`, a split has rescaled the bars before it.
        """
        begin = int(np.searchsorted(self._opens, first, side="left"))
        places = range(begin, int(np.searchsorted(self._opens, min(last, now), side="right")))
        shown = (
            bar
            for place in (reversed(places) if is_newest else places)
            for bar in self._shown(place, now, is_adjusted)
        )
        bars = list(islice(shown, limit))
        bars = (bars[::-1] if is_newest else bars)[-self._faults.most_rows :]
        return bars[1::2] + bars[::2] if self._faults.is_shuffled else bars

    def list_settlements(self, now: int, first: int, last: int) -> list[tuple[int, float]]:
        """Return the settlements in [first, last], oldest first."""
        begin = bisect_right(self._settled_at, first - 1)
        return self.settlements[begin : bisect_right(self._settled_at, min(last, now))]

    def _shown(self, place: int, now: int, is_adjusted: bool) -> Iterator[RawBar]:
        bar, wrong = self._bar(place), self._faults
        opened = bar.open_time
        closed = opened + self.period_s
        if any(first <= opened <= last for first, last in wrong.gaps):
            return
        if closed <= now < closed + wrong.late.get(opened, 0):
            return
        since, revised = wrong.revised.get(opened, (EVER, bar))
        bar = revised if now >= since else bar
        split = wrong.split
        if split and now >= split.at and (is_adjusted or opened >= split.at):
            bar = split.scale(bar)
        bar = bar if closed <= now else _make_forming_bar(bar, (now - opened) / self.period_s)
        yield from (bar,) * (2 if opened in wrong.repeated else 1)

    def _bar(self, place: int) -> RawBar:
        opened, *rest = self.table[place].tolist()
        return RawBar(int(opened), *rest)


def _make_forming_bar(bar: RawBar, share: float) -> RawBar:
    """Return a forming bar after a share of its time, on its way to the low."""
    close = bar.open + (bar.low - bar.open) * share
    return RawBar(bar.open_time, bar.open, bar.open, close, close, bar.volume * share)


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
    source = SimulatedSource(universe, compute_origin(first), lambda: later * 1000)
    made = {}
    for ticker in tickers:
        fetched = await source.fetch(ticker, first, until)
        funding = fetched.funding
        rates = zip(funding.settled_at.tolist(), funding.rate.tolist(), strict=True)
        made[ticker] = Market(_to_rows(fetched.bars), list(rates))
    return made


def _to_rows(bars: Series) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    columns = (bars.open_time, bars.open, bars.high, bars.low, bars.close, bars.volume)
    return np.stack([column.astype(np.float64) for column in columns], axis=1)


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
