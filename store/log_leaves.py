"""The canonical texts of leaves of the transparency log: its start, and rows; pure functions.

The first leaf has the kind of the data and the first start, so that rows from before it are known.

The text is JSON as RFC 8785 defines it, of the members that a row has by itself: the names of
indicators and the classes of assets come from the catalog, and may change.
"""

from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Final, NamedTuple

from schemas.vocabulary import ACTION_DIRECTIONS, READING_NAMES, classify_change, format_instant
from store.log_tree import hash_leaf
from store.market_rows import AlertRow, ChangeRow, FeedRow

SALT_BYTES = 16
# ECMAScript writes numbers in this range without an exponent.
MIN_PLAIN, MAX_PLAIN = 1e-6, 1e21
# Listed as the time of the first leaf, which is before that of any row (epoch ms).
START_AT: Final = 1
# The largest cells of a run, and the seconds in which its rows are written.
MAX_CACHED = 8192


class LogStart(NamedTuple):
    """The kind of the data of a store, and the time of its first start (epoch ms)."""

    source: str
    started_at: int

    @classmethod
    def from_facts(cls, facts: Mapping[str, str]) -> "LogStart | None":
        """Return the start that a store remembers, None if it has none yet."""
        name, started_at = (facts.get(key, "") for key in ("source", "started_at"))
        if not (name and started_at.isdecimal()):
            return None
        # The rest of the name is the seed of a simulation, or the folder of a recording.
        kinds = {"files": "recorded", "simulated": "simulated"}
        return cls(kinds.get(name.partition(":")[0], "live"), int(started_at))

    def render(self) -> bytes:
        """Return the canonical text."""
        at = format_instant(self.started_at)
        return f'{{"source":"{self.source}","started_at":"{at}"}}'.encode()


def hash_row(row: FeedRow, salt: bytes) -> bytes:
    """Return the hash of a row's leaf, whose content is 16 bytes of salt and the text."""
    return hash_leaf(salt + render_row(row))


def render_row(row: FeedRow) -> bytes:
    """Return the canonical text of a row, whose ticker needs no escapes in JSON."""
    return (_render_alert(row) if isinstance(row, AlertRow) else _render_change(row)).encode()


# One format string per row: the log hashes all rows of a year at once, so each microsecond counts.


def _render_change(row: ChangeRow) -> str:
    at, ticker, indicator, timeframe, closed, epoch, before, after, price, _ = row
    change_type, direction, transition = _render_readings(before, after)
    return (
        f'{{"action":null,"change_type":{change_type},"created_at":"{_render_time(at)}",'
        f'"direction":"{direction}","id":"universe.{ticker}.{indicator}.{timeframe}.{closed}.'
        f'{epoch}","indicator":"{indicator}","price":{render_number(price)},"ticker":"{ticker}",'
        f'"tier":"universe","timeframe":"{timeframe}","transition":{transition}}}'
    )


def _render_alert(row: AlertRow) -> str:
    at, ticker, indicator, timeframe, closed, epoch, action, price = row
    return (
        f'{{"action":"{action}","change_type":null,"created_at":"{_render_time(at)}",'
        f'"direction":"{ACTION_DIRECTIONS[action]}","id":"alerts.{ticker}.{indicator}.{timeframe}.'
        f'{closed}.{action}.{epoch}","indicator":"{indicator}","price":{render_number(price)},'
        f'"ticker":"{ticker}","tier":"alerts","timeframe":"{timeframe}","transition":null}}'
    )


@lru_cache
def _render_readings(before: int | None, after: int) -> tuple[str, str, str]:
    """Return the JSON of `change_type`, the name of `direction` and the JSON of `transition`."""
    direction = READING_NAMES[after]
    if before is None:
        return "null", direction, "null"
    transition = f'{{"from":"{READING_NAMES[before]}","to":"{direction}"}}'
    return f'"{classify_change(before, after)}"', direction, transition


def _render_time(created_at: int) -> str:
    seconds, milliseconds = divmod(created_at, 1000)
    return f"{_render_second(seconds)}.{milliseconds:03d}Z"


@lru_cache(MAX_CACHED)
def _render_second(seconds: int) -> str:
    return format_instant(1000 * seconds).partition(".")[0]


def render_number(value: float) -> str:
    """Return a finite number as ECMAScript writes it."""
    text = repr(value)
    if text.endswith(".0"):
        return text[:-2] if value else "0"
    if "e" not in text:
        return text
    if MIN_PLAIN <= abs(value) < MAX_PLAIN:
        return f"{Decimal(text):f}"
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent):+d}"
