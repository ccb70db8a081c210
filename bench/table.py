"""The table of the benchmarks: one row per figure, with its peer or limit and its target."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

TITLES = ("what", "ours", "peer or limit", "ratio", "target", "met")


class Row(NamedTuple):
    """One figure with its unit; `is_met` is None if the figure has no target."""

    what: str
    ours: str
    peer: str = ""
    ratio: str = ""
    target: str = ""
    is_met: bool | None = None


def build_bound_row(what: str, value: float, bound: float, unit: str) -> Row:
    """Return the row of a figure that has to stay below a bound."""
    return Row(
        what,
        f"{value:,.3g} {unit}",
        target=f"< {bound:g} {unit}",
        is_met=bool(value < bound),
    )


def format_table(rows: Iterable[Row]) -> str:
    lines = ["| " + " | ".join(TITLES) + " |", "|---|--:|--:|--:|--:|---|"]
    verdicts = {None: "", True: "yes", False: "**no**"}
    return "\n".join(
        [*lines, *(f"| {' | '.join((*row[:-1], verdicts[row.is_met]))} |" for row in rows)]
    )


def format_percentiles(seconds: np.ndarray) -> str:
    """Return the p50, p99 and maximum of durations in milliseconds."""
    return " / ".join(f"{np.percentile(seconds, at) * 1e3:.1f}" for at in (50, 99, 100)) + " ms"
