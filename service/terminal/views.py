"""The views of a service as tables for people, and as records for programs."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from rich.text import Text

from schemas.vocabulary import TIMEFRAMES
from service.terminal.cells import (
    LETTERS,
    STYLES,
    format_minute,
    make_cell,
    make_change,
    make_letters,
    make_price,
    make_reading,
    make_time,
)
from service.terminal.records import (
    NO_LETTER,
    Records,
    list_board,
    list_confluence,
    list_feed,
    list_flips,
    list_state,
    list_usage,
    list_vote_keys,
    split_board_rows,
)
from service.terminal.service_client import Json


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


def build_state_table(body: Json) -> Table:
    """Return a row for each asset and indicator, a column for each timeframe that has readings."""
    last_bars = {
        ticker: bars["closed_at"]
        for bars in body["meta"]["last_bars"]
        for ticker in bars["tickers"]
    }
    shown = [readings for asset in body["assets"] for readings in asset["signals"].values()]
    timeframes = [one for one in TIMEFRAMES if any(one in readings for readings in shown)]
    rows = [
        (
            *(make_cell(asset["ticker"], "bold"), make_cell(asset["name"]), make_cell(indicator)),
            *(make_reading(readings.get(timeframe)) for timeframe in timeframes),
            make_time(last_bars.get(asset["ticker"])),
        )
        for asset in body["assets"]
        for indicator, readings in asset["signals"].items()
    ]
    return Table(("TICKER", "NAME", "INDICATOR", *timeframes, "LAST BAR (UTC)"), rows)


def build_board_table(body: Json) -> Table:
    """Return a row for each asset, and a column of letters for each timeframe."""
    board = body["board"]
    letters = _abbreviate(board["indicators"])
    rows = [
        (make_cell(ticker, "bold"), *map(make_letters, words))
        for ticker, *words in split_board_rows(board["rows"])
    ]
    columns = ("TICKER", *(f"{timeframe}: {letters}" for timeframe in board["timeframes"]))
    readings = "  ".join(f"{letter} {meaning}" for letter, meaning in board["legend"].items())
    names = "  ".join(f"{one[0].upper()} {one}" for one in board["indicators"])
    return Table(columns, rows, f"{names}\n{readings}")


def build_feed_table(body: Json) -> Table:
    """Return a row for each change or alert."""
    rows = [
        (
            *(make_cell(format_minute(row["created_at"])), make_cell(row["ticker"], "bold")),
            *(make_cell(row["timeframe"]), make_cell(row["indicator"])),
            *(_make_event(row), make_price(row["price"])),
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
            Text(", ").join(map(_make_flip, group["flips"])),
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


def _make_flip(flip: Json) -> Text:
    return make_cell(f"{flip['indicator']} ") + make_reading(flip["to"])


STATE = View("state", build_state_table, list_state)
BOARD = View("state", build_board_table, list_board)
FEED = View("signals", build_feed_table, list_feed)
FLIPS = View("flips", build_flips_table, list_flips)
CONFLUENCE = View("confluence", build_confluence_table, list_confluence)
USAGE = View("usage", build_usage_table, list_usage)
