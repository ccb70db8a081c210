"""Writes CSV files for spreadsheets and scripts."""

import csv
import io
from collections.abc import Iterable, Sequence

Cell = str | int | float | None
# Spreadsheets run a cell that begins with one of these as a formula.
FORMULA_MARKS = ("=", "+", "-", "@", "\t", "\r")


def render_csv(header: Sequence[str], rows: Iterable[Sequence[Cell]]) -> bytes:
    """Return a table as CSV (RFC 4180) in UTF-8; None becomes an empty cell."""
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(header)
    writer.writerows([_defuse(cell) for cell in row] for row in rows)
    return file.getvalue().encode()


def _defuse(cell: Cell) -> Cell:
    # An apostrophe makes a text cell of it. Numbers stay numbers.
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_MARKS) else cell
