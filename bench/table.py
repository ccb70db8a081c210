"""The one table of the bench: a line a figure, beside its peer or limit and its target."""

from collections.abc import Iterable
from dataclasses import dataclass

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

    def cells(self) -> tuple[str, ...]:
        """Return the cells as the table's titles name them."""
        met = {None: "", True: "yes", False: "**no**"}[self.is_met]
        return self.what, self.ours, self.peer, self.ratio, self.target, met


def table(rows: Iterable[Row]) -> str:
    """Return rows as a Markdown table."""
    lines = ["| " + " | ".join(TITLES) + " |", "|---|--:|--:|--:|--:|---|"]
    return "\n".join([*lines, *("| " + " | ".join(row.cells()) + " |" for row in rows)])


def compared(what: str, ours: float, theirs: float, target: float | None = None) -> Row:
    """Return the row of two rates, calls a second; ours is to be `target` times theirs, if any."""
    ratio = ours / theirs
    asked = ("", None) if target is None else (f">= {target:g}", ratio >= target)
    return Row(what, f"{ours:,.0f} calls/s", f"{theirs:,.0f} calls/s", f"{ratio:.2f}", *asked)
