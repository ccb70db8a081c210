"""The kinds of values that commands take: each says what it accepts where it is given another."""

import argparse
from datetime import datetime


def parse_time(text: str) -> int:
    """Read an instant with a zone as epoch milliseconds."""
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is None:
            raise ValueError
        return int(time.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no time with a zone; expected such as 2025-07-01T00:00:00Z"
        ) from None


def parse_client(name: str) -> object:
    """Read the name of a client that can be registered."""
    from mcp_server.client_registration import CLIENTS_BY_NAME

    if name not in CLIENTS_BY_NAME:
        names = ", ".join(map(repr, CLIENTS_BY_NAME))
        raise argparse.ArgumentTypeError(f"invalid choice: {name!r} (choose from {names})")
    return CLIENTS_BY_NAME[name]


def parse_days(text: str) -> int:
    """Read a number of days of feed."""
    if not (text.isdecimal() and 1 <= int(text) <= 365):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of days from 1 to 365")
    return int(text)


def parse_worker_count(text: str) -> int:
    """Read a number of serving processes."""
    if not (text.isdecimal() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes; expected 1 or more")
    return int(text)
