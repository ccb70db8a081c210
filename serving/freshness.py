"""The freshness fields of every response: source, age, and when to come back."""

from collections.abc import Collection, Container, Iterable
from typing import Any

from schemas.coverage import CoveredAsset
from schemas.result import LegacyKeys, NextUpdate
from schemas.vocabulary import (
    LEGACY_KEYS,
    RUN_DELAY_MS,
    TIMEFRAME_DURATIONS_S,
    TIMEFRAMES,
    Instant,
    StoredKey,
    Timeframe,
    format_instant,
)
from serving.snapshot_cache import Snapshot

GRACE_MS = 600_000
LATE_BATCHES_MS = 180_000

SIMULATED_NOTE = "Simulated market data: prices and readings are not those of a real market."
STALE_NOTE = "Stale: the last compute is older than the schedule allows, readings may be outdated."


def find_next_run(timeframe: Timeframe, market_time: int) -> int:
    """Return the first minute-:03 run of a timeframe strictly after a time, both epoch ms."""
    period = TIMEFRAME_DURATIONS_S[timeframe] * 1000
    return ((market_time - RUN_DELAY_MS) // period + 1) * period + RUN_DELAY_MS


def is_recording_over(snapshot: Snapshot) -> bool:
    """Tell whether a recording has been played to its end."""
    until = snapshot.coverage.recorded_until
    return until is not None and snapshot.market_time >= until


def is_final(snapshot: Snapshot) -> bool:
    """Tell whether nothing more will come: a recording that is over, a past snapshot."""
    return snapshot.is_past or is_recording_over(snapshot)


def is_stale(snapshot: Snapshot, now: int) -> bool:
    """Tell whether the next hourly run is overdue at `now` (epoch ms) beyond the grace."""
    return (
        not is_recording_over(snapshot)
        and now > find_next_run("1h", snapshot.market_time) + GRACE_MS
    )


def find_expiry(snapshot: Snapshot, now: int) -> int | None:
    """Return when the result of `build_freshness` at `now` expires (epoch ms), None for never."""
    next_run_at = find_next_run("1h", snapshot.market_time)
    windows = [at for window in _list_late_windows(snapshot, has_late=True) for at in window]
    times = (*windows, next_run_at, next_run_at + GRACE_MS + 1)
    return None if is_final(snapshot) else min((at for at in times if at > now), default=None)


def find_nothing_new_before(snapshot: Snapshot, now: int, timeframe: Timeframe) -> Instant | None:
    """Return the next run; None where it is due, late assets may still come, or none follows."""
    windows = _list_late_windows(snapshot, has_late=bool(snapshot.stored.late_tickers))
    next_expected = min(
        [find_next_run(timeframe, snapshot.market_time), *(w[0] for w in windows if w[0] > now)]
    )
    is_pending = any(begins <= now < ends for begins, ends in windows)
    if is_final(snapshot) or is_stale(snapshot, now) or is_pending or next_expected <= now:
        return None
    return format_instant(next_expected)


def _list_late_windows(snapshot: Snapshot, *, has_late: bool) -> list[tuple[int, int]]:
    """Return when bars may come between two runs (epoch ms): late ones, and those of delays."""
    delays = [0] * has_late + [delay_s for delay_s in snapshot.coverage.delays if delay_s]
    begins = [snapshot.market_time + 1000 * delay_s for delay_s in delays]
    return [(at, at + LATE_BATCHES_MS) for at in begins]


def format_recorded_note(until: int) -> str:
    """Say when a recording ends (epoch ms)."""
    return f"recorded until {format_instant(until)}."


def build_freshness(
    snapshot: Snapshot, now: int, *notes: str, timeframe: Timeframe | None = None
) -> dict[str, Any]:
    """Return the fields of `Freshness` for an answer that is about one timeframe or all of them.

    `notes` join the note, which is None where it is empty.
    """
    final, stale = is_final(snapshot), is_stale(snapshot, now)
    return {
        "source": snapshot.coverage.source,
        "simulated": snapshot.coverage.source == "simulated",
        "as_of": format_instant(snapshot.market_time),
        "next_update": NextUpdate.model_validate(
            {
                timeframe: None
                if final
                else format_instant(find_next_run(timeframe, snapshot.market_time))
                for timeframe in TIMEFRAMES
            }
        ),
        "nothing_new_before": find_nothing_new_before(snapshot, now, timeframe or "1h"),
        "stale": stale,
        "late_assets": list(snapshot.stored.late_tickers),
        "most_delay_seconds": max(snapshot.coverage.delays, default=0),
        "removed_assets": snapshot.removed_tickers,
        "note": " ".join([*_list_notes(snapshot, now), *notes]) or None,
    }


def format_proxy_note(proxies: Collection[str]) -> str:
    """Say that bars of some assets are those of perpetuals."""
    return (
        f"{len(proxies)} stocks or metals (such as {min(proxies)}) follow a perpetual that "
        "stands in for them: meta.stand_ins of the catalog names them."
    )


def format_removed_note(asset: CoveredAsset) -> str:
    """Say since when an asset is not covered any more and what it continues as."""
    successor = f", its coin continues as {asset.continues_as}" * bool(asset.continues_as)
    since = f"{asset.ticker} was removed on {asset.removed_on}"
    return f"{since}{successor}; its readings no longer change."


def find_legacy_keys(key_sets: Iterable[Container[StoredKey]]) -> LegacyKeys:
    """Return the outdated keys that occur in what an answer shows, and what to use instead."""
    key_sets = list(key_sets)
    return {old: new for old, new in LEGACY_KEYS.items() if any(old in keys for keys in key_sets)}


def _list_notes(snapshot: Snapshot, now: int) -> list[str]:
    notes = []
    if snapshot.coverage.source == "simulated":
        notes.append(SIMULATED_NOTE)
    if proxies := snapshot.coverage.stand_ins:
        notes.append(format_proxy_note(proxies))
    if is_recording_over(snapshot) and snapshot.coverage.recorded_until is not None:
        notes.append(format_recorded_note(snapshot.coverage.recorded_until))
    if is_stale(snapshot, now):
        notes.append(STALE_NOTE)
    if snapshot.is_past:
        notes.append(
            f"The board as it was served at {format_instant(now)}; it does not change any more."
        )
    return notes
