"""Bars as columns: validation, closing times, and longer bars built from hourly ones. Pure NumPy.

Times are epoch seconds UTC.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import fsum, isfinite
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from schemas.longer_bars import build_longer_bars, compute_close_time, mark_changes

Times = NDArray[np.int64]
Prices = NDArray[np.float64]
BarFaults = NDArray[np.int8]
HOUR_S = 3600
DAY_S = 86_400
FUNDING_DAYS = 365
# Bounds of plausible numbers, far beyond any market's. Inside them, no indicator overflows, even
# if it squares a sum of prices or divides one bar's number by another's.
MIN_VALUE, MAX_PRICE, MAX_VOLUME, MAX_RATE = 1e-15, 1e15, 1e18, 1.0
MAX_TIME_S = 7_258_118_399  # the end of the year 2199
# Clients of venues give this time to a row whose own cannot be read.
NO_TIME = -1
# Why a bar is rejected. `BarFaults` hold an index in this tuple for each bar, 0 if it is accepted.
BAR_FAULTS = (
    "",
    "a time is out of range",
    "a number is NaN or infinite",
    "a price is not above 0",
    f"a price is outside {MIN_VALUE:g} to {MAX_PRICE:g}",
    "high is below low",
    "close is outside low to high",
    "volume is negative",
    f"volume is outside {MIN_VALUE:g} to {MAX_VOLUME:g}",
    "open time is repeated",
    "opens less than an hour after its predecessor",
    "closes together with its predecessor",
    "opens while its session is closed",
)


class RawBar(NamedTuple):
    """A bar as a source delivers it, not validated yet."""

    open_time: int
    open: float
    high: float
    low: float
    close: float
    volume: float


@dataclass(frozen=True, slots=True)
class Series:
    """Bars of one asset and timeframe, oldest first; every column has shape (bars,)."""

    open_time: Times
    close_time: Times
    open: Prices
    high: Prices
    low: Prices
    close: Prices
    volume: Prices

    def __len__(self) -> int:
        return len(self.open_time)

    @classmethod
    def from_rows(cls, rows: Sequence[RawBar], period_s: int) -> Self:
        """Build a series from accepted bars of one native period, oldest first."""
        table = np.array([row[1:] for row in rows], dtype=np.float64).reshape(len(rows), 5)
        open_time = np.array([row.open_time for row in rows], dtype=np.int64)
        return cls.from_columns(open_time, table, period_s)

    @classmethod
    def from_columns(cls, open_time: Times, table: Prices, period_s: int) -> Self:
        """Build a series from open times and a (bars, 5) table: open, high, low, close, volume."""
        columns = (np.ascontiguousarray(table[:, column]) for column in range(5))
        return cls(open_time, compute_close_time(open_time, period_s), *columns)

    def select(self, mask: NDArray[np.bool_]) -> "Series":
        """Return the bars for which `mask` is true."""
        # An hourly run selects one bar of one, or none of none, some thousand times.
        if mask.all():
            return self
        return Series(*(getattr(self, name)[mask] for name in COLUMNS))

    def concatenate(self, later: "Series") -> "Series":
        """Return these bars followed by later ones."""
        if not len(self):
            return later
        return Series(*(np.concatenate([getattr(self, n), getattr(later, n)]) for n in COLUMNS))


COLUMNS = tuple(field.name for field in fields(Series))


@dataclass(frozen=True, slots=True)
class Funding:
    """Settlements of one perpetual, oldest first; `rate` is a fraction per settlement."""

    settled_at: Times
    rate: Prices

    @classmethod
    def from_pairs(cls, rows: Sequence[tuple[int, float]]) -> Self:
        """Build from (settled_at, rate) pairs, oldest first."""
        settled_at = np.array([row[0] for row in rows], dtype=np.int64)
        return cls(settled_at, np.array([row[1] for row in rows], dtype=np.float64))

    def select_between(self, after: int, until: int) -> "Funding":
        """Return the settlements in (after, until]."""
        chosen = slice(*np.searchsorted(self.settled_at, (after, until), side="right"))
        return Funding(self.settled_at[chosen], self.rate[chosen])

    def concatenate(self, later: "Funding") -> "Funding":
        """Return these settlements followed by later ones."""
        if not len(later.settled_at):
            return self
        return Funding(
            np.concatenate([self.settled_at, later.settled_at]),
            np.concatenate([self.rate, later.rate]),
        )

    def annualise(self, close_time: Times) -> Prices:
        """Return the annual funding at each close: 365 x the sum over 24 h, NaN if none settled."""
        # `fsum` rounds exactly, so a sum does not depend on how many settlements were loaded
        # before its window. Neighbouring closes often share a window, which is summed once.
        first = np.searchsorted(self.settled_at, close_time - DAY_S, side="right")
        last = np.searchsorted(self.settled_at, close_time, side="right")
        indexes = np.flatnonzero(mark_changes(first) | mark_changes(last))
        rates = self.rate.tolist()
        windows = zip(first[indexes].tolist(), last[indexes].tolist(), strict=True)
        sums = [fsum(rates[a:b]) if b > a else np.nan for a, b in windows]
        repeats = np.append(indexes[1:], len(close_time)) - indexes
        return FUNDING_DAYS * np.repeat(np.array(sums, dtype=np.float64), repeats)


def resample_bars(hourly: Series, period_s: int, *, joins_sundays: bool = False) -> Series:
    """Build longer bars on UTC boundaries, as `find_longer_close` assigns the hourly ones."""
    if not len(hourly):
        return NO_BARS
    prices = (hourly.open, hourly.high, hourly.low, hourly.close, hourly.volume)
    return Series(
        *build_longer_bars(hourly.close_time, prices, period_s, joins_sundays=joins_sundays)
    )


def validate_bars(
    rows: Sequence[RawBar], period_s: int, after: int | None = None
) -> tuple[list[RawBar], list[tuple[RawBar, str]]]:
    """Sort bars by open time; return the accepted ones, and the rejected ones with a reason.

    Sources turn what is not a number into NaN, and a time that cannot be read into NO_TIME.
    `after` is the open time of the last bar that was accepted earlier.
    """
    rows = sorted(rows, key=lambda row: row.open_time)
    # A time too large for 64 bits becomes another one that is out of range.
    times = [max(NO_TIME, min(row.open_time, MAX_TIME_S + 1)) for row in rows]
    open_time = np.array(times, dtype=np.int64)
    table = np.array([row[1:] for row in rows], dtype=np.float64).reshape(-1, 5)
    faults = find_value_faults(open_time, table)
    has_values = faults == 0
    faults[has_values] = find_spacing_faults(open_time[has_values], period_s, after)
    checked = list(zip(rows, faults.tolist(), strict=True))
    accepted = [row for row, fault in checked if fault == 0]
    return accepted, [(row, BAR_FAULTS[fault]) for row, fault in checked if fault != 0]


def find_settlement_fault(settled_at: int, rate: float) -> str | None:
    """Return why a settlement cannot be used, None if it can."""
    if not 0 <= settled_at <= MAX_TIME_S:
        return "a time is out of range"
    if not isfinite(rate):
        return "a rate is NaN or infinite"
    return "a rate is above 100 % of the position" if abs(rate) > MAX_RATE else None


def find_value_faults(open_time: Times, table: Prices) -> BarFaults:
    """Return the first fault of each bar by itself; the table has shape (bars, 5).

    Its columns are open, high, low, close and volume.
    """
    prices, (_, high, low, close, volume) = table[:, :4], table.T
    # In the order of BAR_FAULTS, from 1.
    rules = (
        (open_time < 0) | (open_time > MAX_TIME_S),
        ~np.isfinite(table).all(axis=1),
        (prices <= 0).any(axis=1),
        ((prices < MIN_VALUE) | (prices > MAX_PRICE)).any(axis=1),
        high < low,
        (close < low) | (close > high),
        volume < 0,
        (volume != 0) & ((volume < MIN_VALUE) | (volume > MAX_VOLUME)),
    )
    faults = np.zeros(len(table), dtype=np.int8)
    for fault, is_broken in reversed(list(enumerate(rules, start=1))):
        faults[is_broken] = fault
    return faults


def find_spacing_faults(open_time: Times, period_s: int, after: int | None = None) -> BarFaults:
    """Return the faults of bars that open too early after the last accepted one.

    The bars have no other fault and are sorted by open time. `after` is as for `validate_bars`.
    """
    faults = np.zeros(len(open_time), dtype=np.int8)
    # A bar that opens a period after its predecessor does so after every earlier bar too. For the
    # others it matters which of the bars before them are accepted, so they are checked one by one.
    before = np.concatenate([open_time[:1] - period_s, open_time[:-1]])
    if after is not None:
        before = np.maximum(before, after)
    for index in np.flatnonzero(open_time - before < period_s).tolist():
        if index > 0 and faults[index - 1] == 0:
            after = int(open_time[index - 1])
        opened, fault = int(open_time[index]), ""
        if after is not None and opened <= after:
            fault = "open time is repeated"
        elif after is not None and period_s == HOUR_S and opened - after < HOUR_S:
            fault = "opens less than an hour after its predecessor"
        # A step takes one bar per close: of two daily bars that would close at the same midnight,
        # the later one is rejected. The close depends on the open time in whole periods, rounded
        # up.
        elif after is not None and -opened // period_s >= -after // period_s:
            fault = "closes together with its predecessor"
        faults[index] = BAR_FAULTS.index(fault)
    return faults


NO_BARS = Series.from_rows([], HOUR_S)
NO_FUNDING = Funding.from_pairs([])
