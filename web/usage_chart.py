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
# Each tool has a number, and so a colour of its own, whichever others were used.
TOOL_NUMBERS = {tool: number for number, tool in enumerate(TOOLS_BY_NAME)}
UNKNOWN_TOOL, UNKNOWN_NUMBER = "not recorded", len(TOOL_NUMBERS)


@dataclass(frozen=True, slots=True)
class BarPart:
    """The calls with one tool on one day; `number` is the tool's."""

    number: int
    y: float
    height: float


@dataclass(frozen=True, slots=True)
class ToolCalls:
    """The number and name of a tool, and calls with it."""

    number: int
    name: str
    calls: int


@dataclass(frozen=True, slots=True)
class DayBar:
    """A UTC day, its calls, and where its bar stands."""

    date: str
    calls: int
    x: int
    parts: Sequence[BarPart]
    tools: Sequence[ToolCalls]


@dataclass(frozen=True, slots=True)
class UsageChart:
    """The calls of CHART_DAYS days, oldest first, and their total by tool."""

    days: Sequence[DayBar]
    tools: Sequence[ToolCalls]
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
    highest = max((counts.total() for counts in by_day.values()), default=0)
    today = at // DAY_MS
    days = [
        _build_day(position, day, by_day.get(day, Counter()), highest)
        for position, day in enumerate(range(today - CHART_DAYS + 1, today + 1))
    ]
    busiest = max(days, key=lambda day: day.calls)
    return UsageChart(days, _list_tools(totals), totals.total(), busiest)


def _build_day(position: int, day: int, counts: Counter[str], highest: int) -> DayBar:
    tools, top = _list_tools(counts), float(CHART_HEIGHT)
    parts: list[BarPart] = []
    for tool in tools:
        height = round(tool.calls / highest * CHART_HEIGHT, 1)
        top = round(top - height, 1)
        parts.append(BarPart(tool.number, max(top, 0.0), height))
    date = format_instant(day * DAY_MS)[:10]
    return DayBar(date, counts.total(), position * DAY_WIDTH, parts, tools)


def _list_tools(counts: Counter[str]) -> list[ToolCalls]:
    """Return the tools of some calls, by number."""
    tools = [
        ToolCalls(TOOL_NUMBERS.get(tool, UNKNOWN_NUMBER), tool or UNKNOWN_TOOL, calls)
        for tool, calls in counts.items()
    ]
    return sorted(tools, key=lambda tool: (tool.number, tool.name))
