"""The chart of an asset: its candles above the lanes of its readings, as SVG and as JSON."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from schemas.vocabulary import (
    ACTION_DIRECTIONS,
    COOLDOWN_CANDLES,
    HOUR_MS,
    READING_NAMES,
    RUN_DELAY_MS,
    TIMEFRAME_DURATIONS_S,
    Direction,
    find_latest_run,
)
from serving.prices import BarColumns
from store.market_rows import AlertRow, ChangeRow
from web.pages import format_minute
from web.prices import format_price
from web.timeline import Lane, Tick, TimeAxis

# Heights in pixels. The width of a bar is in units that the browser stretches to the page.
PRICE_HEIGHT, PADDING, VOLUME_HEIGHT = 260, 18, 36
LANE_HEIGHT, LANE_STEP = 16, 22
BAR_WIDTH = 10
MARK_STEP, ALERT_STEP = 9, 5
PRICE_TICKS = 7
# Enough for every price of the universe, and half as long as the shortest exact text.
PRICE_DIGITS = 8


class Mark(NamedTuple):
    """A change or alert at the close of the bar that fired it.

    `bar` is None if the chart has no such bar. `level` counts the earlier marks on the same side
    of that bar.
    """

    kind: Literal["change", "alert", "held"]
    direction: Direction
    indicator: str
    at: int
    x: float
    bar: int | None
    level: int
    text: str

    @property
    def shape(self) -> str:
        """The name of its symbol."""
        prefix = "" if self.kind == "change" else "alert-"
        return prefix + {"bullish": "up", "bearish": "down"}.get(self.direction, "flat")


@dataclass(frozen=True)
class Chart:
    """The parts of a chart; positions on the axis are in bars, heights in pixels.

    `bars` is None without prices. `begins` is where the lanes begin.
    """

    axis: TimeAxis
    bars: BarColumns | None
    lanes: Sequence[Lane]
    marks: Sequence[Mark]
    names: Mapping[str, str]
    begins: int

    @property
    def price_height(self) -> int:
        """The height of the pane above the lanes."""
        return PRICE_HEIGHT if self.bars else 0

    @property
    def ticks(self) -> list[Tick]:
        """The labels of the time axis; `x` is a percentage."""
        return [Tick(self.to_percent(tick.x), tick.label) for tick in self.axis.list_ticks()]

    def to_percent(self, x: float) -> float:
        """Return a position as a percentage of the chart's width."""
        return round(100 * x / self.axis.size, 2)

    def list_price_ticks(self) -> list[tuple[float, str]]:
        """Return the height and label of round prices."""
        low, high = self._price_range
        step = find_step(high - low)
        decimals = max(0, -math.floor(math.log10(step)))
        first = math.ceil(low / step)
        prices = [step * n for n in range(first, math.floor(high / step) + 1)]
        return [(self.find_y(price), f"{price:,.{decimals}f}") for price in prices]

    @cached_property
    def _price_range(self) -> tuple[float, float]:
        assert self.bars
        low, high = min(self.bars.lows), max(self.bars.highs)
        # A market that has not moved still needs a range.
        return (low, high) if low < high else (low * 0.99, high * 1.01)

    def find_y(self, price: float) -> float:
        """Return the height of a price from the top."""
        low, high = self._price_range
        room = PRICE_HEIGHT - 2 * PADDING
        return round(PADDING + (high - price) / (high - low) * room, 1)

    def find_mark_y(self, mark: Mark) -> float:
        """Return the height of a mark: bullish ones stand below their bar, the others above it."""
        assert self.bars
        assert mark.bar is not None
        away = PADDING / 2 + MARK_STEP * mark.level + ALERT_STEP * (mark.kind != "change")
        if mark.direction == "bullish":
            return min(self.find_y(self.bars.lows[mark.bar]) + away, PRICE_HEIGHT - 5)
        return max(self.find_y(self.bars.highs[mark.bar]) - away, 5)

    def draw_candles(self, *, rising: bool) -> str:
        """Return the path of the candles that closed higher, or of the others."""
        assert self.bars
        path = []
        for i, (open_, high, low, close) in enumerate(zip(*self.bars[1:5], strict=True)):
            if (close >= open_) == rising:
                top, bottom = self.find_y(max(open_, close)), self.find_y(min(open_, close))
                x = BAR_WIDTH * i
                path.append(f"M{x + 5} {self.find_y(high)}V{self.find_y(low)}")
                path.append(f"M{x + 2} {top}h6V{bottom}h-6z")
        return "".join(path)

    def draw_line(self) -> str:
        """Return the path through the closes, for screens too narrow for candles."""
        assert self.bars
        points = [f"{BAR_WIDTH * i + 5} {self.find_y(c)}" for i, c in enumerate(self.bars.closes)]
        return "M" + "L".join(points)

    def draw_volumes(self) -> str:
        """Return the path of the volumes at the bottom of the pane."""
        assert self.bars
        scale = VOLUME_HEIGHT / (max(self.bars.volumes) or 1)
        return "".join(
            f"M{BAR_WIDTH * i + 2} {PRICE_HEIGHT}h6v-{round(volume * scale, 1)}h-6z"
            for i, volume in enumerate(self.bars.volumes)
        )

    def to_json(self) -> str:
        """Return the chart for the script, which draws it again at every zoom."""
        places: dict[str, int] = {lane.indicator: number for number, lane in enumerate(self.lanes)}
        document = {
            "size": self.axis.size,
            "opens": [at // 1000 for at in self.axis.opens],
            "closes": [at // 1000 for at in self.axis.closes],
            "bars": self.bars and [[_shorten(v) for v in column] for column in self.bars[1:]],
            "lanes": [
                {"name": self.names[lane.indicator], "spans": [span[:3] for span in lane.spans]}
                for lane in self.lanes
            ],
            "marks": [
                {
                    **{"kind": mark.kind, "direction": mark.direction, "shape": mark.shape},
                    **{"x": mark.x, "bar": mark.bar, "level": mark.level, "text": mark.text},
                    "lane": places.get(mark.indicator),
                }
                for mark in self.marks
            ],
        }
        return json.dumps(document, separators=(",", ":"))


def build_marks(
    changes: Sequence[ChangeRow],
    alerts: Sequence[AlertRow],
    axis: TimeAxis,
    names: Mapping[str, str],
    begins: int,
) -> list[Mark]:
    """Return the marks of changes and alerts from `begins` (epoch ms) on, oldest first.

    `alerts` include those of one cooldown before `begins`, newest first.
    """
    held = find_held_alerts(alerts)
    described = [_describe_change(row, names) for row in changes if row.before is not None]
    described += [_describe_alert(row, names, is_held=row.id in held) for row in alerts]
    levels: dict[tuple[int | None, bool], int] = {}
    marks = []
    for mark in sorted(described, key=lambda mark: mark.at):
        if mark.at < begins or not len(axis) or mark.at > axis.closes[-1]:
            continue
        bar = axis.find_bar(mark.at)
        side = (bar, mark.direction == "bullish")
        levels[side] = level = levels.get(side, -1) + 1
        marks.append(mark._replace(x=axis.place(mark.at), bar=bar, level=level))
    return marks


def find_held_alerts(alerts: Sequence[AlertRow]) -> set[str]:
    """Return the ids of the alerts that the cooldown held; `alerts` are newest first.

    The same action was published before, and its cooldown had not ended when the alert fired.
    """
    return {row.id for row, until in _pair_with_cooldowns(alerts) if row.close_time * 1000 < until}


def _pair_with_cooldowns(alerts: Sequence[AlertRow]) -> Iterator[tuple[AlertRow, int]]:
    """Yield each alert with the end (epoch ms) of the cooldown before it, 0 if there is none."""
    ends: dict[tuple[str, str, str], int] = {}
    for row in reversed(alerts):
        cell = (row.indicator, row.timeframe, row.action)
        yield row, ends.get(cell, 0)
        hour = find_latest_run(row.created_at) - RUN_DELAY_MS
        ends[cell] = hour + COOLDOWN_CANDLES * TIMEFRAME_DURATIONS_S[row.timeframe] * 1000


def _describe_change(row: ChangeRow, names: Mapping[str, str]) -> Mark:
    assert row.before is not None
    before, after = READING_NAMES[row.before], READING_NAMES[row.after]
    text = f"{names.get(row.indicator, row.indicator)}: {before} → {after}"
    return _create_mark("change", after, row, text)


def _describe_alert(row: AlertRow, names: Mapping[str, str], *, is_held: bool) -> Mark:
    text = f"Alert {row.action} of {names.get(row.indicator, row.indicator)}"
    if is_held:
        hours = round((row.created_at - row.close_time * 1000) / HOUR_MS)
        text += f", held {hours} hours until {format_minute(row.created_at)}"
    kind: Literal["alert", "held"] = "held" if is_held else "alert"
    return _create_mark(kind, ACTION_DIRECTIONS[row.action], row, text)


def _create_mark(
    kind: Literal["change", "alert", "held"],
    direction: Direction,
    row: ChangeRow | AlertRow,
    text: str,
) -> Mark:
    at = row.close_time * 1000
    text = f"{format_minute(at)}\n{text}\nPrice {format_price(row.price)}"
    return Mark(kind, direction, row.indicator, at, 0.0, None, 0, text)


def find_step(size: float) -> float:
    """Return the step of 1, 2 or 5 times a power of ten that gives about `PRICE_TICKS` ticks."""
    rough = size / PRICE_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return power * next((n for n in (1, 2, 5) if n * power >= rough), 10)


def _shorten(value: float) -> float:
    return float(f"{value:.{PRICE_DIGITS}g}")
