"""Judges the columns of one file of bars; docs/sources.md has the rules. Pure NumPy.

Times are epoch seconds UTC, oldest first.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import exp, log as ln
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compute.bars import (
    BAR_FAULTS,
    DAY_S,
    HOUR_S,
    BarFaults,
    Prices,
    Series,
    Times,
    find_spacing_faults,
)
from compute.trading_sessions import Calendar, find_trading_days, list_expected_bars
from schemas.longer_bars import compute_close_time
from schemas.vocabulary import TIMEFRAME_DURATIONS_S, Timeframe, format_instant

# The fewest distances between rows that show how far apart they are.
MIN_DISTANCES: Final = 3
# New shares for an old one, or old ones for a new one. The open after a split differs from the
# close before it by little more than a night's move; no split that is usual is nearer to 1.
USUAL_RATIOS: Final = (1.5, 2, 3, 4, 5, 6, 7, 8, 10, 15, 20, 25, 30, 40, 50, 100, 1000)
MAX_RATIO_DEVIATION: Final = 0.05
# The bars that show that a level lasts, and the longest pause of a session: a holiday's weekend.
LASTING_BARS: Final = 6
MAX_GAP_S: Final = 5 * DAY_S
# Funding above this a settlement is in percent: venues cap it at 4 % and less.
MAX_FUNDING_RATE: Final = 0.05


class Jump(NamedTuple):
    """A price that changes by nearly a usual ratio: before it, it was `factor` times as high."""

    time: int
    factor: float

    @property
    def split_option(self) -> str:
        """The day of the row and the new shares for an old one, as `signals import` takes them."""
        ratio = _find_nearest_ratio(abs(ln(self.factor)))
        return f"{self.day}:{ratio if self.factor > 1 else 1 / ratio:.6g}"

    @property
    def day(self) -> str:
        """The UTC day on which the row opens."""
        return format_instant(1000 * self.time)[:10]

    def describe(self) -> str:
        """Name the row and the ratio."""
        ratio = _find_nearest_ratio(abs(ln(self.factor)))
        kind, act = (f"{ratio:g}:1", "divide") if self.factor > 1 else (f"1:{ratio:g}", "multiply")
        return (
            f"the row with ts {self.time} ({format_instant(1000 * self.time)}) opens at "
            f"{1 / self.factor:.4g} times the close before it, as after a split of {kind}; "
            f"{act} all prices before it by {ratio:g}"
        )


def describe_wrong_times(session: Calendar, times: Times, timeframe: Timeframe) -> str:
    """Return why rows cannot be bars of a timeframe, and the remedy; empty if they can be."""
    if len(times) and np.count_nonzero(times % 60 == 59) * 2 > len(times):
        wanted = f"the opening time, so subtract {TIMEFRAME_DURATIONS_S[timeframe] - 1} from each"
        if timeframe == "1d" and session != "24x7":
            wanted = "00:00 UTC of the trading day"
        return f"rows are stamped at their close (the first has ts {times[0]}); ts must be {wanted}"
    period_s, distances = TIMEFRAME_DURATIONS_S[timeframe], np.diff(times)
    distances = distances[distances > 0]
    is_native = np.count_nonzero(distances == period_s) * 2 >= len(distances)
    if is_native or len(distances) < MIN_DISTANCES:
        return ""
    spacing_s = find_spacing(times)
    # Sessions have pauses, and days have 23 or 25 hours where clocks change.
    if spacing_s == period_s or (timeframe == "1d" and abs(spacing_s - period_s) <= HOUR_S):
        return ""
    other = {HOUR_S: "rename it to TICKER_1h.csv", DAY_S: "rename it to TICKER_1d.csv"}
    remedy = other.get(spacing_s, f"write a file of {timeframe} bars instead")
    return (
        f"most rows are {spacing_s} s apart, but {timeframe} bars are {period_s} s apart; {remedy}"
    )


def find_spacing(times: Times) -> int:
    """Return how many seconds most rows are apart, 0 if there are fewer than two times."""
    distances = np.diff(times)
    found, counts = np.unique(distances[distances > 0], return_counts=True)
    return int(found[counts.argmax()]) if len(found) else 0


def find_opens(session: Calendar, times: Times, timeframe: Timeframe) -> Times:
    """Return the open times of bars: of daily ones 00:00 UTC of their trading day.

    Only a coin's day ends a day after its stamp, whenever that is.
    """
    if timeframe == "1h" or session == "24x7":
        return times
    return find_trading_days(session, times) * DAY_S


def find_ends(session: Calendar, times: Times, period_s: int) -> Times:
    """Return when bars of a period end: at the latest with the session of their trading day."""
    ends = times + period_s
    if session == "24x7" or not len(times):
        return ends
    expected = list_expected_bars(
        session, int(times.min()) - MAX_GAP_S, int(times.max()) + MAX_GAP_S
    )
    days = find_trading_days(session, times)
    places = np.searchsorted(expected.day, days, side="right") - 1
    is_known = (places >= 0) & (expected.day[places] == days)
    return np.where(is_known, np.minimum(ends, expected.close_time[places]), ends)


def is_of_another_market(session: Calendar, times: Times) -> bool:
    """Return whether hourly bars of a stock go on over weekends, so no exchange's session cut them.

    Trading before and after the bell rests on Saturdays as well.
    """
    on_saturdays = int(np.count_nonzero((times // DAY_S + 3) % 7 == 5))
    return session not in ("24x7", "24x5") and 10 * on_saturdays > len(times)


def find_session_faults(session: Calendar, times: Times, timeframe: Timeframe) -> BarFaults:
    """Return the faults of bars that open while their session is closed."""
    faults = np.zeros(len(times), dtype=np.int8)
    if session == "24x7" or not len(times):
        return faults
    expected = list_expected_bars(session, int(times[0]) - DAY_S, int(times[-1]) + 2 * DAY_S)
    if timeframe == "1d":
        is_outside = ~np.isin(times // DAY_S, expected.day)
    else:
        hours = times // HOUR_S * HOUR_S
        places = np.searchsorted(expected.open_time, hours).clip(max=len(expected) - 1)
        is_early = times < expected.begin_time[places]
        # A bar of the clock hour in which the session opens has its first half hour, unless another
        # one begins with the opening: then the earlier one was traded before it.
        is_followed = np.append((hours[1:] == hours[:-1]) & ~is_early[1:], np.False_)
        is_outside = (expected.open_time[places] != hours) | (is_early & is_followed)
    faults[is_outside] = BAR_FAULTS.index("opens while its session is closed")
    return faults


def mark_without_volume(volume: Prices) -> NDArray[np.bool_]:
    """Return where a vendor wrote that there is no volume."""
    is_without: NDArray[np.bool_] = np.isnan(volume) | (volume == -1)
    return is_without


def find_volume_faults(volume: Prices) -> BarFaults:
    """Return the faults of missing volumes; none if all are missing, as in a market without any."""
    faults, is_missing = np.zeros(len(volume), dtype=np.int8), mark_without_volume(volume)
    if not is_missing.all():
        faults[is_missing] = BAR_FAULTS.index("a number is NaN or infinite")
        faults[volume < 0] = BAR_FAULTS.index("volume is negative")
    return faults


def find_conflict(times: Times, columns: Sequence[Prices]) -> int | None:
    """Return the index of the first row that has its predecessor's time and other values."""
    repeats = np.flatnonzero(times[1:] == times[:-1])
    differs = np.zeros(len(repeats), dtype=np.bool_)
    for column in columns:
        differs |= column[repeats + 1] != column[repeats]
    return int(repeats[differs][0]) + 1 if differs.any() else None


def list_jumps(
    times: Times, opened: Prices, closed: Prices, max_gap_s: int = MAX_GAP_S
) -> Iterator[Jump]:
    """Yield the bars that open nearly a usual ratio above or below the close before them.

    Not those of single wrong prices, after which the level is the one before again, and not those
    that open more than `max_gap_s` later, because the market itself may have moved so.
    """
    factor, gaps = closed[:-1] / opened[1:], np.diff(times)
    least = min(USUAL_RATIOS) * (1 - MAX_RATIO_DEVIATION)
    is_far = (factor > least) | (factor < 1 / least)
    for index in np.flatnonzero(is_far & (gaps <= max_gap_s)).tolist():
        distance, later = abs(ln(factor[index])), closed[index + 1 : index + 1 + LASTING_BARS]
        is_usual = abs(exp(distance) / _find_nearest_ratio(distance) - 1) <= MAX_RATIO_DEVIATION
        # Nearer to the new level than to the old one.
        if is_usual and (abs(np.log(later / opened[index + 1])) < distance / 2).all():
            yield Jump(int(times[index + 1]), float(factor[index]))


def _find_nearest_ratio(distance: float) -> float:
    return min(USUAL_RATIOS, key=lambda ratio: abs(distance - ln(ratio)))


def list_holes(session: Calendar, times: Times, timeframe: Timeframe) -> Times:
    """Return the closes between the first and the last bar that the session expects without a bar.

    A bar that opens off the hour is the bar of the clock hour in which it opens.
    """
    period_s = TIMEFRAME_DURATIONS_S[timeframe]
    slots = times // period_s
    holes = [times[:0]]
    for index in np.flatnonzero(np.diff(slots) > 1).tolist():
        after, until = (slots[index] + 1) * period_s, slots[index + 1] * period_s
        expected = list_expected_bars(session, int(after), int(until))
        if timeframe == "1h":
            holes.append(expected.close_time)
        else:
            days = np.unique(expected.day)
            days = days[(days > slots[index]) & (days < slots[index + 1])]
            holes.append((days + 1) * DAY_S)
    return np.concatenate(holes)


class Verdict(NamedTuple):
    """The findings on a file's bars, apart from rejected rows.

    `wrong_times` says why its rows cannot be bars of the timeframe, `conflict_at` is a time of
    which rows differ. Either ends the judgement.
    """

    wrong_times: str = ""
    is_of_another_market: bool = False
    conflict_at: int | None = None
    jumps: tuple[Jump, ...] = ()


def judge_bars(bars: "FileBars", session: Calendar, rejected: "RejectedRows") -> Verdict:
    """Judge bars whose values can be right; reject some, and record which bars are missing."""
    native = bars.timeframe
    if fault := describe_wrong_times(session, bars.open_time, native):
        return Verdict(fault)
    bars.open_time = find_opens(session, bars.open_time, native)
    bars.sort()
    is_other = native == "1h" and is_of_another_market(session, bars.open_time)
    if not is_other:
        bars.reject(rejected, find_session_faults(session, bars.open_time, native))
    # No reading depends on a volume.
    conflict = find_conflict(bars.open_time, bars.columns[:4])
    if conflict is not None:
        return Verdict("", is_other, int(bars.open_time[conflict]))
    bars.reject(rejected, find_spacing_faults(bars.open_time, bars.period_s))
    max_gap_s = MAX_GAP_S if session != "24x7" else bars.period_s
    jumps = list_jumps(bars.open_time, bars.columns[0], bars.columns[3], max_gap_s)
    bars.missing = list_holes(session, bars.open_time, native)
    return Verdict("", is_other, None, tuple(jumps))


class FileBars:
    """The bars of one file as columns, oldest first; closes are computed to save memory."""

    def __init__(self, open_time: Times, columns: Sequence[Prices], timeframe: Timeframe) -> None:
        """Take the columns open, high, low, close and volume."""
        self.open_time = open_time
        self.columns: Final = list(columns)
        self.timeframe: Final = timeframe
        self.period_s: Final = TIMEFRAME_DURATIONS_S[timeframe]
        self.missing = open_time[:0]

    def sort(self) -> None:
        """Sort the bars by open time; bars that open together keep their order."""
        if (self.open_time[1:] < self.open_time[:-1]).any():
            self.keep(np.argsort(self.open_time, kind="stable"))

    def keep(self, chosen: NDArray[np.bool_] | NDArray[np.intp]) -> None:
        """Keep the chosen bars, column by column, so that no second table is in memory."""
        self.open_time = self.open_time[chosen]
        for index, column in enumerate(self.columns):
            self.columns[index] = column[chosen]

    def reject(self, rejected: "RejectedRows", faults: BarFaults) -> None:
        """Count the bars that have a fault, and keep the others."""
        if faults.any():
            rejected.add(self.open_time, faults)
            self.keep(faults == 0)

    def select_between(self, after: int, until: int) -> Series:
        """Return the bars that close in (after, until]."""
        chosen = slice(self._count_closed(after), self._count_closed(until))
        open_time = self.open_time[chosen]
        close_time = compute_close_time(open_time, self.period_s)
        return Series(open_time, close_time, *(column[chosen] for column in self.columns))

    def select_missing(self, after: int, until: int) -> Times:
        """Return the closes that lack a bar before the bars that close in (after, until]."""
        last_closes = (self._find_close(self._count_closed(at) - 1) for at in (after, until))
        begin, end = (-1 if close is None else close for close in last_closes)
        return self.missing[(self.missing > begin) & (self.missing <= end)]

    def find_next_close(self, after: int) -> int | None:
        """Return the close of the first bar that closes after a time."""
        return self._find_close(self._count_closed(after))

    def find_last_close(self) -> int | None:
        """Return the close of the last bar."""
        return self._find_close(len(self.open_time) - 1)

    def _find_close(self, index: int) -> int | None:
        if not 0 <= index < len(self.open_time):
            return None
        return int(compute_close_time(self.open_time[index : index + 1], self.period_s)[0])

    def _count_closed(self, until: int) -> int:
        # A bar closes at the first full period that is at least a period after it opens.
        last_open = (until // self.period_s - 1) * self.period_s
        return int(np.searchsorted(self.open_time, last_open, side="right"))


class RejectedRows:
    """Counts the rejected rows of a file, with the earliest time of each reason."""

    def __init__(self) -> None:
        self.counts: Final[Counter[str]] = Counter()
        self.first_times: Final[dict[str, int]] = {}
        self.unreadable: Final[dict[int, str]] = {}

    def add(self, times: Times, faults: BarFaults) -> None:
        """Count rows by the index of their fault in BAR_FAULTS; 0 is none."""
        for fault in np.unique(faults[faults != 0]).tolist():
            is_faulty = faults == fault
            self.add_row(int(times[is_faulty].min()), BAR_FAULTS[fault], int(is_faulty.sum()))

    def add_row(self, time: int, reason: str, rows: int = 1) -> None:
        """Count some rows that have the same fault, by the earliest of their times."""
        self.counts[reason] += rows
        self.first_times[reason] = min(time, self.first_times.get(reason, time))
