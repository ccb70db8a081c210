"""Builds the `meta` fields on source and age of the data, and on when to call again."""

from collections.abc import Collection, Container, Hashable, Iterable, Iterator, Sequence
from typing import Any

from schemas.coverage import Coverage, CoveredAsset
from schemas.result import LegacyKeys
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
from serving.response_cache import ResponseBody
from serving.snapshot import Snapshot

# Late batches run up to 120 s after the run, and rows take up to 5 minutes to appear.
GRACE_MS = 600_000
# Late assets are fetched again 30, 60 and 120 s after the run; the last batch has a minute to end.
LATE_BATCHES_MS = 180_000
# How far the market time may be ahead of the wall clock: clocks of two machines differ a little.
MAX_SKEW_MS = 60_000
MAX_NAMED_TICKERS = 5
MAX_NAMED_ENDINGS = 3

# Hosts cut results of 50,000 characters.
NOTED_CHARS = 50_000

SAMPLE_NOTE = "Fixed documentation rows, not live data."
NO_CALL = "Nothing more will come, so do not call again for it."
STALE_NOTE = "Stale: a scheduled compute is overdue, so readings may be outdated."
AHEAD_NOTE = (
    "Stale: as_of is in the future, so the clock of the server is or was wrong and the age of the "
    "readings is unknown."
)


def find_next_run(timeframe: Timeframe, market_time: int) -> int:
    """Return the first minute-:03 run of a timeframe strictly after a time, both epoch ms."""
    period = TIMEFRAME_DURATIONS_S[timeframe] * 1000
    return ((market_time - RUN_DELAY_MS) // period + 1) * period + RUN_DELAY_MS


def is_recording_over(snapshot: Snapshot) -> bool:
    """Return true if the source is a recording and the market time has reached its end."""
    until = snapshot.coverage.recorded_until
    return until is not None and snapshot.market_time >= until


def is_final(snapshot: Snapshot) -> bool:
    """Return true if the snapshot will never be replaced: a finished recording or a past one."""
    return snapshot.is_past or is_recording_over(snapshot)


def is_stale(snapshot: Snapshot, now: int) -> bool:
    """Return true if at `now` (epoch ms) the next hourly run is overdue by more than the grace.

    Also if the snapshot is dated ahead of `now`, because its age is then unknown.
    """
    is_overdue = now > find_next_run("1h", snapshot.market_time) + GRACE_MS
    return not is_recording_over(snapshot) and (is_overdue or is_ahead(snapshot, now))


def is_ahead(snapshot: Snapshot, now: int) -> bool:
    """Return true if the snapshot is dated later than `now` (epoch ms), beyond a small skew.

    A recording may lie in the future on purpose, so it never is.
    """
    is_recording = snapshot.coverage.recorded_until is not None
    return not is_recording and snapshot.market_time > now + MAX_SKEW_MS


def find_expiry(snapshot: Snapshot, now: int) -> int | None:
    """Return when the result of `build_freshness` at `now` expires, in epoch ms; None for never."""
    # The window of late assets counts even if none is late: an early expiry only costs one more
    # rendering. `is_stale` compares with >, hence the + 1.
    next_run_at = find_next_run("1h", snapshot.market_time)
    windows = [at for window in _list_late_windows(snapshot, has_late=True) for at in window]
    not_ahead_from = snapshot.market_time - MAX_SKEW_MS
    times = (*windows, not_ahead_from, next_run_at, next_run_at + GRACE_MS + 1)
    return None if is_final(snapshot) else min((at for at in times if at > now), default=None)


def keep_response(
    snapshot: Snapshot, key: Hashable, body: ResponseBody, now: int, *, is_past: bool = False
) -> None:
    """Cache a response with the snapshot and the time (epoch ms) for which it was rendered."""
    cache = snapshot.past_responses if is_past else snapshot.responses
    cache.put(key, body, now, find_expiry(snapshot, now))


def find_nothing_new_before(snapshot: Snapshot, now: int, timeframe: Timeframe) -> Instant | None:
    """Return the time of the next run of a timeframe.

    None if it is due or overdue, if bars of late or delayed assets may still arrive, if the history
    of an asset is being built, or if no run follows.
    """
    windows = _list_late_windows(snapshot, has_late=bool(snapshot.stored.late))
    next_expected = min(
        [find_next_run(timeframe, snapshot.market_time), *(w[0] for w in windows if w[0] > now)]
    )
    is_pending = bool(snapshot.stored.building_tickers) or any(
        begins <= now < ends for begins, ends in windows
    )
    if is_final(snapshot) or is_stale(snapshot, now) or is_pending or next_expected <= now:
        return None
    return format_instant(next_expected)


def _list_late_windows(snapshot: Snapshot, *, has_late: bool) -> list[tuple[int, int]]:
    """Return the (begin, end) times in epoch ms at which late or delayed bars may arrive."""
    delays = [0] * has_late + [delay_s for delay_s in snapshot.coverage.delays if delay_s]
    begins = [snapshot.market_time + 1000 * delay_s for delay_s in delays]
    return [(at, at + LATE_BATCHES_MS) for at in begins]


def format_size_note(chars: int) -> str:
    """Return a note on the size of a large result."""
    return f"This result has {chars:,} characters; view=lines says the same in far fewer."


def format_recorded_note(until: int) -> str:
    """Return a note on the end of a recording (epoch ms)."""
    return f"Recorded market data, up to {format_instant(until)}."


def list_timing_exceptions(coverage: Coverage) -> Iterable[str]:
    """Yield a sentence for each reason why rows come later than 3 to 5 minutes after the close."""
    delayed = [asset.ticker for asset in coverage.tracked if asset.timeframes and asset.delay_s]
    if delayed:
        minutes = -(-max(coverage.delays) // 60)
        yield (
            f"Bars of {_format_tickers(delayed)} arrive up to {minutes} minutes after their close, "
            "so their rows come that much later (meta.most_delay_seconds)."
        )
    if coverage.off_hour_tickers:
        yield (
            f"Some recorded bars of {_format_tickers(coverage.off_hour_tickers)} open off the "
            "hour, or daily ones off 00:00 UTC: such a bar counts as closed at the next full hour, "
            "or 00:00 UTC, after it ends."
        )


def _format_tickers(tickers: Sequence[str]) -> str:
    more = len(tickers) - MAX_NAMED_TICKERS
    names = ", ".join(tickers[:MAX_NAMED_TICKERS])
    return f"{names} and {more} more" if more > 0 else names


def build_freshness(
    snapshot: Snapshot,
    now: int,
    *notes: str,
    timeframe: Timeframe | None = None,
    tickers: Collection[str] | None = None,
    has_data: bool = True,
    as_lines: bool = False,
) -> dict[str, Any]:
    """Return the fields of `Freshness` for a result of one timeframe, by default of all.

    `tickers` are the assets of the result, by default all. `notes` are appended to the general
    notes. If a note contains NO_CALL, `nothing_new_before` is None. If the result has no data, the
    notes on the quality of data are left out. `as_lines` leaves out the next runs, if
    `nothing_new_before` says when to call again.
    """
    stored = snapshot.stored
    named = snapshot.assets.keys() if tickers is None else tickers
    building = [each for each in snapshot.building_tickers if each in named]
    # These only qualify data.
    qualified = named if has_data else ()
    ended = [each for each in snapshot.ended_tickers if each in qualified]
    final, stale = is_final(snapshot), is_stale(snapshot, now)
    begins_at = None
    if not any(NO_CALL in note for note in notes):
        begins_at = find_nothing_new_before(snapshot, now, timeframe or "1h")
    return {
        "source": "sample" if snapshot.stored.is_sample else snapshot.coverage.source,
        "simulated": snapshot.coverage.source == "simulated",
        "as_of": format_instant(snapshot.market_time),
        "next_update": {}
        if final or (as_lines and begins_at)
        else {
            each: format_instant(find_next_run(each, snapshot.market_time)) for each in TIMEFRAMES
        },
        "nothing_new_before": begins_at,
        "stale": stale,
        "late_assets": {each: list(late) for each, late in stored.late.items() if each in named},
        "building_assets": building,
        "ended_assets": ended,
        "missing_bars": {each: n for each, n in stored.missing_bars.items() if each in qualified},
        "most_delay_seconds": max(
            (
                a.delay_s
                for a in snapshot.coverage.tracked
                if a.timeframes and a.ticker in qualified
            ),
            default=0,
        ),
        "removed_assets": [each for each in snapshot.removed_tickers if each in qualified],
        "note": " ".join(
            [
                *(_list_data_notes(snapshot, named, ended) if has_data else []),
                *(
                    [
                        f"The history of {_format_tickers(building)} is still being built, so "
                        "readings of it are missing or outdated; meta.building_assets lists such "
                        "assets."
                    ]
                    if building
                    else []
                ),
                *([AHEAD_NOTE if is_ahead(snapshot, now) else STALE_NOTE] if stale else []),
                *(
                    [f"Readings as served at {format_instant(now)}; they no longer change."]
                    if snapshot.is_past
                    else []
                ),
                *notes,
            ]
        )
        or None,
    }


def format_removed_note(asset: CoveredAsset) -> str:
    """Return a note on the removal of an asset and its successor."""
    successor = f" and continues as {asset.continues_as}" * bool(asset.continues_as)
    since = f"{asset.ticker} was removed on {asset.removed_on}"
    return f"{since}{successor}; its readings no longer change."


def find_legacy_keys(key_sets: Iterable[Container[StoredKey]]) -> LegacyKeys:
    """Return the outdated keys in a result, each with its replacement."""
    key_sets = list(key_sets)
    return {old: new for old, new in LEGACY_KEYS.items() if any(old in keys for keys in key_sets)}


def _list_data_notes(
    snapshot: Snapshot, named: Container[str], ended: Sequence[str]
) -> Iterator[str]:
    """Yield the notes on where the data of some assets come from; `ended` are those that ended."""
    if snapshot.stored.is_sample:
        yield SAMPLE_NOTE
        return
    proxies = [each for each in snapshot.coverage.stand_ins if each in named]
    if len(proxies) == 1:
        yield f"{proxies[0]} uses the bars of a perpetual as a proxy."
    elif proxies:
        yield (
            f"{len(proxies)} stocks or metals ({_format_tickers(sorted(proxies))}) use the bars of "
            "a perpetual as a proxy; meta.stand_ins of the catalog lists them."
        )
    if is_recording_over(snapshot) and snapshot.coverage.recorded_until is not None:
        yield format_recorded_note(snapshot.coverage.recorded_until)
    closes = {ticker: snapshot.assets[ticker].last_close or 0 for ticker in ended}
    if len(ended) > MAX_NAMED_ENDINGS:
        first, last = format_instant(min(closes.values())), format_instant(max(closes.values()))
        yield (
            f"The recorded bars of {len(ended)} assets ended between {first} and {last}, so "
            "their readings are outdated; meta.ended_assets lists them."
        )
        return
    for ticker, at in closes.items():
        yield (
            f"The recorded bars of {ticker} ended at {format_instant(at)}, so its readings are "
            "outdated."
        )
