"""The views of a service: as tables for people, as flat records for programs, and as its JSON."""

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import NoneType
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.text import Text

from schemas.vocabulary import STORED_KEYS, TIMEFRAMES, StoredKey, Timeframe
from verifier.client import Answer, Json, parse_served_time
from verifier.report import escape_unprintable
from web.csv_text import Cell, render_csv

STYLES = {
    "bullish": "green",
    "bearish": "red",
    "neutral": "dim",
    "mixed": "yellow",
    "exit": "yellow",
    "U": "green",
    "D": "red",
    "N": "dim",
    ".": "dim",
}
Format = Literal["table", "json", "csv"]
# Wide enough for every table: a file or a program wants whole rows.
UNLIMITED_WIDTH = 1000
FEED_WIDTHS = (16, 6, 2, 14, 18, 10)
GAP, MIN_NAME_WIDTH = 2, 4
# A header, and rows of the same length.
Records = tuple[Sequence[str], list[list[Any]]]

NO_LETTER = "."
CHANGE_COLUMNS = ("created_at", "tier", "ticker", "asset_class", "indicator", "timeframe")
LETTERS = {"bullish": "U", "bearish": "D", "neutral": "N"}
NONE = "-"


class Table(NamedTuple):
    """A table for people, with a line of explanation below it, if it needs one."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Text]]
    legend: str = ""


class View(NamedTuple):
    """A view of the service: its name in the API, its table, and its records."""

    name: str
    build_table: Callable[[Json], Table]
    list_records: Callable[[Json], Records]


def check_cell(value: object) -> str | int | float | None:
    """Return a value, as text that cannot control the terminal; TypeError if it is no plain one."""
    if not isinstance(value, (str, int, float, NoneType)):
        raise TypeError("a list or an object stands where a plain value belongs")
    return escape_unprintable(value) if isinstance(value, str) else value


def make_cell(value: object, style: str = "") -> Text:
    """Return a plain value as text; None as a dash."""
    cell = check_cell(value)
    return Text(NONE if cell is None else str(cell), style=style)


def make_reading(reading: str | None) -> Text:
    """Return a reading or direction in its colour."""
    return make_cell(reading, STYLES.get(reading or "", "dim"))


def make_letters(letters: Iterable[str]) -> Text:
    """Return letters of readings, each in its colour."""
    return Text(" ").join(make_cell(letter, STYLES.get(letter, "")) for letter in letters)


def make_time(instant: str | None) -> Text:
    """Return an instant to the minute, in UTC; None as a dash."""
    return make_cell(None if instant is None else format_minute(instant))


def make_price(price: float | None) -> Text:
    """Return a price with up to ten digits; None as a dash."""
    return make_cell(None if price is None else f"{price:.10g}")


def make_age(instant: str | None, now: str) -> Text:
    """Return the time from an instant to another, in days, hours or minutes; None as a dash."""
    if instant is None:
        return make_cell(None)
    minutes = int((parse_served_time(now) - parse_served_time(instant)).total_seconds()) // 60
    count, unit = (minutes, "min") if minutes < 120 else (minutes // 60, "h")
    return make_cell(f"{count} {unit}" if minutes < 48 * 60 else f"{minutes // 1440} d")


def make_change(before: str, after: str) -> Text:
    """Return a change of a reading."""
    return Text(" > ").join((make_reading(before), make_reading(after)))


def format_minute(instant: str) -> str:
    """Return an instant to the minute, without its zone; ValueError if it is none."""
    return f"{parse_served_time(instant):%Y-%m-%d %H:%M}"


def list_marks(meta: Json) -> list[Text]:
    """Return what makes data differ from live ones, for the line above a table."""
    marks = []
    if meta.get("simulated"):
        marks.append(Text("SIMULATED", style="bold yellow"))
    if meta.get("source") == "recorded":
        marks.append(Text("RECORDED", style="bold yellow"))
    if meta.get("stale"):
        marks.append(Text("STALE", style="bold red"))
    return marks


def list_state(body: Json) -> Records:
    """Return a record for each reading."""
    rows = [
        [*_pick(asset, *("ticker", "name", "asset_class")), indicator, timeframe, reading]
        for asset in body["assets"]
        for indicator, readings in asset["signals"].items()
        for timeframe, reading in readings.items()
    ]
    header = ("ticker", "name", "asset_class", "indicator", "timeframe", "reading")
    return _add_origin(body, header, rows)


def list_board(body: Json) -> Records:
    """Return a record for each asset, with the reading of each indicator and timeframe."""
    keys, timeframes = _list_axes(body)
    header = ("ticker", *(f"{key}_{at}" for key in keys for at in timeframes))
    rows = [
        [
            asset["ticker"],
            *(asset["signals"].get(key, {}).get(at) for key in keys for at in timeframes),
        ]
        for asset in body["assets"]
    ]
    return _add_origin(body, header, rows)


def list_feed(body: Json) -> Records:
    """Return a record for each row."""
    rows = [
        [
            *_pick(row, *CHANGE_COLUMNS, "direction"),
            *_pick(row["transition"] or {}, "from", "to"),
            *_pick(row, "change_type", "action", "price", "id"),
        ]
        for row in body["signals"]
    ]
    changes = ("from", "to", "change_type", "action", "price", "id")
    return _add_source(body, (*CHANGE_COLUMNS, "direction", *changes), rows)


def list_flips(body: Json) -> Records:
    """Return a record for each change."""
    rows = [
        [
            flip["created_at"],
            *_pick(group, "ticker", "name", "asset_class"),
            body["query"]["timeframe"],
            *_pick(flip, "indicator", "from", "to", "change_type", "price"),
            *_pick(group, "dominant", "score"),
        ]
        for group in body["groups"]
        for flip in group["flips"]
    ]
    header = (
        *("created_at", "ticker", "name", "asset_class", "timeframe", "indicator", "from", "to"),
        *("change_type", "price", "dominant", "score"),
    )
    return _add_origin(body, header, rows)


def list_confluence(body: Json) -> Records:
    """Return a record for each asset, with the vote of each indicator."""
    keys = list_vote_keys(body)
    rows = [
        [
            *_pick(one, "ticker", "name", "asset_class"),
            *_pick(body["query"], "timeframe", "direction"),
            *_pick(one, "agree", "total_reporting", "score"),
            *_pick(one["votes"], *keys),
        ]
        for one in body["results"]
    ]
    header = (
        *("ticker", "name", "asset_class", "timeframe", "direction", "agree"),
        *("total_reporting", "score", *keys),
    )
    return _add_origin(body, header, rows)


def list_usage(body: Json) -> Records:
    """Return one record, with the quota of the key."""
    names = ("daily_limit", "used_today", "remaining_today", "resets_at")
    row = [body["key"]["label"], body["mode"], *_pick(body["quota"] or {}, *names)]
    return ("label", "mode", *names), [row]


def list_vote_keys(body: Json) -> list[StoredKey]:
    """Return the indicators that have a vote in a confluence, the legacy key last."""
    return [key for key in STORED_KEYS if any(key in one["votes"] for one in body["results"])]


def _list_axes(body: Json) -> tuple[list[StoredKey], list[Timeframe]]:
    """Return the indicators and the timeframes of which an asset of a state has a reading."""
    cells = {
        (key, at)
        for asset in body["assets"]
        for key, readings in asset["signals"].items()
        for at in readings
    }
    keys, timeframes = {key for key, _ in cells}, {at for _, at in cells}
    return [k for k in STORED_KEYS if k in keys], [at for at in TIMEFRAMES if at in timeframes]


def _add_origin(body: Json, header: Iterable[str], rows: list[list[Any]]) -> Records:
    rows = [[*row, body["as_of"]] for row in rows]
    return _add_source(body, (*header, "as_of"), rows)


def _add_source(body: Json, header: Sequence[str], rows: list[list[Any]]) -> Records:
    source, stale = body["meta"]["source"], str(bool(body["meta"].get("stale"))).lower()
    return (*header, "source", "stale"), [[*row, source, stale] for row in rows]


def _pick(values: Mapping[Any, Any], *names: str) -> list[Any]:
    """Return some values by name, None for each that is missing."""
    return [values.get(name) for name in names]


def build_state_table(body: Json) -> Table:
    """Return a row for each asset: its readings as letters, their sum, its price and newest change.

    The answer has the details of changes.
    """
    keys, timeframes = _list_axes(body)
    rows = []
    for asset in body["assets"]:
        signals = asset["signals"]
        # As pages count it: dexter repeats enzo, out of date.
        counted = [at for key, by in signals.items() if key != "dexter" for at in by.values()]
        score = counted.count("bullish") - counted.count("bearish")
        begun = [one["since"] for by in asset["changes"].values() for one in by.values() if one]
        words = (
            [LETTERS.get(signals.get(key, {}).get(timeframe), NO_LETTER) for key in keys]
            for timeframe in timeframes
        )
        rows.append(
            (
                *(make_cell(asset["ticker"], "bold"), make_cell(asset["name"])),
                *map(make_letters, words),
                make_cell(f"{score:+d}" if score else "0"),
                make_price((asset.get("last_bar") or {}).get("close")),
                make_age(max(begun, default=None), body["meta"]["as_of"]),
            )
        )
    letters = [f"{timeframe}: {_abbreviate(keys)}" for timeframe in timeframes]
    legend = "  ".join(f"{key[0].upper()} {key}" for key in keys)
    note = "SCORE is bullish minus bearish readings, AGE that of the newest change."
    columns = ("TICKER", "NAME", *letters, "SCORE", "PRICE", "AGE")
    return Table(columns, rows, f"{legend}\n{note}")


def build_changes_table(body: Json) -> Table:
    """Return a row for each reading: since when it holds, the price then, and the move since."""
    rows = [
        (
            *(make_cell(ticker, "bold"), make_cell(indicator), make_cell(timeframe)),
            *(make_reading(reading), make_time(since), make_age(since, body["meta"]["as_of"])),
            *(make_price(price), make_cell(None if moved is None else f"{moved:+.2f} %")),
        )
        for ticker, _, _, indicator, timeframe, reading, since, price, moved in _walk_changes(body)
    ]
    columns = ("TICKER", "INDICATOR", "TF", "READING", "SINCE (UTC)", "AGE", "PRICE THEN", "MOVE")
    return Table(columns, rows)


def list_changes(body: Json) -> Records:
    """Return a record for each reading, with the change that set it."""
    header = ("ticker", "name", "asset_class", "indicator", "timeframe", "reading")
    return _add_origin(body, (*header, "since", "price", "change_percent"), _walk_changes(body))


def _walk_changes(body: Json) -> list[list[Any]]:
    return [
        [
            *_pick(asset, *("ticker", "name", "asset_class")),
            *(indicator, timeframe, reading),
            *_pick(
                asset["changes"].get(indicator, {}).get(timeframe) or {},
                *("since", "price", "change_percent"),
            ),
        ]
        for asset in body["assets"]
        for indicator, readings in asset["signals"].items()
        for timeframe, reading in readings.items()
    ]


def build_board_table(body: Json) -> Table:
    """Return a row for each asset, and a column of letters for each timeframe."""
    keys, timeframes = _list_axes(body)
    rows = [
        (
            make_cell(asset["ticker"], "bold"),
            *(
                make_letters(
                    LETTERS.get(asset["signals"].get(key, {}).get(at), NO_LETTER) for key in keys
                )
                for at in timeframes
            ),
        )
        for asset in body["assets"]
    ]
    columns = ("TICKER", *(f"{at}: {_abbreviate(keys)}" for at in timeframes))
    readings = "  ".join(f"{letter} {reading}" for reading, letter in LETTERS.items())
    names = "  ".join(f"{key[0].upper()} {key}" for key in keys)
    return Table(columns, rows, f"{names}\n{readings}  {NO_LETTER} none, or left out by a filter")


def build_feed_table(body: Json) -> Table:
    """Return a row for each change or alert."""
    rows = [
        (
            *(make_cell(format_minute(row["created_at"])), make_cell(row["ticker"], "bold")),
            *(make_cell(row["timeframe"]), make_cell(row["indicator"])),
            _make_event(row),
            make_price(row["price"]),
        )
        for row in body["signals"]
    ]
    columns = ("TIME (UTC)", "TICKER", "TF", "INDICATOR", "CHANGE OR ACTION", "PRICE")
    return Table(columns, rows)


def build_flips_table(body: Json) -> Table:
    """Return a row for each asset with its changes, newest first."""
    rows = [
        (
            *(make_cell(group["ticker"], "bold"), make_cell(group["name"])),
            *(make_reading(group["dominant"]), make_cell(group["bullish"])),
            *(make_cell(group["bearish"]), make_cell(format_minute(group["latest_at"]))),
            Text(", ").join(
                make_cell(f"{flip['indicator']} ") + make_reading(flip["to"])
                for flip in group["flips"]
            ),
        )
        for group in body["groups"]
    ]
    columns = ("TICKER", "NAME", "DOMINANT", "BULL", "BEAR", "LATEST (UTC)", "CHANGES")
    cut = "Older changes in the window may be missing: choose fewer --hours."
    return Table(columns, rows, cut if body["capped"] else "")


def build_confluence_table(body: Json) -> Table:
    """Return a row for each asset on which indicators agree."""
    keys = list_vote_keys(body)
    rows = [
        (
            *(make_cell(one["ticker"], "bold"), make_cell(one["name"])),
            make_cell(f"{one['agree']} of {one['total_reporting']}"),
            make_cell(f"{one['score']:.2f}"),
            make_letters(LETTERS.get(one["votes"].get(key), NO_LETTER) for key in keys),
        )
        for one in body["results"]
    ]
    query = body["query"]
    legend = "  ".join(f"{key[0].upper()} {key}" for key in keys)
    agree = f"{query['direction'].upper()} {query['timeframe']}"
    return Table(("TICKER", "NAME", agree, "SCORE", f"VOTES: {_abbreviate(keys)}"), rows, legend)


def build_usage_table(body: Json) -> Table:
    """Return one row with the quota of the key."""
    quota = body["quota"] or {}
    names = ("used_today", "remaining_today", "daily_limit")
    row = (
        *(make_cell(body["key"]["label"]), make_cell(body["mode"])),
        *(make_cell(quota.get(name)) for name in names),
        make_time(quota.get("resets_at")),
    )
    columns = ("KEY", "MODE", "USED TODAY", "REMAINING", "DAILY LIMIT", "RESETS (UTC)")
    return Table(columns, [row])


def _abbreviate(indicators: Iterable[str]) -> str:
    return " ".join(indicator[0].upper() for indicator in indicators)


def _make_event(row: Json) -> Text:
    """Return the change of a row of the universe tier, the action of an alert."""
    change = row["transition"]
    if change is not None:
        return make_change(change["from"], change["to"])
    return make_cell(row["action"], STYLES.get(row["direction"], ""))


STATE = View("state", build_state_table, list_state)
CHANGES = View("state", build_changes_table, list_changes)
BOARD = View("state", build_board_table, list_board)
FEED = View("signals", build_feed_table, list_feed)
FLIPS = View("flips", build_flips_table, list_flips)
CONFLUENCE = View("confluence", build_confluence_table, list_confluence)
USAGE = View("usage", build_usage_table, list_usage)


def build_event(row: Json, meta: Json) -> Json:
    """Return the row, and `meta` with the origin of its data."""
    # Receivers see nothing else, and simulated data must not pass for live data.
    # Absent means false.
    flags = {key: bool(meta.get(key)) for key in ("simulated", "stale")}
    return {**row, "meta": {"source": meta["source"], **flags}}


def encode_json(value: Any) -> bytes:
    """Return a value as compact JSON in ASCII, which cannot control a terminal."""
    return json.dumps(value, separators=(",", ":")).encode()


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
        print_table(view.build_table(answer.body), answer.body["meta"])
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
    """Prints rows of the feed as they come: lines of one table, of JSON or of CSV."""

    def __init__(self, chosen: Format) -> None:
        self._format = chosen
        self._console = open_console()
        self._printed_origin: Text | None = None
        self._has_header = False

    async def __call__(self, rows: Sequence[Json], meta: Json) -> None:
        """Print rows; `meta` is that of their page."""
        body = {"signals": rows, "meta": meta}
        if self._format == "json":
            for row in rows:
                print(encode_json(build_event(row, meta)).decode(), flush=True)
        elif self._format == "csv":
            write_csv(*FEED.list_records(body), has_header=not self._has_header)
        else:
            self._print_lines(FEED.build_table(body), meta)
        self._has_header = True

    def _print_lines(self, table: Table, meta: Json) -> None:
        origin = describe_origin(meta)
        if origin != self._printed_origin:
            self._console.print(origin)
            self._printed_origin = origin
        _print_rows(self._console, table, FEED_WIDTHS, has_header=not self._has_header)
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


def print_table(table: Table, meta: Json) -> None:
    """Print a table for people, with what `meta` says about its data."""
    console = open_console()
    if origin := describe_origin(meta):
        console.print(origin)
    if table.rows:
        _print_rows(console, table)
    late = meta.get("late_assets")
    named = (f"{ticker} ({', '.join(timeframes)})" for ticker, timeframes in (late or {}).items())
    notes = (table.legend, meta.get("note"), f"Late: {', '.join(named)}." if late else "")
    for note in filter(None, notes):
        for line in note.splitlines():
            console.print(make_cell(line, "dim"))


def _print_rows(
    console: Console, table: Table, least: Sequence[int] = (), *, has_header: bool = True
) -> None:
    """Print the rows of a table; `least` are least widths of its columns.

    If the console is too narrow, NAME is shortened or left out if that is enough; else every row
    becomes several lines. Nothing but NAME is ever cut.
    """
    header = [make_cell(column, "bold") for column in table.columns]
    columns = list(zip(header, *table.rows, strict=True))
    widths = [max(cell.cell_len for cell in column) for column in columns]
    widths = [max(pair) for pair in zip(widths, least or widths, strict=True)]
    excess = sum(widths) + GAP * (len(widths) - 1) - console.width
    if "NAME" in table.columns and 0 < excess <= widths[at := table.columns.index("NAME")] + GAP:
        widths[at] -= excess
        if widths[at] < MIN_NAME_WIDTH:
            del columns[at], widths[at]
    for row in list(zip(*columns, strict=True))[not has_header :]:
        lines = [Text()]
        for cell, width in zip(row, widths, strict=True):
            if lines[-1] and lines[-1].cell_len + width > console.width:
                lines.append(Text(" " * GAP))
            padded = cell.copy()
            padded.truncate(width, overflow="ellipsis", pad=True)
            lines[-1].append_text(padded).append(" " * GAP)
        for line in lines:
            line.rstrip()
            console.print(line)
