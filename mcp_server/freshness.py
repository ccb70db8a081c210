"""What every answer says of what it rests on: source, age, and when to come back."""

from collections.abc import Container, Iterable
from typing import Any

from mcp_server.context import Board
from schemas.meta import LegacyKeys, NextUpdate
from schemas.vocabulary import LEGACY_KEYS, PERIOD_S, TIMEFRAMES, StoredKey, Timeframe, instant

RUN_OFFSET_MS = 180_000
GRACE_MS = 600_000

SIMULATED_NOTE = "Simulated market data: prices and readings are not those of a real market."
STALE_NOTE = "Stale: the last compute is older than the schedule allows, readings may be outdated."


def next_run(timeframe: Timeframe, market_time: int) -> int:
    """Return the first minute-:03 run of a timeframe strictly after a time, both epoch ms."""
    period = PERIOD_S[timeframe] * 1000
    return ((market_time - RUN_OFFSET_MS) // period + 1) * period + RUN_OFFSET_MS


def is_resting(board: Board) -> bool:
    """Tell whether a recording has been played to its end, so that nothing more will come."""
    until = board.coverage.recorded_until
    return until is not None and board.market_time >= until


def is_stale(board: Board, now: int) -> bool:
    """Tell whether the next hourly run is overdue at `now` (epoch ms) beyond the grace."""
    return not is_resting(board) and now > next_run("1h", board.market_time) + GRACE_MS


def recorded_note(until: int) -> str:
    """Say when a recording ends (epoch ms)."""
    return f"recorded until {instant(until)}."


def freshness(board: Board, now: int, *notes: str) -> dict[str, Any]:
    """Return the fields of `Freshness`; `notes` join the note, None where it is empty."""
    resting, stale = is_resting(board), is_stale(board, now)
    return {
        "source": board.coverage.source,
        "simulated": board.coverage.source == "simulated",
        "as_of": instant(board.market_time),
        "next_update": NextUpdate.model_validate(
            {
                timeframe: None if resting else instant(next_run(timeframe, board.market_time))
                for timeframe in TIMEFRAMES
            }
        ),
        "stale": stale,
        "removed_assets": board.removed(),
        "note": " ".join([*_standing_notes(board, resting, stale), *notes]) or None,
    }


def shown_legacy_keys(shown: Iterable[Container[StoredKey]]) -> LegacyKeys:
    """Return the outdated keys that occur in what an answer shows, and what to use instead."""
    shown = list(shown)
    return {old: new for old, new in LEGACY_KEYS.items() if any(old in keys for keys in shown)}


def _standing_notes(board: Board, resting: bool, stale: bool) -> list[str]:
    notes = []
    if board.coverage.source == "simulated":
        notes.append(SIMULATED_NOTE)
    if resting and board.coverage.recorded_until is not None:
        notes.append(recorded_note(board.coverage.recorded_until))
    if stale:
        notes.append(STALE_NOTE)
    return notes
