"""The views of a service: as tables for people, as flat records for programs, and as its JSON."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import NoneType
from typing import Any, Literal, NamedTuple

from rich.console import Console
from rich.text import Text

from schemas.vocabulary import STORED_KEYS, TIMEFRAMES, StoredKey, Timeframe
from verifier.client import Answer, Json, parse_served_time
from verifier.report import escape_unprintable
from web.value_texts import Cell, render_csv

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
ASSET_COLUMNS = ("ticker", "name", "asset_class")
CHANGE_FIELDS = ("since", "price", "change_percent")
FEED_COLUMNS = (
    *("created_at", "tier", "ticker", "asset_class", "indicator", "timeframe"),
    "direction",
)
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


def make_letters(readings: Iterable[str | None]) -> Text:
    """Return the letters of readings, each in its colour."""
    letters = [LETTERS.get(reading or "", NO_LETTER) for reading in readings]
    return Text(" ").join(make_cell(letter, STYLES.get(letter, "")) for letter in letters)


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


def format_minute(instant: str) -> str:
    """Return an instant to the minute, without its zone; ValueError if it is none."""
    return f"{parse_served_time(instant):%Y-%m-%d %H:%M}"


def list_marks(meta: Json) -> list[Text]:
    """Return what makes data differ from live ones, for the line above a table."""
    marks = {
        "SIMULATED": ("bold yellow", meta.get("simulated")),
        "RECORDED": ("bold yellow", meta.get("source") == "recorded"),
        "STALE": ("bold red", meta.get("stale")),
    }
    return [Text(mark, style=style) for mark, (style, is_shown) in marks.items() if is_shown]


# The records of each view.


def _list_state(body: Json) -> Records:
    return _add_origin(
        body,
        (*ASSET_COLUMNS, "indicator", "timeframe", "reading"),
        [
            [*_pick(asset, *ASSET_COLUMNS), indicator, timeframe, reading]
            for asset, indicator, timeframe, reading in _walk_readings(body)
        ],
    )


def _list_changes(body: Json) -> Records:
    return _add_origin(
        body,
        (*ASSET_COLUMNS, "indicator", "timeframe", "reading", *CHANGE_FIELDS),
        _walk_changes(body),
    )


def _list_board(body: Json) -> Records:
    keys, timeframes = _list_axes(body)
    cells = [(key, at) for key in keys for at in timeframes]
    return _add_origin(
        body,
        ("ticker", *(f"{key}_{at}" for key, at in cells)),
        [
            [asset["ticker"], *(asset["signals"].get(key, {}).get(at) for key, at in cells)]
            for asset in body["assets"]
        ],
    )


def _list_feed(body: Json) -> Records:
    changes = ("change_type", "action", "price", "id")
    return _add_source(
        body,
        (*FEED_COLUMNS, "from", "to", *changes),
        [
            [
                *_pick(row, *FEED_COLUMNS),
                *_pick(row["transition"] or {}, "from", "to"),
                *_pick(row, *changes),
            ]
            for row in body["signals"]
        ],
    )


def _list_flips(body: Json) -> Records:
    change = ("indicator", "from", "to", "change_type", "price")
    return _add_origin(
        body,
        ("created_at", *ASSET_COLUMNS, "timeframe", *change, "dominant", "score"),
        [
            [
                flip["created_at"],
                *_pick(group, *ASSET_COLUMNS),
                body["query"]["timeframe"],
                *_pick(flip, *change),
                *_pick(group, "dominant", "score"),
            ]
            for group in body["groups"]
            for flip in group["flips"]
        ],
    )


def _list_confluence(body: Json) -> Records:
    keys, counts = _list_vote_keys(body), ("agree", "total_reporting", "score")
    return _add_origin(
        body,
        (*ASSET_COLUMNS, "timeframe", "direction", *counts, *keys),
        [
            [
                *_pick(one, *ASSET_COLUMNS),
                *_pick(body["query"], "timeframe", "direction"),
                *_pick(one, *counts),
                *_pick(one["votes"], *keys),
            ]
            for one in body["results"]
        ],
    )


def _list_usage(body: Json) -> Records:
    names = ("daily_limit", "used_today", "remaining_today", "resets_at")
    return ("label", "mode", *names), [
        [body["key"]["label"], body["mode"], *_pick(body["quota"] or {}, *names)]
    ]


def _add_origin(body: Json, header: Sequence[str], rows: list[list[Any]]) -> Records:
    return _add_source(body, (*header, "as_of"), [[*row, body["as_of"]] for row in rows])


def _add_source(body: Json, header: Sequence[str], rows: list[list[Any]]) -> Records:
    source, stale = body["meta"]["source"], str(bool(body["meta"].get("stale"))).lower()
    return (*header, "source", "stale"), [[*row, source, stale] for row in rows]


def _pick(values: Mapping[Any, Any], *names: str) -> list[Any]:
    """Return some values by name, None for each that is missing."""
    return [values.get(name) for name in names]


def _walk_readings(body: Json) -> Iterator[tuple[Json, StoredKey, Timeframe, str]]:
    """Yield each reading of a state with its asset, indicator and timeframe."""
    for asset in body["assets"]:
        for indicator, readings in asset["signals"].items():
            for timeframe, reading in readings.items():
                yield asset, indicator, timeframe, reading


def _walk_changes(body: Json) -> list[list[Any]]:
    """Return the values of each reading, with the change that set it."""
    return [
        [
            *_pick(asset, *ASSET_COLUMNS),
            *(indicator, timeframe, reading),
            *_pick(asset["changes"].get(indicator, {}).get(timeframe) or {}, *CHANGE_FIELDS),
        ]
        for asset, indicator, timeframe, reading in _walk_readings(body)
    ]


def _list_vote_keys(body: Json) -> list[StoredKey]:
    """Return the indicators that have a vote in a confluence, the legacy key last."""
    return [key for key in STORED_KEYS if any(key in one["votes"] for one in body["results"])]


def _list_axes(body: Json) -> tuple[list[StoredKey], list[Timeframe]]:
    """Return the indicators and the timeframes of which an asset of a state has a reading."""
    cells = {(key, at) for _, key, at, _ in _walk_readings(body)}
    keys, timeframes = {key for key, _ in cells}, {at for _, at in cells}
    return [k for k in STORED_KEYS if k in keys], [at for at in TIMEFRAMES if at in timeframes]


# The tables of each view.


def _build_state_table(body: Json) -> Table:
    """Return a row for each asset: its readings as letters, their sum, its price and newest change.

    The answer has the details of changes.
    """
    keys, timeframes = _list_axes(body)
    rows = []
    for asset in body["assets"]:
        # As pages count it: dexter repeats enzo, out of date.
        counted = [
            at for key, by in asset["signals"].items() if key != "dexter" for at in by.values()
        ]
        score = counted.count("bullish") - counted.count("bearish")
        begun = [one["since"] for by in asset["changes"].values() for one in by.values() if one]
        rows.append(
            (
                *(make_cell(asset["ticker"], "bold"), make_cell(asset["name"])),
                *_make_words(asset, keys, timeframes),
                make_cell(f"{score:+d}" if score else "0"),
                make_price((asset.get("last_bar") or {}).get("close")),
                make_age(max(begun, default=None), body["meta"]["as_of"]),
            )
        )
    words = [f"{timeframe}: {_abbreviate(keys)}" for timeframe in timeframes]
    note = "SCORE is bullish minus bearish readings, AGE that of the newest change."
    columns = ("TICKER", "NAME", *words, "SCORE", "PRICE", "AGE")
    return Table(columns, rows, f"{_name_letters(keys)}\n{note}")


def _build_changes_table(body: Json) -> Table:
    """Return a row for each reading: since when it holds, the price then, and the move since."""
    return Table(
        ("TICKER", "INDICATOR", "TF", "READING", "SINCE (UTC)", "AGE", "PRICE THEN", "MOVE"),
        [
            (
                *(make_cell(ticker, "bold"), make_cell(indicator), make_cell(timeframe)),
                make_reading(reading),
                make_cell(None if since is None else format_minute(since)),
                *(make_age(since, body["meta"]["as_of"]), make_price(price)),
                make_cell(None if moved is None else f"{moved:+.2f} %"),
            )
            for ticker, _, _, indicator, timeframe, reading, since, price, moved in _walk_changes(
                body
            )
        ],
    )


def _build_board_table(body: Json) -> Table:
    keys, timeframes = _list_axes(body)
    readings = "  ".join(f"{letter} {reading}" for reading, letter in LETTERS.items())
    return Table(
        ("TICKER", *(f"{at}: {_abbreviate(keys)}" for at in timeframes)),
        [
            (make_cell(asset["ticker"], "bold"), *_make_words(asset, keys, timeframes))
            for asset in body["assets"]
        ],
        f"{_name_letters(keys)}\n{readings}  {NO_LETTER} none, or left out by a filter",
    )


def _make_words(
    asset: Json, keys: Sequence[StoredKey], timeframes: Sequence[Timeframe]
) -> list[Text]:
    """Return the readings of an asset, for each timeframe the letters of the indicators."""
    return [
        make_letters(asset["signals"].get(key, {}).get(timeframe) for key in keys)
        for timeframe in timeframes
    ]


def _build_feed_table(body: Json) -> Table:
    return Table(
        ("TIME (UTC)", "TICKER", "TF", "INDICATOR", "CHANGE OR ACTION", "PRICE"),
        [
            (
                *(make_cell(format_minute(row["created_at"])), make_cell(row["ticker"], "bold")),
                *(make_cell(row["timeframe"]), make_cell(row["indicator"])),
                # An alert has an action instead of a change.
                make_cell(row["action"], STYLES.get(row["direction"], ""))
                if row["transition"] is None
                else Text(" > ").join(make_reading(row["transition"][at]) for at in ("from", "to")),
                make_price(row["price"]),
            )
            for row in body["signals"]
        ],
    )


def _build_flips_table(body: Json) -> Table:
    cut = "Older changes in the window may be missing: choose fewer --hours."
    return Table(
        ("TICKER", "NAME", "DOMINANT", "BULL", "BEAR", "LATEST (UTC)", "CHANGES"),
        [
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
        ],
        cut if body["capped"] else "",
    )


def _build_confluence_table(body: Json) -> Table:
    keys, query = _list_vote_keys(body), body["query"]
    agree = f"{query['direction'].upper()} {query['timeframe']}"
    return Table(
        ("TICKER", "NAME", agree, "SCORE", f"VOTES: {_abbreviate(keys)}"),
        [
            (
                *(make_cell(one["ticker"], "bold"), make_cell(one["name"])),
                make_cell(f"{one['agree']} of {one['total_reporting']}"),
                make_cell(f"{one['score']:.2f}"),
                make_letters(one["votes"].get(key) for key in keys),
            )
            for one in body["results"]
        ],
        _name_letters(keys),
    )


def _build_usage_table(body: Json) -> Table:
    quota = body["quota"] or {}
    resets_at = quota.get("resets_at")
    cells = [
        *(body["key"]["label"], body["mode"]),
        *_pick(quota, "used_today", "remaining_today", "daily_limit"),
        None if resets_at is None else format_minute(resets_at),
    ]
    return Table(
        ("KEY", "MODE", "USED TODAY", "REMAINING", "DAILY LIMIT", "RESETS (UTC)"),
        [[*map(make_cell, cells)]],
    )


def _abbreviate(indicators: Iterable[str]) -> str:
    return " ".join(indicator[0].upper() for indicator in indicators)


def _name_letters(indicators: Iterable[str]) -> str:
    return "  ".join(f"{indicator[0].upper()} {indicator}" for indicator in indicators)


FEED = View("signals", _build_feed_table, _list_feed)
# By the commands that print them; `changes` is `state --changes`.
VIEWS: Mapping[str, View] = {
    "state": View("state", _build_state_table, _list_state),
    "changes": View("state", _build_changes_table, _list_changes),
    "board": View("state", _build_board_table, _list_board),
    "feed": FEED,
    "flips": View("flips", _build_flips_table, _list_flips),
    "confluence": View("confluence", _build_confluence_table, _list_confluence),
    "usage": View("usage", _build_usage_table, _list_usage),
}


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
    width = None if sys.stdout.isatty() else UNLIMITED_WIDTH
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
            if (origin := describe_origin(meta)) != self._printed_origin:
                self._console.print(origin)
                self._printed_origin = origin
            table = FEED.build_table(body)
            _print_rows(self._console, table, FEED_WIDTHS, has_header=not self._has_header)
            sys.stdout.flush()
        self._has_header = True


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
