"""The view lines, the same for every tool: a header that names the columns, then a line per row.

Up to MAX_WORDED rows name their indicators in full. More rows have a letter for each, which the
header explains. The outdated dexter is left out.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from schemas.vocabulary import INDICATOR_IDS, Reading, format_instant

MAX_WORDED = 25
SIGNS: dict[Reading, str] = {"bullish": "+", "bearish": "-", "neutral": "="}
# The shortest beginning that no other indicator has.
LETTERS: dict[str, str] = {
    each: next(
        each[:size].capitalize()
        for size in range(1, len(each) + 1)
        if sum(other.startswith(each[:size]) for other in INDICATOR_IDS) == 1
    )
    for each in INDICATOR_IDS
}
LEGEND = (
    "; letters: " + ", ".join(f"{letter} {each}" for each, letter in LETTERS.items()) + "; "
    "+ bullish, - bearish, = neutral."
)


def build_lines(columns: str, rows: Iterable[Iterable[object]], *, is_worded: bool = True) -> str:
    """Return the lines of a view; None in a row becomes `-`."""
    header = f"view=lines, JSON by view=full; {columns}{'' if is_worded else LEGEND}"
    return "\n".join([header, *(" ".join(map(_format_cell, row)) for row in rows)])


def format_readings(
    readings: Mapping[Any, Reading], *, is_worded: bool, with_neutral: bool = False
) -> str:
    """Return which indicators are bullish and bearish, as words or as letters."""
    groups = {
        reading: [each for each in INDICATOR_IDS if readings.get(each) == reading]
        for reading in SIGNS
        if with_neutral or reading != "neutral"
    }
    if is_worded:
        return "; ".join(f"{reading}: {', '.join(ids)}" for reading, ids in groups.items() if ids)
    return "".join(
        SIGNS[reading] + "".join(LETTERS[each] for each in ids)
        for reading, ids in groups.items()
        if ids
    )


def format_minute(epoch_ms: int) -> str:
    """Return an instant to the minute."""
    return f"{format_instant(epoch_ms)[:16]}Z"


def _format_cell(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:.6g}" if abs(cell) < 1e6 else f"{cell:.0f}"
    return "-" if cell is None or cell == "" else str(cell)
