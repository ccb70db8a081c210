"""Builds the chart of a plan's calls: a bar for each day, stacked by tool, and a row per tool."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from mcp_server.tools.registry import TOOLS_BY_NAME
from schemas.vocabulary import DAY_MS, format_instant
from store.access_rows import DayUsage

CHART_DAYS = 30
# In units of the SVG, whose width is the page's.
DAY_WIDTH, BAR_WIDTH, CHART_HEIGHT = 20, 15, 120
UNKNOWN_TOOL = "not recorded"


@dataclass(frozen=True, slots=True)
class BarPart:
    """The calls with one tool on one day; `tool` is the tool's position in `UsageChart.tools`."""

    tool: int
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class DayBar:
    """A UTC day, its calls, and where its bar stands."""

    date: str
    calls: int
    x: int
    parts: Sequence[BarPart]
    tools: Sequence[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class UsageChart:
    """The calls of CHART_DAYS days, oldest first, and their total by tool."""

    days: Sequence[DayBar]
    tools: Sequence[tuple[str, int]]
    calls: int
    busiest: DayBar
    width: int = DAY_WIDTH * CHART_DAYS
    height: int = CHART_HEIGHT
    bar_width: int = BAR_WIDTH


def build_usage_chart(rows: Sequence[DayUsage], at: int) -> UsageChart:
    """Return the chart of rows of the CHART_DAYS days that end at a time (epoch ms)."""
    totals = Counter[str]()
    by_day: dict[int, Counter[str]] = {}
    for row in rows:
        totals[row.tool] += row.used
        by_day.setdefault(row.day, Counter())[row.tool] += row.used
    # Tools keep their order, and so their colours, from one visit to the next.
    names = [name for name in (*TOOLS_BY_NAME, *sorted(totals)) if name in totals]
    tools = list(dict.fromkeys(names))
    highest = max((counts.total() for counts in by_day.values()), default=0)
    today = at // DAY_MS
    days = [
        _build_day(position, day, by_day.get(day, Counter()), tools, highest)
        for position, day in enumerate(range(today - CHART_DAYS + 1, today + 1))
    ]
    return UsageChart(
        days,
        [(_name_tool(tool), totals[tool]) for tool in tools],
        totals.total(),
        max(days, key=lambda day: day.calls),
    )


def _build_day(
    position: int, day: int, counts: Counter[str], tools: Sequence[str], highest: int
) -> DayBar:
    parts, top = [], float(CHART_HEIGHT)
    for number, tool in enumerate(tools):
        if counts[tool]:
            height = round(counts[tool] / highest * CHART_HEIGHT, 1)
            top = round(top - height, 1)
            parts.append(BarPart(number, max(top, 0.0), height))
    return DayBar(
        format_instant(day * DAY_MS)[:10],
        counts.total(),
        position * DAY_WIDTH,
        parts,
        [(_name_tool(tool), counts[tool]) for tool in tools if counts[tool]],
    )


def _name_tool(tool: str) -> str:
    return tool or UNKNOWN_TOOL
