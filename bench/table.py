"""The table of the benchmarks: one row per figure, with its peer or limit and its target."""

import os
import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TITLES = ("what", "ours", "peer or limit", "ratio", "target", "met")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure with its unit; `is_met` is None if the figure has no target."""

    what: str
    ours: str
    peer: str = ""
    ratio: str = ""
    target: str = ""
    is_met: bool | None = None

    def list_cells(self) -> tuple[str, ...]:
        """Return the cells in the order of TITLES."""
        met = {None: "", True: "yes", False: "**no**"}[self.is_met]
        return self.what, self.ours, self.peer, self.ratio, self.target, met


def format_table(rows: Iterable[Row]) -> str:
    """Return rows as a Markdown table."""
    lines = ["| " + " | ".join(TITLES) + " |", "|---|--:|--:|--:|--:|---|"]
    return "\n".join([*lines, *("| " + " | ".join(row.list_cells()) + " |" for row in rows)])


def compare_rates(what: str, ours: float, theirs: float, target: float | None = None) -> Row:
    """Return the row of two rates in calls/s; `target` is the required ratio, if there is one."""
    ratio = ours / theirs
    verdict = ("", None) if target is None else (f">= {target:g}", ratio >= target)
    return Row(what, f"{ours:,.0f} calls/s", f"{theirs:,.0f} calls/s", f"{ratio:.2f}", *verdict)


def describe_hardware() -> str:
    """Return a sentence on the date, the processor and the load average."""
    cores, load = os.cpu_count(), os.getloadavg()[0]
    today, processor = time.strftime("%Y-%m-%d"), read_processor_name()
    return f"{today}, {cores} cores ({processor}), load average {load:.1f}."


def read_processor_name() -> str:
    cpus = Path("/proc/cpuinfo")
    model = cpus.read_text().partition("model name\t: ")[2] if cpus.exists() else ""
    return model.partition("\n")[0] or platform.machine()


def replace_between_markers(page: str, name: str, text: str) -> str:
    """Return a page with the text between the markers of `name` replaced."""
    begin, end = f"<!-- generated: {name} -->\n", "<!-- end -->"
    before, found, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise SystemExit(f"the page has no markers for {name}")
    return f"{before}{begin}\n{text}\n{end}{after}"
