"""Reads rows: from the feed of a service, oldest first, and from a customer's file."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import Any

from verifier.canonical import Row, RowError, encode_canonical, pick_covered
from verifier.client import PAGE_ROWS, Json, ServiceClient
from verifier.errors import VerifyError
from verifier.times import format_time, parse_served_time

TEXTS = ("id", "tier", "ticker", "indicator", "timeframe", "direction")

OnProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class Feed:
    """The rows after a time, oldest first, and when the service last computed."""

    since: str
    as_of: datetime
    rows: list[Row]

    def index_by_id(self) -> dict[str, Row]:
        """Return the rows by id."""
        return {row["id"]: row for row in self.rows}

    def index_by_time(self) -> dict[str, Row]:
        """Return the rows by `created_at`, which is unique."""
        return {row["created_at"]: row for row in self.rows}


async def read_feed(
    client: ServiceClient, since: datetime | None, default_days: int, on_progress: OnProgress
) -> Feed:
    """Read the rows of both tiers after a time, by default those of some days before the last."""
    newest, meta = await client.read_rows(limit=1)
    as_of = _parse(client, meta.get("as_of"))
    last = _parse(client, newest[0].get("created_at")) if newest else as_of
    start = last - timedelta(days=default_days) if since is None else since
    cursor, rows = format_time(start), []
    span = max((last - start).total_seconds(), 1)
    while True:
        page, _ = await client.read_rows(since=cursor, order="oldest", limit=PAGE_ROWS)
        rows += _pick_rows(client, page, cursor)
        if not page:
            break
        cursor = rows[-1]["created_at"]
        covered = (_parse(client, cursor) - start).total_seconds()
        on_progress(len(rows), max(len(rows), round(len(rows) * span / max(covered, 1))))
        if len(page) < PAGE_ROWS:
            break
    return Feed(format_time(start), as_of, rows)


def _check_row(row: Json) -> Row:
    """Return the covered members of a row; RowError, TypeError or ValueError if it is none."""
    covered = pick_covered(row)
    parse_served_time(covered["created_at"])
    encode_canonical(covered)
    for name in TEXTS:
        if not isinstance(covered[name], str):
            raise RowError(f"the {name} of a row is not a text")
    if not isinstance(covered["price"], (int, float, NoneType)):
        raise RowError("the price of a row is not a number")
    return covered


def _pick_rows(client: ServiceClient, page: list[Json], after: str) -> list[Row]:
    """Return what leaves cover of the rows of a page, which must be in the order of their times."""
    rows = [_pick_row(client, row) for row in page]
    times = [after, *(row["created_at"] for row in rows)]
    for earlier, later in pairwise(times):
        if later <= earlier:
            raise VerifyError(f"{client.address} sent a row of {later} after one of {earlier}")
    return rows


def _pick_row(client: ServiceClient, row: Json) -> Row:
    try:
        return _check_row(row)
    except (RowError, TypeError, ValueError) as error:
        raise VerifyError(f"{client.address} sent a row that is none: {error}") from None


def _parse(client: ServiceClient, text: object) -> datetime:
    try:
        return parse_served_time(text)
    except ValueError:
        raise VerifyError(f"{client.address} sent {text!r:.60} where a time belongs") from None


def read_rows_file(path: Path) -> list[Row]:
    """Return the rows of a file: answers of /signals, or rows, one JSON value or one per line."""
    try:
        text = path.read_text(encoding="utf-8")
        return [_check_row(row) for row in _iterate_rows(_parse_values(text))]
    except (OSError, ValueError, RowError, TypeError, RecursionError) as error:
        raise VerifyError(
            f"{path} cannot be read as rows of the feed: {error}. It may hold answers of "
            "/api/v1/signals, or rows, as one JSON value or as one on each line"
        ) from None


def _parse_values(text: str) -> list[Any]:
    try:
        return [json.loads(text)]
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]


def _iterate_rows(values: list[Any]) -> Iterator[Json]:
    for value in values:
        if isinstance(value, list):
            yield from _iterate_rows(value)
        elif "signals" in value:
            yield from _iterate_rows(value["signals"])
        else:
            yield value
