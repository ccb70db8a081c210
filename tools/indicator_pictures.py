"""Draw what each indicator makes of the same prices: `python -m tools.indicator_pictures`.

The service's own indicators step a fixed, invented path of prices. The pictures are fragments of
SVG in web/diagrams, which docs.css colours.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from compute.indicators.contract import BEARISH, BULLISH, NEUTRAL, WARMUP, Bar, Indicator
from compute.indicators.registry import INDICATORS

FOLDER = Path(__file__).parents[1] / "web" / "diagrams"
NAMES = {BULLISH: "bullish", NEUTRAL: "neutral", BEARISH: "bearish"}
# (bars, change of the log price per bar): a rise, a rest, a fall, a sharp fall, a rebound, a range.
LEGS = ((45, 0.0062), (22, 0.0), (30, -0.0055), (9, -0.016), (34, 0.0072), (30, -0.0004))
NOISE, PULL, RANGE = 0.012, 0.8, 0.006
START_PRICE = 100.0

WIDTH, MARGIN = 640.0, 8.0
PRICE_TOP, PRICE_HEIGHT = 10.0, 190.0
SCORE_TOP, SCORE_HEIGHT = 236.0, 90.0
RIBBON_HEIGHT, MIN_LABEL_WIDTH = 24.0, 78.0
# The share of a panel's range that stays empty above and below.
PADDING = 0.06


class Panel(NamedTuple):
    """A line below the prices: its label, the raw value, the thresholds, and a conversion."""

    label: str
    value: str
    limits: tuple[float, ...]
    convert: Callable[[float], float] = float


class Picture(NamedTuple):
    """The raw values drawn over the prices, and the panel below them, if there is one."""

    overlays: tuple[str, ...]
    panel: Panel | None


PICTURES: Mapping[str, Picture] = {
    "trend_oracle": Picture((), Panel("score", "s", (0.30, -0.30))),
    "bayesian_trend": Picture(
        (),
        Panel(
            "chance of a rising trend in %",
            "z",
            (80.0, 20.0),
            lambda z: 50.0 * (1.0 + math.erf(z / math.sqrt(2.0))),
        ),
    ),
    "reversals": Picture(("upper", "lower"), Panel("relative strength (RSI)", "rsi", (70, 30))),
    "ceres": Picture(("highest40", "lowest40"), None),
    "enzo": Picture(("kama",), Panel("slope of the average", "s", (0.50, -0.50))),
    "llnr": Picture((), Panel("slope of the line", "s", (0.75, -0.75))),
    "perpkit": Picture(("line",), None),
}


def main() -> None:
    """Write all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for indicator in INDICATORS:
        get_path(indicator).write_text(draw_picture(indicator))


def get_path(indicator: Indicator) -> Path:
    """Return the file of an indicator's picture."""
    return FOLDER / f"{indicator.id}.svg"


def build_bars() -> list[Bar]:
    """Return the invented bars of one asset; the first of them only warm the indicators up."""
    shown = sum(bars for bars, _ in LEGS)
    steps = [0.0] * WARMUP + [step for bars, step in LEGS for _ in range(bars)]
    noise = _list_noise(2 * (WARMUP + shown))
    closes, level, distance = [math.log(START_PRICE)], math.log(START_PRICE), 0.0
    for step in steps:
        level += step
        # The noise is pulled back to the path, so that it hides no leg.
        distance = PULL * distance + NOISE * next(noise)
        closes.append(level + distance)
    bars = []
    for before, close in pairwise(closes):
        reach = RANGE * (1.0 + abs(next(noise)))
        high, low = max(before, close) + reach, min(before, close) - reach
        bars.append(_make_bar(before, high, low, close))
    return bars


def _make_bar(*log_prices: float) -> Bar:
    opened, high, low, close = (np.array([math.exp(value)]) for value in log_prices)
    return Bar(opened, high, low, close, np.array([1.0]), np.array([np.nan]))


def _list_noise(count: int) -> Iterator[float]:
    """Yield fixed pseudo-random numbers from -1 to 1 (a linear congruential generator)."""
    state = 20
    for _ in range(count):
        state = (1103515245 * state + 12345) % 2**31
        yield state / 2**30 - 1.0


def draw_picture(indicator: Indicator) -> str:
    """Return the SVG of an indicator's readings, prices and values."""
    bars = build_bars()
    readings, values = run_indicator(indicator, bars)
    picture, shown = PICTURES[indicator.id], bars[WARMUP:]
    closes = [float(bar.close[0]) for bar in shown]
    overlays = [values[name] for name in picture.overlays]
    top = SCORE_TOP + SCORE_HEIGHT if picture.panel else PRICE_TOP + PRICE_HEIGHT
    ribbon = top + 12.0
    height = ribbon + RIBBON_HEIGHT + 4.0
    runs = list(_list_runs(readings))
    parts = [
        *_draw_bands(runs, len(readings), ribbon - 6.0),
        *_draw_prices(closes, overlays),
        *(_draw_panel(picture.panel, values[picture.panel.value]) if picture.panel else ()),
        *_draw_ribbon(runs, len(readings), ribbon),
    ]
    label = f"{indicator.name}: {_describe_runs(runs)}"
    head = (
        f'<svg class="picture" role="img" aria-label="{label}" viewBox="0 0 {WIDTH:g} {height:g}">'
    )
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def run_indicator(
    indicator: Indicator, bars: Sequence[Bar]
) -> tuple[list[int], dict[str, list[float]]]:
    """Return the readings and raw values of the bars after the warm-up."""
    columns = Bar(*map(np.stack, zip(*bars, strict=True)))
    _, readings = indicator.step(indicator.start(1), columns)
    values = indicator.advance(indicator.start(1), columns)
    shown = {name: value[WARMUP:, 0].tolist() for name, value in values.items()}
    return readings[WARMUP:, 0].tolist(), shown


def _list_runs(readings: Sequence[int]) -> Iterator[tuple[str, int, int]]:
    """Yield each stretch of equal readings as (word, first bar, bar after the last)."""
    start = 0
    for reading, group in groupby(readings):
        end = start + len(list(group))
        yield NAMES[reading], start, end
        start = end


def _describe_runs(runs: Sequence[tuple[str, int, int]]) -> str:
    return ", then ".join(word for word, _, _ in runs)


def _x(place: float, count: int) -> float:
    return MARGIN + (WIDTH - 2 * MARGIN) * place / count


def _draw_bands(runs: Sequence[tuple[str, int, int]], count: int, bottom: float) -> Iterator[str]:
    for word, start, end in runs:
        if word != NAMES[NEUTRAL]:
            left, right = _x(start, count), _x(end, count)
            yield (
                f'<rect class="band {word}" x="{left:.1f}" y="0" width="{right - left:.1f}" '
                f'height="{bottom:.1f}"/>'
            )


def _draw_ribbon(runs: Sequence[tuple[str, int, int]], count: int, top: float) -> Iterator[str]:
    for word, start, end in runs:
        left, right = _x(start, count), _x(end, count)
        yield (
            f'<rect class="run {word}" x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" '
            f'height="{RIBBON_HEIGHT:g}"/>'
        )
        if right - left >= MIN_LABEL_WIDTH:
            yield (
                f'<text class="{word}" x="{(left + right) / 2:.1f}" y="{top + 17:.1f}" '
                f'text-anchor="middle">{word}</text>'
            )


def _draw_prices(closes: list[float], overlays: list[list[float]]) -> Iterator[str]:
    scale = _build_scale([*closes, *(v for one in overlays for v in one)], PRICE_TOP, PRICE_HEIGHT)
    for overlay in overlays:
        yield _draw_line("aid", overlay, scale)
    yield _draw_line("price", closes, scale)
    yield f'<text x="{MARGIN + 4:g}" y="{PRICE_TOP + 10:g}">price</text>'


def _draw_panel(panel: Panel, values: list[float]) -> Iterator[str]:
    converted = [panel.convert(value) for value in values]
    scale = _build_scale([*converted, *panel.limits], SCORE_TOP, SCORE_HEIGHT)
    for limit in panel.limits:
        y = scale(limit)
        yield f'<path class="limit" d="M{MARGIN:g} {y:.1f}H{WIDTH - MARGIN:g}"/>'
        yield (
            f'<text class="figure" x="{WIDTH - MARGIN:g}" y="{y - 4:.1f}" '
            f'text-anchor="end">{limit:g}</text>'
        )
    yield _draw_line("score", converted, scale)
    yield f'<text x="{MARGIN + 4:g}" y="{SCORE_TOP - 8:g}">{panel.label}</text>'


def _build_scale(values: Sequence[float], top: float, height: float) -> Callable[[float], float]:
    low, high = min(values), max(values)
    padding = PADDING * (high - low)
    low, high = low - padding, high + padding
    return lambda value: top + height * (high - value) / (high - low)


def _draw_line(kind: str, values: Sequence[float], scale: Callable[[float], float]) -> str:
    points = " ".join(
        f"{_x(place + 0.5, len(values)):.1f},{scale(value):.1f}"
        for place, value in enumerate(values)
    )
    return f'<polyline class="{kind}" points="{points}"/>'


if __name__ == "__main__":
    main()
