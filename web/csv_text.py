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
    for row in rows:
        # An apostrophe makes a text cell of a formula. Numbers stay numbers.
        risky = [isinstance(cell, str) and cell.startswith(FORMULA_MARKS) for cell in row]
        writer.writerow([f"'{cell}" if at else cell for cell, at in zip(row, risky, strict=True)])
    return file.getvalue().encode()
