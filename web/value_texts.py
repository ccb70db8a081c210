"""Values as texts: prices, percentages, sparklines and ages on pages, and tables as CSV files."""

import csv
import io
from collections.abc import Iterable, Sequence
from itertools import pairwise

from schemas.vocabulary import HOUR_MS


def format_price(value: float) -> str:
    """Return a price with thousands separators and four or more significant digits.

    Such as 97,412.50, 45.67, 2.4831 and 0.00001234.
    """
    if value >= 10:
        return f"{value:,.2f}"
    # The exponent comes from the decimal text, so that 0.99999 counts as 1.
    exponent = int(f"{value:.3e}".partition("e")[2]) if value else 0
    return f"{value:.{max(4, 3 - exponent)}f}"


# Integer coordinates and few points: a board has more than 250 sparklines and is to stay small.
MAX_POINTS, STEP_PX, HEIGHT_PX = 14, 6, 18
MINUS = "−"


def build_path(closes: Sequence[float]) -> str:
    """Return the path of a sparkline in CSS pixels, the newest close at its right end.

    The text is empty if there are fewer than two closes.
    """
    if len(closes) < 2:
        return ""
    every = -(-len(closes) // MAX_POINTS)
    points = closes[::-1][::every][::-1]
    low, high = min(points), max(points)
    scale = HEIGHT_PX / (high - low) if high > low else 0.0
    heights = [round((high - close) * scale) + 1 if scale else HEIGHT_PX // 2 for close in points]
    start = STEP_PX * (MAX_POINTS - len(points))
    steps = [after - before for before, after in pairwise(heights)]
    line = " ".join(f"{STEP_PX}{step}" if step < 0 else f"{STEP_PX} {step}" for step in steps)
    return f"M{start} {heights[0]}l{line}"


def format_signed(value: int) -> str:
    """Return a whole number with its sign: +3, −2, 0."""
    return f"{value:+d}".replace("-", MINUS) if value else "0"


def format_percent(fraction: float) -> str:
    """Return a fraction as a signed percentage: +1.23%, −0.40%, 0.00%."""
    text = f"{100 * fraction:+.2f}%"
    return text[1:] if float(text[:-1]) == 0 else text.replace("-", MINUS)


def format_age(ms: int) -> str:
    """Return a duration as pages show it: in hours up to two days, then in days."""
    hours = max(0, ms) // HOUR_MS
    if hours < 48:
        return f"{hours} h" if hours else "now"
    return f"{hours // 24} d"


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
