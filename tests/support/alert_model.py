"""A slow, obvious second implementation of the alert engines and their publisher.

Written only from docs/indicators.md: it steps one engine, one bar and one hour at a time, and
recomputes from the start instead of carrying state.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

HOUR_S = 3600
CANDLE_S = {"4h": 4 * HOUR_S, "1d": 24 * HOUR_S}
NO_READING = None


class ModelBar(NamedTuple):
    """A bar of one sequence: the hour of the run that steps it, its prices and its reading."""

    hour: int
    close_time: int
    high: float
    low: float
    close: float
    reading: int | None


class FiredAction(NamedTuple):
    close_time: int
    action: str
    price: float


class PublishedAlert(NamedTuple):
    hour: int
    close_time: int
    action: str
    price: float


def compute_average_true_ranges(bars: Sequence[ModelBar]) -> list[float | None]:
    """Return Wilder's ATR(14) after each bar, None before the fourteenth."""
    ranges = [bar.high - bar.low for bar in bars[:1]]
    for before, bar in pairwise(bars):
        ranges.append(max(bar.high, before.close) - min(bar.low, before.close))
    total = 0.0
    for one in ranges[:14]:
        total += one
    averages: list[float | None] = [None] * len(ranges[:13])
    average = total / 14
    for at in range(13, len(ranges)):
        if at > 13:
            average += (ranges[at] - average) / 14
        averages.append(average)
    return averages


def run_engine(bars: Sequence[ModelBar]) -> list[FiredAction]:
    """Step one engine over all bars of its sequence."""
    averages = compute_average_true_ranges(bars)
    position, entry, barred = "flat", 0, "none"
    out = []
    for at, bar in enumerate(bars):
        if bar.reading is NO_READING:
            continue
        side = {1: "long", -1: "short", 0: "none"}[bar.reading]
        if side != barred:
            barred = "none"
        if position != "flat":
            stop = _compute_stop(position, bars[entry : at + 1], averages[entry : at + 1])
            is_long = position == "long"
            if stop is not None and (bar.close < stop if is_long else bar.close > stop):
                out.append(FiredAction(bar.close_time, "CLOSE", bar.close))
                if side == position:
                    barred = position
                position = "flat"
                continue
        if side == "none" and position != "flat":
            out.append(FiredAction(bar.close_time, "CLOSE", bar.close))
            position = "flat"
        elif side in ("long", "short") and side not in (position, barred):
            out.append(
                FiredAction(bar.close_time, "LONG" if side == "long" else "SHORT", bar.close)
            )
            position, entry = side, at
    return out


def _compute_stop(
    position: str, since: Sequence[ModelBar], averages: Sequence[float | None]
) -> float | None:
    """Return the stop, recomputed from the entry bar on."""
    best, multiple = (max, -3) if position == "long" else (min, 3)
    stops = [
        best(bar.close for bar in since[: at + 1]) + multiple * average
        for at, average in enumerate(averages)
        if average is not None
    ]
    return best(stops) if stops else None


@dataclass
class ModelPublisher:
    """The publisher of one engine, called for every hour, with the time (ms) of its rows."""

    timeframe: str
    published: list[PublishedAlert] = field(default_factory=list)
    pending: list[FiredAction] = field(default_factory=list)
    times: list[tuple[str, int]] = field(default_factory=list)

    def run_hour(self, hour: int, new: Sequence[FiredAction], time: int) -> None:
        ripe = [one for one in self.pending if not self._is_shut(one.action, time)]
        for one in sorted([*ripe, *new]):
            if one in ripe and one not in self.pending:
                continue  # replaced by another publication in this hour
            if self._is_shut(one.action, time):
                self.pending = [held for held in self.pending if held.action != one.action] + [one]
            else:
                self.published.append(PublishedAlert(hour, *one))
                ends = (at + self._window for last, at in self.times if last == one.action)
                self.times.append((one.action, max(time, *ends, 0)))
                self.pending = []

    def _is_shut(self, action: str, time: int) -> bool:
        # A row may be dated two minutes after its run.
        return any(last == action and time + 120_000 < at + self._window for last, at in self.times)

    @property
    def _window(self) -> int:
        return 20 * CANDLE_S[self.timeframe] * 1000


def find_nominal_time(hour: int) -> int:
    return (hour + 180) * 1000


def run_publisher(
    timeframe: str,
    bars: Sequence[ModelBar],
    until: int,
    find_time: Callable[[int], int] = find_nominal_time,
) -> list[PublishedAlert]:
    """Run the publisher for every hour from the first bar to the last; return its alerts.

    `find_time` returns the time (epoch ms) at which the rows of an hour are written.
    """
    by_close = {one.close_time: one for one in run_engine(bars)}
    at_hour: dict[int, list[FiredAction]] = {}
    for bar in bars:
        if bar.close_time in by_close:
            at_hour.setdefault(bar.hour, []).append(by_close[bar.close_time])
    publisher = ModelPublisher(timeframe)
    for hour in range(bars[0].hour, until + 1, HOUR_S) if bars else ():
        publisher.run_hour(hour, at_hour.get(hour, []), find_time(hour))
    return publisher.published


def merge_published(
    outs: Mapping[tuple[str, str, str], Sequence[PublishedAlert]],
) -> list[tuple[object, ...]]:
    """Merge the alerts of several engines; keys are (ticker, timeframe, indicator) in order."""
    places = {key: at for at, key in enumerate(outs)}
    rows = [(out.hour, out.close_time, places[key], key, out) for key in outs for out in outs[key]]
    return [(*key, *out) for *_, key, out in sorted(rows, key=lambda row: row[:3])]
