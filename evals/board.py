"""Reads boards of the service for the scripts of the solver."""

import re
from collections.abc import Iterable
from datetime import date, datetime, timedelta
from typing import Any

from evals.session import JsonObject, Session

STATE, SIGNALS = "signals_get_state", "signals_get_signals"
CONFLUENCE, FLIPS = "signals_get_confluence", "signals_get_flips"
CATALOG = "signals_get_catalog"

# Ticker and indicator to reading, of one timeframe.
Board = dict[tuple[str, str], str]


def to_instant(text: str) -> str:
    """Return the instant of a time as questions write it: `2026-09-21 16:30 UTC`."""
    return f"{datetime.strptime(text, '%Y-%m-%d %H:%M UTC'):%Y-%m-%dT%H:%M:%SZ}"


def list_days(first: str, last: str) -> list[str]:
    """Return the days from one to another, both included."""
    start, end = date.fromisoformat(first), date.fromisoformat(last)
    return [f"{start + timedelta(days=n)}" for n in range((end - start).days + 1)]


async def read_board(session: Session, at: str, timeframe: str, **filters: Any) -> Board:
    """Return the readings at a time, without outdated keys and removed assets."""
    answer = await session.call(STATE, {"timeframe": timeframe, **filters, "as_of": at})
    outdated = answer["meta"]["legacy_keys"]
    removed = answer["meta"]["removed_assets"]
    return {
        (asset["ticker"], indicator): cells[timeframe]
        for asset in answer["assets"]
        for indicator, cells in asset["signals"].items()
        if indicator not in outdated and asset["ticker"] not in removed
    }


async def read_boards(
    session: Session, times: Iterable[str], timeframe: str, **filters: Any
) -> list[Board]:
    """Return the readings at each of some times, which are written as questions write them."""
    return [await read_board(session, to_instant(at), timeframe, **filters) for at in times]


async def read_cell(session: Session, at: str, ticker: str, indicator: str, timeframe: str) -> str:
    """Return one reading at a time."""
    cell = {"ticker": ticker, "indicator": indicator}
    return (await read_board(session, at, timeframe, **cell))[ticker, indicator]


async def read_feed(session: Session, after: str, until: str, **filters: Any) -> list[JsonObject]:
    """Return all rows of the feed after an instant and up to another, oldest first."""
    rows: list[JsonObject] = []
    since = after
    while True:
        requested = {"order": "oldest", "since": since, "limit": 200, **filters}
        page = await session.call(SIGNALS, requested)
        rows += page["signals"]
        if not page["pagination"]["has_more"]:
            break
        since = page["pagination"]["next_cursor"]
    end = datetime.fromisoformat(until)
    return [row for row in rows if datetime.fromisoformat(row["created_at"]) <= end]


def find_turned(boards: Iterable[Board], before: str, after: str) -> list[tuple[str, str]]:
    """Return the cells that had one reading on the first of two boards, and another later."""
    first, second = boards
    return [cell for cell in first if (first[cell], second.get(cell)) == (before, after)]


def join(names: Iterable[str]) -> str:
    """Return names as an answer lists them."""
    return ", ".join(sorted(names)) or "none"


def find_words(text: str, pattern: str) -> str:
    """Return the only group of a pattern in a note."""
    (found,) = re.findall(pattern, text)
    return str(found)
