"""The time axis of an asset's chart, and the lanes of its readings on it. Times are epoch ms."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import NamedTuple

from schemas.vocabulary import (
    HOUR_MS,
    READING_NAMES,
    TIMEFRAME_DURATIONS_S,
    IndicatorId,
    Reading,
    StoredKey,
    Timeframe,
)
from store.market_rows import ChangeRow

MAX_TICKS = 9
# The share of the axis after the last bar, so that a change at its close is seen.
ROOM = 0.02
HOURS_PER_TICK = (1, 3, 6, 12, 24, 48, 120, 168, 336)
MONTHS_PER_TICK = (1, 2, 3, 6, 12)


class Tick(NamedTuple):
    """A label of the axis and its position."""

    x: float
    label: str


class Span(NamedTuple):
    """A stretch of one reading; `since` is None if it began before the lane does."""

    reading: Reading
    start: float
    end: float
    since: int | None


class Lane(NamedTuple):
    """One indicator's readings over time; no spans if it has none."""

    indicator: IndicatorId
    spans: list[Span]


class TimeAxis:
    """Bars side by side, each one unit wide, so that hours without trading take no room."""

    def __init__(self, opens: Sequence[int], timeframe: Timeframe) -> None:
        self.opens = opens
        # The engine closes bars by the same rule: a bar that ends off its boundary closes at the
        # next one.
        period = TIMEFRAME_DURATIONS_S[timeframe] * 1000
        self.closes = [-(-(at + period) // period) * period for at in opens]

    @classmethod
    def build_regular(cls, begins: int, ends: int, timeframe: Timeframe) -> "TimeAxis":
        """Return the axis of a market that never closes, for an asset without prices."""
        period = TIMEFRAME_DURATIONS_S[timeframe] * 1000
        first = -(-begins // period) * period
        return cls(range(first, ends - period + 1, period), timeframe)

    def __len__(self) -> int:
        return len(self.opens)

    @property
    def size(self) -> int:
        """The length of the axis in bars, with room after the last one for the current readings."""
        return len(self) + max(1, round(ROOM * len(self)))

    def place(self, at: int) -> float:
        """Return the position of a time, between 0 and the number of bars."""
        index = bisect_left(self.closes, at)
        if index == len(self):
            return float(index)
        opened, closed = self.opens[index], self.closes[index]
        return round(index + max(0.0, (at - opened) / (closed - opened)), 3)

    def find_bar(self, closed_at: int) -> int | None:
        """Return the index of the bar that closes at a time."""
        index = bisect_left(self.closes, closed_at)
        return index if index < len(self) and self.closes[index] == closed_at else None

    def list_ticks(self) -> list[Tick]:
        """Return evenly spaced ticks at full hours, days or months, at most `MAX_TICKS`."""
        starts: list[int] = []
        for hours in HOURS_PER_TICK:
            starts = self._list_starts([at // (hours * HOUR_MS) for at in self.opens])
            if len(starts) <= MAX_TICKS:
                return [Tick(i, self._format_tick(i)) for i in starts]
        months = [_count_months(at) for at in self.opens]
        for number in MONTHS_PER_TICK:
            starts = self._list_starts([month // number for month in months])
            if len(starts) <= MAX_TICKS:
                break
        return [Tick(i, f"{_to_utc(self.opens[i]):%b %Y}") for i in starts]

    def _format_tick(self, index: int) -> str:
        """Return the date at the first bar of a day, the time at any other."""
        day, before = _to_utc(self.opens[index]), _to_utc(self.opens[index - 1])
        return f"{day:%H:%M}" if day.date() == before.date() else f"{day:%b} {day.day}"

    def _list_starts(self, periods: Sequence[int]) -> list[int]:
        """Return the bars that begin a new period; the first bar may lie inside one."""
        return [i for i, (one, next_) in enumerate(pairwise(periods), 1) if one != next_]


def build_lanes(
    rows: Sequence[ChangeRow],
    now: Mapping[StoredKey, Reading],
    indicators: Sequence[IndicatorId],
    axis: TimeAxis,
    begins: int,
    ends: int,
) -> list[Lane]:
    """Return a lane for each indicator.

    `rows` are all changes of one asset and timeframe from `begins` to `ends`, oldest first; `now`
    holds the readings at the end. A reading changes at the close of the bar that changed it.
    """
    lanes = []
    for indicator in indicators:
        own = [row for row in rows if row.indicator == indicator]
        lanes.append(Lane(indicator, _build_spans(own, now.get(indicator), axis, begins, ends)))
    return lanes


def _build_spans(
    rows: Sequence[ChangeRow], now: Reading | None, axis: TimeAxis, begins: int, ends: int
) -> list[Span]:
    # The reading before the first change is its `before`, None if it is the very first reading.
    before = rows[0].before if rows else None
    first = now if not rows else None if before is None else READING_NAMES[before]
    turns: list[tuple[int | None, Reading | None]] = [(None, first)]
    turns += [(row.close_time * 1000, READING_NAMES[row.after]) for row in rows]
    times = [begins, *(min(max(row.close_time * 1000, begins), ends) for row in rows)]
    positions = [*(axis.place(at) for at in times), float(axis.size)]
    return [
        Span(reading, start, end, since)
        for (since, reading), (start, end) in zip(turns, pairwise(positions), strict=True)
        if reading is not None and start < end
    ]


def _count_months(at: int) -> int:
    day = _to_utc(at)
    return day.year * 12 + day.month - 1


def _to_utc(at: int) -> datetime:
    return datetime.fromtimestamp(at / 1000, UTC)
