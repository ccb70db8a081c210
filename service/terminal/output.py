"""Prints views: as a coloured table, as the JSON of the service, or as CSV."""

import os
import sys
from collections.abc import Sequence
from typing import Literal

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from service.terminal.cells import check_cell, format_minute, list_marks, make_cell
from service.terminal.deliveries import build_event, encode_json
from service.terminal.service_client import Answer, Json
from service.terminal.views import FEED, Table, View
from verifier.errors import escape_unprintable
from web.csv_text import Cell, render_csv

Format = Literal["table", "json", "csv"]
# Wide enough for every table: a file or a program wants whole rows.
UNLIMITED_WIDTH = 1000
FEED_WIDTHS = (16, 6, 2, 14, 18, 10)
OUTPUT_CLOSED_STATUS = 1  # as the library that prints the tables exits


def open_console() -> Console:
    """Return standard output: with colours and its own width on a terminal, else with neither."""
    is_terminal = sys.stdout.isatty()
    width = None if is_terminal else UNLIMITED_WIDTH
    return Console(width=width, markup=False, highlight=False, emoji=False)


def print_answer(answer: Answer, view: View, chosen: Format) -> None:
    """Print one answer in a format."""
    if chosen == "json":
        # The line breaks and tabs of JSON stand between its values, so it stays the same.
        print(escape_unprintable(answer.text.translate(dict.fromkeys(b"\t\n\r", " "))))
    elif chosen == "csv":
        write_csv(*view.list_records(answer.body))
    else:
        _print_table(open_console(), view.build_table(answer.body), answer.body["meta"])
    sys.stdout.flush()


def write_csv(
    header: Sequence[str], rows: Sequence[Sequence[Cell]], *, has_header: bool = True
) -> None:
    """Write a table as CSV, with or without its header."""
    safe = [[check_cell(cell) for cell in row] for row in (header, *rows)]
    text = render_csv([str(name) for name in safe[0]], safe[1:]).decode()
    sys.stdout.write(text if has_header else text.partition("\r\n")[2])
    sys.stdout.flush()


class RowPrinter:
    """Prints each row of the feed as it comes: a line of a table, of JSON or of CSV."""

    def __init__(self, chosen: Format) -> None:
        self._format = chosen
        self._console = open_console()
        self._printed_origin: Text | None = None
        self._has_header = False

    async def __call__(self, row: Json, meta: Json) -> None:
        """Print a row; `meta` is that of its page."""
        body = {"signals": [row], "meta": meta}
        if self._format == "json":
            print(encode_json(build_event(row, meta)).decode(), flush=True)
        elif self._format == "csv":
            write_csv(*FEED.list_records(body), has_header=not self._has_header)
        else:
            self._print_line(FEED.build_table(body), meta)
        self._has_header = True

    def _print_line(self, table: Table, meta: Json) -> None:
        origin = describe_origin(meta)
        if origin != self._printed_origin:
            self._console.print(origin)
            self._printed_origin = origin
        self._console.print(_layout(table, FEED_WIDTHS, has_header=not self._has_header))
        sys.stdout.flush()


def describe_origin(meta: Json) -> Text:
    """Return the line above a table: the marks of its data, their time, and when more come."""
    parts = list_marks(meta)
    if meta.get("as_of"):
        parts.append(make_cell(f"as of {format_minute(meta['as_of'])} UTC"))
    if meta.get("nothing_new_before"):
        due_at = format_minute(meta["nothing_new_before"])
        parts.append(make_cell(f"nothing new before {due_at} UTC"))
    return Text(", ").join(parts)


def _print_table(console: Console, table: Table, meta: Json) -> None:
    if origin := describe_origin(meta):
        console.print(origin)
    if table.rows:
        console.print(_layout(table))
    late = meta.get("late_assets")
    named = (f"{ticker} ({', '.join(timeframes)})" for ticker, timeframes in (late or {}).items())
    notes = (table.legend, meta.get("note"), f"Late: {', '.join(named)}." if late else "")
    for note in filter(None, notes):
        for line in note.splitlines():
            console.print(make_cell(line, "dim"))


def _layout(table: Table, widths: Sequence[int] = (), *, has_header: bool = True) -> RichTable:
    """Return the table as the library prints it; `widths` are least widths of its columns."""
    laid_out = RichTable(box=None, pad_edge=False, show_header=has_header, header_style="bold")
    for at, column in enumerate(table.columns):
        # A table that is too wide for the terminal folds its last column.
        is_last = at == len(table.columns) - 1
        least = widths[at] if widths else None
        laid_out.add_column(
            make_cell(column), min_width=least, no_wrap=not is_last, overflow="fold"
        )
    for row in table.rows:
        laid_out.add_row(*row)
    return laid_out


def close_output() -> int:
    """Discard the output that nobody reads any more; return the exit status."""
    # The interpreter flushes standard output again at its end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return OUTPUT_CLOSED_STATUS
