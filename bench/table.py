"""The one table of the bench: a line a figure, beside its peer or limit and its target."""

import os
import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

TITLES = ("what", "ours", "peer or limit", "ratio", "target", "met")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure with its unit; `is_met` is None where nothing is asked of it."""

    what: str
    ours: str
    peer: str = ""
    ratio: str = ""
    target: str = ""
    is_met: bool | None = None

    def list_cells(self) -> tuple[str, ...]:
        """Return the cells as the table's titles name them."""
        met = {None: "", True: "yes", False: "**no**"}[self.is_met]
        return self.what, self.ours, self.peer, self.ratio, self.target, met


def format_table(rows: Iterable[Row]) -> str:
    """Return rows as a Markdown table."""
    lines = ["| " + " | ".join(TITLES) + " |", "|---|--:|--:|--:|--:|---|"]
    return "\n".join([*lines, *("| " + " | ".join(row.list_cells()) + " |" for row in rows)])


def compare_rates(what: str, ours: float, theirs: float, target: float | None = None) -> Row:
    """Return the row of two rates, calls a second; ours is to be `target` times theirs, if any."""
    ratio = ours / theirs
    verdict = ("", None) if target is None else (f">= {target:g}", ratio >= target)
    return Row(what, f"{ours:,.0f} calls/s", f"{theirs:,.0f} calls/s", f"{ratio:.2f}", *verdict)


def describe_hardware() -> str:
    """Return on what was measured, and how busy that was, in a sentence."""
    cores, load = os.cpu_count(), os.getloadavg()[0]
    today, processor = time.strftime("%Y-%m-%d"), read_processor_name()
    return f"{today}, {cores} cores ({processor}), load average {load:.1f}."


def read_processor_name() -> str:
    cpus = Path("/proc/cpuinfo")
    model = cpus.read_text().partition("model name\t: ")[2] if cpus.exists() else ""
    return model.partition("\n")[0] or platform.machine()


def replace_between_markers(page: str, name: str, text: str) -> str:
    """Return a page with a text in place of what lies between the markers of a name."""
    begin, end = f"<!-- generated: {name} -->\n", "<!-- end -->"
    before, found, rest = page.partition(begin)
    _, ended, after = rest.partition(end)
    if not (found and ended):
        raise SystemExit(f"the page lacks the markers of {name}")
    return f"{before}{begin}\n{text}\n{end}{after}"
