"""Compares bars: with those stored or recorded before, with the session, with other venues."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from math import exp, log as ln
from typing import Final, NamedTuple

import numpy as np

from compute.bars import COLUMNS, HOUR_S, Prices, Series, Times
from compute.rebuild import build_funding, build_series
from compute.schedule import find_last_run
from compute.sources.files import BARS_HEADER, FUNDING_HEADER, FilesSource
from compute.sources.source import SourceError
from compute.sources.venue import VenueError
from compute.trading_sessions import Calendar, list_expected_bars
from compute.universe import Universe
from schemas.vocabulary import format_instant
from store.sql.market_store import MarketStore

# A split divides all prices by one number, here to within 0.2 %. MIN_SPLIT is half a percent less
# than the smallest stock dividend that is declared as a split. Anything else is a venue's small
# correction, which must not change readings that were published.
MIN_SPLIT, MAX_SCALE_DEVIATION = 0.015, 0.002
MAX_COMPARED_BARS = 6
# As a logarithm: opens are rarely so far from the close before them.
MIN_GAP: Final = 0.04
MIN_COMPARED_BARS = 3
StoredBarsLoader = Callable[[str, int], Awaitable[Series]]


class HistoryDiff(NamedTuple):
    """Open times of stored bars with other values, and of bars missing among the stored ones.

    `split_ratio` is the number of new shares for an old one, None if there was no split.
    """

    revised: tuple[int, ...] = ()
    backfilled: tuple[int, ...] = ()
    split_ratio: float | None = None


def select_compared(stored: Series) -> Series:
    """Return the newest stored bars, and those around their largest gap, perhaps a split."""
    # A vendor may adjust the bars from before a split hours or days after it.
    gaps = np.abs(np.log(stored.open[1:] / stored.close[:-1]))
    is_large = len(gaps) > 0 and gaps.max() > MIN_GAP
    newest = int(gaps.argmax()) + 1 if is_large else len(stored)
    return stored.select(np.arange(len(stored)) >= newest - MAX_COMPARED_BARS)


def diff_history(stored: Series, fetched: Series) -> HistoryDiff:
    """Compare stored bars with the bars that the venue now returns for the same time.

    At a split all of them are divided by one number, or only those from before it.
    """
    opens, stored_indexes, fetched_indexes = np.intersect1d(
        stored.open_time, fetched.open_time, return_indices=True
    )
    before, now = (
        np.stack([s.open, s.high, s.low, s.close, s.volume])[:, places]
        for s, places in ((stored, stored_indexes), (fetched, fetched_indexes))
    )
    ratio = before[:4] / now[:4]
    is_same = np.all(np.abs(ratio - 1) < MAX_SCALE_DEVIATION, axis=0)
    scaled = int(is_same.argmax()) if is_same.any() else len(opens)
    scale = float(np.median(ratio[:, :scaled])) if scaled else 1.0
    is_scaled = bool((np.abs(ratio[:, :scaled] / scale - 1) < MAX_SCALE_DEVIATION).all())
    # One bar may be rescaled by chance; three are taken as evidence, or all if fewer are stored.
    has_enough_bars = scaled >= min(MIN_COMPARED_BARS, len(stored)) and is_same[scaled:].all()
    if is_scaled and has_enough_bars and abs(scale - 1) > MIN_SPLIT:
        return HistoryDiff(split_ratio=scale)
    revised = opens[(before != now).any(axis=0)]
    missed = np.setdiff1d(fetched.open_time, stored.open_time)
    places = np.searchsorted(stored.open_time, missed)
    backfilled = missed[(places > 0) & (places < len(stored))]
    return HistoryDiff(tuple(revised.tolist()), tuple(backfilled.tolist()))


# A venue that shortens its answers delivers more in smaller windows. One that has no more bars
# costs a request per hole, one that returns 200 of a year's 7,920 bars about 40. Bars that
# stay missing are never fetched again, because the asset's watermark passes them.
MAX_REQUESTS: Final = 64
MAX_HOLES: Final = 16
# A venue that twice brings nothing for a single hour has no trades in the others either. They would
# otherwise double the requests of a first start.
MAX_FRUITLESS_HOURS: Final = 2
MIN_SPLIT_S: Final = 96 * HOUR_S
# As many bars before the first one show whether the listing began then.
PROBED_BARS: Final = 24

BarFetcher = Callable[[int, int], Awaitable[Series]]


def list_missing(session: Calendar, bars: Series, after: int, until: int) -> Times:
    """Return the closes in (after, until] that the session expects and that no bar has."""
    expected = list_expected_bars(session, after, until).close_time
    return expected[~np.isin(expected, bars.close_time)]


async def fill_holes(
    session: Calendar, bars: Series, after: int, fetch: BarFetcher, *, may_begin_later: bool
) -> Series:
    """Return `bars` with what `fetch` adds to the closes between `after` and the newest bar.

    `fetch` returns the bars that close in (after, until]. If `may_begin_later`, closes before the
    first bar are fetched only if the venue has bars shortly before it.
    """
    if not len(bars):
        return bars
    newest = int(bars.close_time[-1])
    if may_begin_later:
        bars, after = await _find_beginning(session, bars, after, fetch)
    missing = list_missing(session, bars, after, newest)
    if not len(missing):
        return bars
    # A few holes far from each other must not cost the history between them again.
    holes = np.split(missing, np.flatnonzero(np.diff(missing) > MIN_SPLIT_S) + 1)
    holes = holes if len(holes) <= MAX_HOLES else [missing]
    windows = [(int(hole[0]) - HOUR_S, int(hole[-1])) for hole in holes]
    requests = fruitless = 0
    while windows and requests < MAX_REQUESTS and fruitless < MAX_FRUITLESS_HOURS:
        windows.sort(key=lambda window: window[1] - window[0])
        begin, end = windows.pop()
        count, answer = len(bars), await fetch(begin, end)
        known = bars.select((bars.close_time > begin) & (bars.close_time <= end))
        bars = _merge(bars, answer)
        requests += 1
        # A window that brings nothing new has nothing more, unless its answer was shortened: then
        # it lacks bars that an earlier one had, and shorter windows bring the others.
        longest_s = max(len(answer) * HOUR_S, MIN_SPLIT_S)
        is_short = not np.isin(known.close_time, answer.close_time).all()
        # A longer hole may be a halt, which says nothing of the next one.
        fruitless += end - begin <= HOUR_S
        if len(bars) > count or (is_short and end - begin > longest_s):
            windows += _split(list_missing(session, bars, begin, end), longest_s)
            fruitless = 0
    return bars


async def _find_beginning(
    session: Calendar, bars: Series, after: int, fetch: BarFetcher
) -> tuple[Series, int]:
    """Return the bars, with older ones if the venue has them, and the time they may begin."""
    first = int(bars.open_time[0])
    earlier = list_missing(session, bars, after, first)[-PROBED_BARS:]
    if not len(earlier):
        return bars, after
    older = await fetch(int(earlier[0]) - HOUR_S, int(earlier[-1]))
    return (_merge(bars, older), after) if len(older) else (bars, first)


def _split(missing: Times, longest_s: int) -> list[tuple[int, int]]:
    """Return windows of at most a length that hold the missing closes."""
    windows = []
    while len(missing):
        begin = int(missing[0]) - HOUR_S
        inside = missing <= begin + longest_s
        windows.append((begin, int(missing[inside][-1])))
        missing = missing[~inside]
    return windows


def _merge(bars: Series, others: Series) -> Series:
    """Return the bars and those of the others that close at other times, oldest first."""
    joined = bars.concatenate(others.select(~np.isin(others.close_time, bars.close_time)))
    order = np.argsort(joined.close_time)
    return Series(*(getattr(joined, name)[order] for name in COLUMNS))


# A bar is extreme if it leaves the range of the bars before it by more than this factor. Of 97,305
# hourly bars of 13 coins and 2 stocks, recorded from 2024 to 2026, one did: ADA rose by 33 % in the
# hour of an announcement. A factor of 1.2 found 5, of 1.1 found 47.
MAX_FACTOR: Final = 1.3
# A range of several bars, so that the first bar after a spike is not extreme itself.
PREDECESSORS: Final = 6
MIN_PREDECESSORS: Final = 3
# Venues differ in how far an extreme price reaches.
CONFIRMING_SHARE: Final = 0.5


# How far a bar leaves the range of its predecessors upwards and downwards, as logarithms, 0 if it
# does not.
Move = tuple[float, float]


async def find_reason_to_hold(bars: Series, others: Iterable[BarFetcher]) -> str:
    """Return why the last bar is implausible, empty if it is not extreme or is confirmed.

    `others` fetch the bars of other venues that close in (after, until]. The first one that has the
    same hours decides.
    """
    move = _measure_move(bars)
    if move is None or max(move) <= ln(MAX_FACTOR):
        return ""
    begin, end = int(bars.open_time[-PREDECESSORS - 1 :][0]), int(bars.close_time[-1])
    for fetch in others:
        with suppress(VenueError):
            theirs = await fetch(begin, end)
            other = _measure_move(theirs)
            if other is not None and theirs.close_time[-1] == end:
                pairs = [(m, o) for m, o in zip(move, other, strict=True) if m > ln(MAX_FACTOR)]
                is_alike = all(o >= CONFIRMING_SHARE * m for m, o in pairs)
                return "" if is_alike else _describe(move, end)
    return _describe(move, end)


def _describe(move: Move, close_time: int) -> str:
    return (
        f"the bar that closed at {format_instant(1000 * close_time)} leaves the range of the bars "
        f"before it by a factor of {exp(max(move)):.3g} and no other venue confirms it, so it is "
        "held until the next run"
    )


def _measure_move(bars: Series) -> Move | None:
    """Return the move of the last bar, None if it has too few predecessors."""
    if len(bars) <= MIN_PREDECESSORS:
        return None
    # The open may lie outside low to high: venues publish such bars.
    highs = np.log(np.maximum(bars.open, bars.high)[-PREDECESSORS - 1 :])
    lows = np.log(np.minimum(bars.open, bars.low)[-PREDECESSORS - 1 :])
    up, down = highs[-1] - highs[:-1].max(), lows[:-1].min() - lows[-1]
    return max(0.0, float(up)), max(0.0, float(down))


ACTION = "restore the file, or set SIGNALS_DATABASE_URL to another database"


# Times, oldest first, and the values of the other columns with shape (rows, columns).
Rows = tuple[Times, Prices]


async def check_recorded_past(store: MarketStore, source: FilesSource, universe: Universe) -> None:
    """Raise SourceError if the recording has other prices, rates or rows than the store.

    All that the recording has up to the last run is compared. Rows of later runs may be added, and
    the oldest rows may be gone from the recording: they stay in the store.
    """
    # The stored rows were published, and a recording cannot say why its past is another one now.
    # So nothing is restated, as it is for a split of a live stock; the operator has to decide.
    differences = [found async for found in _find_differences(store, source, universe)]
    if differences:
        others = len(differences) - 1
        more = f" ({others} other files differ too)" if others else ""
        raise SourceError(f"{differences[0]}{more}; {ACTION}")


async def _find_differences(
    store: MarketStore, source: FilesSource, universe: Universe
) -> AsyncIterator[str]:
    """Yield a line for each file of the recording that differs from the store."""
    progress = await store.progress()
    if progress.source != source.name or progress.market_time is None:
        return
    coverage = (await store.snapshot()).coverage
    covered = {asset.ticker for asset in coverage.assets if asset.timeframes} if coverage else ()
    done_hour = find_last_run(progress.market_time)
    watermarks = {row.ticker: row.watermark for row in await store.watermarks()}
    next_run, ends = done_hour + HOUR_S, universe.end_time_by_ticker
    for ticker in sorted(await store.publish_from()):
        native = source.get_native_timeframe(ticker)
        if native is None:
            continue
        bars = build_series(await store.bars(ticker), native)
        # An asset that was not covered for a while continues at its last stored bar.
        is_continued = ticker in covered or not len(bars)
        until = done_hour if is_continued else int(bars.close_time[-1])
        # An hourly file that ended before the others may go on, if another run steps those bars.
        if next_run <= (source.ends_at or 0) and next_run < ends.get(ticker, next_run + 1):
            until = min(until, watermarks.get(ticker, until))
        # A removed asset has no bars that close after its removal.
        until = min(until, ends.get(ticker, until + 1) - 1)
        recorded = await source.fetch(ticker, -1, until)
        stored = bars.select(bars.close_time <= until)
        # No reading depends on a volume, and vendors correct them for days.
        prices = [
            (each.open_time, np.stack([each.open, each.high, each.low, each.close], axis=1))
            for each in (stored, recorded.bars)
        ]
        funding = build_funding(await store.funding(ticker)).select_between(-1, until)
        rates = [
            (each.settled_at, each.rate[:, np.newaxis]) for each in (funding, recorded.funding)
        ]
        for what, header, (before, now) in (
            (native, BARS_HEADER, prices),
            ("funding", FUNDING_HEADER, rates),
        ):
            if difference := _describe_difference(header[1:], before, now):
                yield f"{source.get_path(ticker, what)}: {difference}"


def _describe_difference(columns: Sequence[str], stored: Rows, recorded: Rows) -> str:
    """Return how many rows differ, and the first of them; an empty text if all are equal."""
    times, stored_places, recorded_places = np.intersect1d(
        stored[0], recorded[0], assume_unique=True, return_indices=True
    )
    differs = stored[1][stored_places] != recorded[1][recorded_places]
    gone = np.setdiff1d(stored[0], times, assume_unique=True)
    rows_by_kind = {
        "changed": times[differs.any(axis=1)],
        # An export of the newest bars begins later than the one before.
        "removed": gone[gone > recorded[0][0]] if len(recorded[0]) else gone,
        "added": np.setdiff1d(recorded[0], times, assume_unique=True),
    }
    counts = [f"{len(rows)} {kind}" for kind, rows in rows_by_kind.items() if len(rows)]
    if not counts:
        return ""
    first = int(np.concatenate(list(rows_by_kind.values())).min())
    before, now = (values[at == first].ravel().tolist() for at, values in (stored, recorded))
    pairs = enumerate(zip(before, now, strict=False))
    column = next((place for place, (old, new) in pairs if old != new), 0)
    return (
        f"rows that were computed differ from the database ({', '.join(counts)}); the first has ts "
        f"{first} ({format_instant(1000 * first)}), {columns[column]}: "
        f"{_format_value(before, column)} in the database, {_format_value(now, column)} in the file"
    )


def _format_value(row: Sequence[float], column: int) -> str:
    return repr(row[column]) if row else "no row"
