"""The views of a service as flat records for CSV files; each says where its data come from.

The columns have the names of the CSV files of the pages.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from schemas.vocabulary import STORED_KEYS, StoredKey
from service.terminal.service_client import Json

# A header, and rows of the same length.
Records = tuple[Sequence[str], list[list[Any]]]

NO_LETTER = "."
CHANGE_COLUMNS = ("created_at", "tier", "ticker", "asset_class", "indicator", "timeframe")


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
    board = body["board"]
    cells = [(at, name) for name in board["indicators"] for at in range(len(board["timeframes"]))]
    header = ("ticker", *(f"{name}_{board['timeframes'][at]}" for at, name in cells))
    rows = []
    for ticker, *words in split_board_rows(board["rows"]):
        # An asset without the legacy key, which comes last, has shorter words.
        letters = [dict(zip(board["indicators"], word, strict=False)) for word in words]
        rows.append([ticker, *(_name_letter(board, letters[at].get(name)) for at, name in cells)])
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


def split_board_rows(rows: str) -> Iterator[list[str]]:
    """Yield the ticker and the words of each row of a board."""
    return (row.split(" ") for row in rows.split(";") if row)


def _name_letter(board: Json, letter: str | None) -> str | None:
    name: str | None = None if letter in (None, NO_LETTER) else board["legend"][letter]
    return name


def _add_origin(body: Json, header: Iterable[str], rows: list[list[Any]]) -> Records:
    rows = [[*row, body["as_of"]] for row in rows]
    return _add_source(body, (*header, "as_of"), rows)


def _add_source(body: Json, header: Sequence[str], rows: list[list[Any]]) -> Records:
    source, stale = body["meta"]["source"], str(body["meta"]["stale"]).lower()
    return (*header, "source", "stale"), [[*row, source, stale] for row in rows]


def _pick(values: Mapping[Any, Any], *names: str) -> list[Any]:
    """Return some values by name, None for each that is missing."""
    return [values.get(name) for name in names]
