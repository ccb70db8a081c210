"""Rows of the feed: as they are served, as files have them, and as leaves of the log cover them.

The canonical JSON is that of RFC 8785.
"""

import json
import math
import re
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Final

from verifier.client import Json, ServiceClient, format_time, parse_served_time, walk_feed
from verifier.notes import MAX_TIME
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


READINGS = ("bullish", "bearish", "neutral")
ALERT_DIRECTIONS = {
    **{"LONG": "bullish", "SHORT": "bearish", "BUY": "bullish", "SELL": "bearish"},
    "CLOSE": "exit",
}
ROW_ID_END = re.compile(r"\.([0-9]{1,13})(?:\.([A-Z]+))?\.[0-9]{1,8}")

Cell = tuple[str, str, str]


def get_cell(row: Row) -> Cell:
    """Return the ticker, indicator and timeframe of a row."""
    return row["ticker"], row["indicator"], row["timeframe"]


def find_close(row: Row) -> datetime | None:
    """Return the close in the id of a row, None if the id is not made of its other fields."""
    # A ticker may contain dots.
    start = ".".join((row["tier"], *get_cell(row)))
    end = ROW_ID_END.fullmatch(row["id"].removeprefix(start))
    if not row["id"].startswith(start) or end is None or end[2] != row["action"]:
        return None
    return datetime.fromtimestamp(int(end[1]), UTC) if int(end[1]) <= MAX_TIME else None


def find_fault(row: Row, now: datetime) -> str | None:
    """Return why no honest service can have written a row by now, None if it can."""
    transition, created_at = row["transition"], parse_served_time(row["created_at"])
    if row["tier"] == "universe":
        moved = transition if isinstance(transition, dict) else {}
        before, after = moved.get("from"), moved.get("to")
        change_type = "activation" if before == "neutral" else "reversal"
        change_type = "deactivation" if after == "neutral" else change_type
        is_consistent = before != after and before in READINGS and after in READINGS
        wanted = {"direction": after, "change_type": change_type, "action": None}
    else:
        is_consistent = row["tier"] == "alerts" and row["action"] in ALERT_DIRECTIONS
        direction = ALERT_DIRECTIONS.get(str(row["action"]))
        wanted = {"direction": direction, "transition": None, "change_type": None}
    contradiction = [name for name, value in wanted.items() if row[name] != value]
    if not is_consistent or contradiction:
        return f"contradicts itself: {', '.join(contradiction) or 'transition or tier'}"
    close = find_close(row)
    if close is None:
        return "has an id that is not made of its other fields"
    if close > created_at:
        return f"was written before its candle closed at {format_time(close)}"
    return "is dated in the future (is your clock right?)" if created_at > now else None


DAILY_QUOTA = 10_000
DEFAULT_DAYS = 30
TEXTS = ("id", "tier", "ticker", "indicator", "timeframe", "direction")

# Raised where a page in another form is read.
MALFORMED = (LookupError, TypeError, ValueError, AttributeError, RowError)

OnProgress = Callable[[int, int], None]


@dataclass
class Feed:
    """The rows after a time, oldest first, and the pages that had them.

    `as_of` is when the service says that it last computed, `source` the kind of its data.
    """

    since: str
    as_of: datetime
    source: str
    rows: list[Row]
    pages: list[Json]

    def index_by(self, name: str) -> dict[str, Row]:
        """Return the rows by a member that is unique: `id` or `created_at`."""
        return {row[name]: row for row in self.rows}

    async def extend(self, client: ServiceClient, on_progress: OnProgress) -> None:
        """Read the rows of both tiers that have come since; VerifyError if one is malformed."""
        start = datetime.fromisoformat(self.since)
        span = max((self.as_of - start).total_seconds(), 1)
        place = self.rows[-1]["created_at"] if self.rows else self.since
        async for page in walk_rows(client, place):
            limit_calls(client, "feed")
            self.rows += page["signals"]
            self.pages.append(page)
            if self.rows:
                at = parse_served_time(self.rows[-1]["created_at"])
                done, covered = len(self.rows), max((at - start).total_seconds(), 1)
                on_progress(done, max(done, round(done * span / covered)))


def limit_calls(client: ServiceClient, read: str) -> None:
    """Raise VerifyError if a client has made all calls of a day; `read` names the part of it."""
    # A service whose pages never end would otherwise keep it reading forever.
    if client.calls >= DAILY_QUOTA:
        raise VerifyError(f"the {read} takes more than {DAILY_QUOTA:,} calls")


async def walk_rows(client: ServiceClient, since: str) -> AsyncIterator[Json]:
    """Yield the pages of both tiers after a time, oldest first; VerifyError if one is malformed."""
    try:
        async for page in walk_feed(partial(client.read_view, "signals"), since, {"tier": "all"}):
            for row in page.body["signals"]:
                check_row(row)
            yield page.body
    except MALFORMED as error:
        raise describe_malformed(client, error) from None


def describe_malformed(client: ServiceClient, error: Exception) -> VerifyError:
    """Return the error for a page that is not one of the feed."""
    text = f"{client.address} sent a page of the feed that is none: {error!r}"
    return VerifyError(client.format_line(text))


async def read_feed(
    client: ServiceClient, since: datetime | None, now: datetime, on_progress: OnProgress
) -> Feed:
    """Read the rows of both tiers after a time, by default those of 30 days.

    The days end at the newest row or now, whichever is earlier.
    """
    newest = (await client.read_view("signals", {"tier": "all", "limit": 1})).body
    try:
        as_of, source = parse_served_time(newest["meta"]["as_of"]), str(newest["meta"]["source"])
        times = [parse_served_time(row["created_at"]) for row in newest["signals"][:1]]
    except MALFORMED as error:
        raise describe_malformed(client, error) from None
    if since is None:
        since = min(now, *times, now if times else as_of) - timedelta(days=DEFAULT_DAYS)
    feed = Feed(format_time(since), as_of, source, [], [])
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
    for name, kinds in (("price", (int, float, NoneType)), ("action", (str, NoneType))):
        if not isinstance(covered[name], kinds):
            raise RowError(
                f"the {name} of a row is not a {'number' if name == 'price' else 'text'}"
            )


def read_rows_file(path: Path) -> list[Row]:
    """Return the rows of a file: answers of /signals, or rows, one JSON value or one per line."""
    try:
        text = path.read_text(encoding="utf-8")
        try:
            values = [json.loads(text)]
        except ValueError:
            values = [json.loads(line) for line in text.splitlines() if line.strip()]
        rows = list(_iterate_rows(values))
        for row in rows:
            check_row(row)
        return rows
    except (OSError, ValueError, RowError, TypeError, RecursionError) as error:
        raise VerifyError(
            f"{path} cannot be read as rows of the feed: {error}. It may hold answers of "
            "/api/v1/signals, or rows, as one JSON value or as one on each line"
        ) from None


def _iterate_rows(values: list[Any]) -> Iterator[Json]:
    for value in values:
        if isinstance(value, list):
            yield from _iterate_rows(value)
        elif "signals" in value:
            yield from _iterate_rows(value["signals"])
        else:
            yield value
