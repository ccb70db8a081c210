"""What every answer says of what it rests on: source, age, and when to come back."""

from collections.abc import Collection, Container, Iterable
from typing import Any

from schemas.coverage import CoveredAsset
from schemas.result import LegacyKeys, NextUpdate
from schemas.vocabulary import (
    LEGACY_KEYS,
    PERIOD_S,
    RUN_DELAY_MS,
    TIMEFRAMES,
    Instant,
    StoredKey,
    Timeframe,
    instant,
)
from serving.snapshot_cache import Board

GRACE_MS = 600_000
LATE_PASSES_MS = 180_000

SIMULATED_NOTE = "Simulated market data: prices and readings are not those of a real market."
STALE_NOTE = "Stale: the last compute is older than the schedule allows, readings may be outdated."


def next_run(timeframe: Timeframe, market_time: int) -> int:
    """Return the first minute-:03 run of a timeframe strictly after a time, both epoch ms."""
    period = PERIOD_S[timeframe] * 1000
    return ((market_time - RUN_DELAY_MS) // period + 1) * period + RUN_DELAY_MS


def is_played_out(board: Board) -> bool:
    """Tell whether a recording has been played to its end."""
    until = board.coverage.recorded_until
    return until is not None and board.market_time >= until


def is_resting(board: Board) -> bool:
    """Tell whether nothing more will come: of a played out recording, of a past board."""
    return board.is_past or is_played_out(board)


def is_stale(board: Board, now: int) -> bool:
    """Tell whether the next hourly run is overdue at `now` (epoch ms) beyond the grace."""
    return not is_played_out(board) and now > next_run("1h", board.market_time) + GRACE_MS


def changes_at(board: Board, now: int) -> int | None:
    """Return when what `freshness` says of a board at `now` ends (epoch ms), None for never."""
    following = next_run("1h", board.market_time)
    windows = [at for window in _windows(board, has_late=True) for at in window]
    times = (*windows, following, following + GRACE_MS + 1)
    return None if is_resting(board) else min((at for at in times if at > now), default=None)


def nothing_new_before(board: Board, now: int, timeframe: Timeframe) -> Instant | None:
    """Return the next run; None where it is due, late assets may still come, or none follows."""
    windows = _windows(board, has_late=bool(board.snapshot.late))
    again = min([next_run(timeframe, board.market_time), *(w[0] for w in windows if w[0] > now)])
    is_awaited = any(begins <= now < ends for begins, ends in windows)
    if is_resting(board) or is_stale(board, now) or is_awaited or again <= now:
        return None
    return instant(again)


def _windows(board: Board, *, has_late: bool) -> list[tuple[int, int]]:
    """Return when bars may come between two runs (epoch ms): late ones, and those of delays."""
    delays = [0] * has_late + [delay_s for delay_s in board.coverage.delays if delay_s]
    begins = [board.market_time + 1000 * delay_s for delay_s in delays]
    return [(at, at + LATE_PASSES_MS) for at in begins]


def recorded_note(until: int) -> str:
    """Say when a recording ends (epoch ms)."""
    return f"recorded until {instant(until)}."


def freshness(
    board: Board, now: int, *notes: str, timeframe: Timeframe | None = None
) -> dict[str, Any]:
    """Return the fields of `Freshness` for an answer that is about one timeframe or all of them.

    `notes` join the note, which is None where it is empty.
    """
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
        "nothing_new_before": nothing_new_before(board, now, timeframe or "1h"),
        "stale": stale,
        "late_assets": list(board.snapshot.late),
        "most_delay_seconds": max(board.coverage.delays, default=0),
        "removed_assets": board.removed,
        "note": " ".join([*_standing_notes(board, now), *notes]) or None,
    }


def stand_in_note(stand_ins: Collection[str]) -> str:
    """Say that bars of some assets are those of perpetuals."""
    return (
        f"{len(stand_ins)} stocks or metals (such as {min(stand_ins)}) follow a perpetual that "
        "stands in for them: meta.stand_ins of the catalog names them."
    )


def removed_note(asset: CoveredAsset) -> str:
    """Say since when an asset is not covered any more and what it continues as."""
    successor = f", its coin continues as {asset.continues_as}" * bool(asset.continues_as)
    since = f"{asset.ticker} was removed on {asset.removed_on}"
    return f"{since}{successor}; its readings no longer change."


def shown_legacy_keys(shown: Iterable[Container[StoredKey]]) -> LegacyKeys:
    """Return the outdated keys that occur in what an answer shows, and what to use instead."""
    shown = list(shown)
    return {old: new for old, new in LEGACY_KEYS.items() if any(old in keys for keys in shown)}


def _standing_notes(board: Board, now: int) -> list[str]:
    notes = []
    if board.coverage.source == "simulated":
        notes.append(SIMULATED_NOTE)
    if stand_ins := board.coverage.stand_ins:
        notes.append(stand_in_note(stand_ins))
    if is_played_out(board) and board.coverage.recorded_until is not None:
        notes.append(recorded_note(board.coverage.recorded_until))
    if is_stale(board, now):
        notes.append(STALE_NOTE)
    if board.is_past:
        notes.append(f"The board as it was served at {instant(now)}; it does not change any more.")
    return notes
