"""Rows of the feed: as they are served, as files have them, and as leaves of the log cover them.

The canonical JSON is that of RFC 8785.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Final

from verifier.client import Json, ServiceClient, format_time, parse_served_time, walk_feed
from verifier.report import VerifyError
from verifier.tree import hash_leaf

Row = dict[str, Any]
# Sorted, as the canonical form demands. asset_class and indicator_name come from the catalog.
COVERED: Final = (
    "action",
    "change_type",
    "created_at",
    "direction",
    "id",
    "indicator",
    "price",
    "ticker",
    "tier",
    "timeframe",
    "transition",
)
# From 10**21 on, and below 10**-6, ECMAScript writes an exponent.
MAX_PLAIN_DIGITS, MAX_LEADING_ZEROS = 21, 6


class RowError(VerifyError):
    """A row that lacks a member, or has one that no row of the feed can have."""


def pick_covered(row: Row) -> Row:
    """Return the members of a row that its leaf covers; RowError if one is missing."""
    missing = [name for name in COVERED if name not in row]
    if missing:
        raise RowError(f"a row has no {', '.join(missing)}")
    return {name: row[name] for name in COVERED}


def hash_row(row: Row, salt: bytes) -> bytes:
    """Return the hash of the leaf of a row; RowError if it has no canonical form."""
    return hash_leaf(salt + encode_canonical(pick_covered(row)))


def encode_canonical(value: object) -> bytes:
    """Return the canonical JSON of a value whose keys are ASCII."""
    try:
        return _format_value(value).encode()
    except UnicodeEncodeError:
        raise RowError("a row has text that is not Unicode") from None
    except OverflowError:
        raise RowError("a row has a number that is too large") from None


def _format_value(value: object) -> str:
    if isinstance(value, Mapping):
        members = (f"{json.dumps(key)}:{_format_value(value[key])}" for key in sorted(value))
        return f"{{{','.join(members)}}}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return format_number(float(value))
    if value is None or isinstance(value, (bool, str)):
        return json.dumps(value, ensure_ascii=False)
    raise RowError(f"a row has a {type(value).__name__} where none can be")


def format_number(value: float) -> str:
    """Return a number as ECMAScript does: the shortest digits that give the same number."""
    if not math.isfinite(value):
        raise RowError(f"{value} is not a number of JSON")
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    # The significant digits, and the place of the decimal point among them.
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    stripped = (whole + fraction).lstrip("0")
    point = len(stripped) - len(fraction) + int(exponent or 0)
    digits = stripped.rstrip("0")
    if len(digits) <= point <= MAX_PLAIN_DIGITS:
        text = digits.ljust(point, "0")
    elif 0 < point <= MAX_PLAIN_DIGITS:
        text = f"{digits[:point]}.{digits[point:]}"
    elif -MAX_LEADING_ZEROS < point <= 0:
        text = f"0.{'0' * -point}{digits}"
    else:
        text = f"{digits[0]}{'.' * (len(digits) > 1)}{digits[1:]}e{point - 1:+d}"
    return sign + text


DAILY_QUOTA = 10_000
TEXTS = ("id", "tier", "ticker", "indicator", "timeframe", "direction")

# What a page in another form raises where it is read.
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, RowError)

OnProgress = Callable[[int, int], None]


@dataclass
class Feed:
    """The rows after a time, oldest first, the pages that had them, and when the last run was."""

    since: str
    as_of: datetime
    rows: list[Row]
    pages: list[Json]

    def index_by(self, name: str) -> dict[str, Row]:
        """Return the rows by a member that is unique: `id` or `created_at`."""
        return {row[name]: row for row in self.rows}

    async def extend(self, client: ServiceClient, on_progress: OnProgress) -> None:
        """Read the rows of both tiers that have come since; VerifyError if one is malformed."""
        start = parse_served_time(self.since)
        span = max((self.as_of - start).total_seconds(), 1)
        place = self.rows[-1]["created_at"] if self.rows else self.since
        try:
            async for page in walk_feed(
                partial(client.read_view, "signals"), place, {"tier": "all"}
            ):
                # A service whose pages never end would otherwise keep this reading forever.
                if client.calls >= DAILY_QUOTA:
                    raise VerifyError(f"the feed takes more than {DAILY_QUOTA:,} calls")
                for row in page.body["signals"]:
                    check_row(row)
                self.rows += page.body["signals"]
                self.pages.append(page.body)
                if self.rows:
                    at = parse_served_time(self.rows[-1]["created_at"])
                    done, covered = len(self.rows), max((at - start).total_seconds(), 1)
                    on_progress(done, max(done, round(done * span / covered)))
        except MALFORMED as error:
            text = f"{client.address} sent a page of the feed that is none: {error!r}"
            raise VerifyError(client.format_line(text)) from None


async def read_feed(
    client: ServiceClient, since: datetime | None, default_days: int, on_progress: OnProgress
) -> Feed:
    """Read the rows of both tiers after a time, by default those of some days before the last."""
    newest = (await client.read_view("signals", {"tier": "all", "limit": 1})).body
    try:
        as_of = parse_served_time(newest["meta"]["as_of"])
        rows = newest["signals"]
        last = parse_served_time(rows[0]["created_at"]) if rows else as_of
    except MALFORMED as error:
        text = f"{client.address} sent a page of the feed that is none: {error!r}"
        raise VerifyError(client.format_line(text)) from None
    start = last - timedelta(days=default_days) if since is None else since
    feed = Feed(format_time(start), as_of, [], [])
    await feed.extend(client, on_progress)
    return feed


def check_row(row: Json) -> None:
    """Raise RowError, TypeError or ValueError if a row is none that the feed can have."""
    covered = pick_covered(row)
    parse_served_time(covered["created_at"])
    encode_canonical(covered)
    for name in TEXTS:
        if not isinstance(covered[name], str):
            raise RowError(f"the {name} of a row is not a text")
    if not isinstance(covered["price"], (int, float, NoneType)):
        raise RowError("the price of a row is not a number")


def read_rows_file(path: Path) -> list[Row]:
    """Return the rows of a file: answers of /signals, or rows, one JSON value or one per line."""
    try:
        text = path.read_text(encoding="utf-8")
        rows = list(_iterate_rows(_parse_values(text)))
        for row in rows:
            check_row(row)
        return rows
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
