"""Parsers of command-line values. Each rejects a bad one and says what it accepts."""

import argparse
from collections.abc import Callable
from datetime import UTC, date, datetime, time

from schemas.vocabulary import DAY_MS

MAX_EXPIRY_DAYS = 3650
MAX_OVERLAP_HOURS = 720


def parse_time(text: str) -> int:
    """Parse an ISO 8601 time, in UTC unless it has a zone; return epoch milliseconds."""
    try:
        time = datetime.fromisoformat(text)
        return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"must be an ISO 8601 time, e.g. 2025-07-01T00:00:00Z, not {text!r}"
        ) from None


def parse_expiry(text: str) -> Callable[[int], int]:
    """Parse a number of days, a date or a time; return a function from now to epoch ms."""
    if text.isdecimal() and 1 <= int(text) <= MAX_EXPIRY_DAYS:
        return lambda now: now + int(text) * DAY_MS
    try:
        at = _parse_date(text) if len(text) == len("2025-07-01") else parse_time(text)
    except (ValueError, argparse.ArgumentTypeError):
        raise argparse.ArgumentTypeError(
            f"must be a number of days from 1 to {MAX_EXPIRY_DAYS}, a date such as 2025-07-01, or "
            f"an ISO 8601 time, e.g. 2025-07-01T00:00:00Z, not {text!r}"
        ) from None
    return lambda now: at


def _parse_date(text: str) -> int:
    return int(datetime.combine(date.fromisoformat(text), time(), UTC).timestamp()) * 1000


def parse_overlap(text: str) -> int:
    """Parse a number of hours from 0 to MAX_OVERLAP_HOURS."""
    if not (text.isdecimal() and int(text) <= MAX_OVERLAP_HOURS):
        raise argparse.ArgumentTypeError(
            f"must be a number of hours from 0 to {MAX_OVERLAP_HOURS}, not {text!r}"
        )
    return int(text)


def parse_client(name: str) -> object:
    """Return the client with this name; see `signals connect` for the names."""
    from mcp_server.registration import CLIENTS_BY_NAME

    if name not in CLIENTS_BY_NAME:
        names = ", ".join(map(repr, CLIENTS_BY_NAME))
        raise argparse.ArgumentTypeError(f"invalid choice: {name!r} (choose from {names})")
    return CLIENTS_BY_NAME[name]


def parse_worker_count(text: str) -> int:
    """Parse a number of serving processes, 1 or more."""
    if not (text.isdecimal() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text!r}")
    return int(text)
