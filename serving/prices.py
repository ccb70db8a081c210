"""Prices for pages, from the stored bars of the latest snapshot, and whether they are shown."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from schemas.longer_bars import (
    Prices as PriceColumn,
    Times,
    build_longer_bars,
    compute_close_time,
    find_longer_close,
    mark_changes,
)
from schemas.vocabulary import TIMEFRAME_DURATIONS_S, Timeframe
from serving.snapshot import Snapshot
from serving.snapshot_cache import SnapshotCache
from store.market_rows import AssetBars, BarBlock, RecentBars

HOUR_S, DAY_S = 3600, 86_400
SPARKLINE_S, SPARKLINE_STEP_S = 7 * DAY_S, 4 * HOUR_S
MAX_POINTS = SPARKLINE_S // SPARKLINE_STEP_S
# The week of a sparkline, and the longest time without trading before it.
TAIL_S = 12 * DAY_S

ReadT = TypeVar("ReadT", AssetBars, RecentBars)


def decide_prices(
    chosen: bool | None, stored_source: str | None, set_source: str, *, is_local: bool
) -> tuple[bool, str]:
    """Return whether pages show prices, and why; `chosen` is what the operator chose, if anything.

    The sources are that of the store and that of the settings.
    """
    if chosen is not None:
        return chosen, f"{'shown' if chosen else 'hidden'}, as SIGNALS_SHOW_PRICES says"
    # A process that only serves may leave SIGNALS_SOURCE unset, so the store decides.
    if (stored_source or set_source) != "live":
        return True, "shown, because no venue has rights in them"
    if is_local:
        return True, "shown, because only this machine reaches the service"
    return False, (
        "hidden, because venues may not allow that others see them: SIGNALS_SHOW_PRICES=1 shows "
        "them"
    )


class BarColumns(NamedTuple):
    """Bars of one asset and timeframe as columns of equal length, oldest first.

    `open_times` are epoch ms. A bar that is built from hourly ones opens on its UTC boundary.
    """

    open_times: Sequence[int]
    opens: Sequence[float]
    highs: Sequence[float]
    lows: Sequence[float]
    closes: Sequence[float]
    volumes: Sequence[float]


NO_COLUMNS = BarColumns((), (), (), (), (), ())


@dataclass(frozen=True, slots=True)
class PriceSummary:
    """The last close of an asset, its time (epoch ms), and the week before it.

    `day_change` is a fraction of the last close at or before 24 hours earlier, None if that is
    unknown. `closes` are up to 42 four-hourly closes of the 7 days up to `closed_at`, oldest first,
    and end with `last_close`.
    """

    last_close: float
    closed_at: int
    day_change: float | None
    closes: Sequence[float]


class Prices:
    """Reads bars and summaries of prices; they are those of the latest snapshot, never newer."""

    def __init__(self, snapshots: SnapshotCache) -> None:
        self._snapshots = snapshots
        self._lock = asyncio.Lock()
        self._tails: dict[str, _Tail] = {}
        self._read_until: int | None = None
        self._summarized: tuple[Snapshot, Mapping[str, PriceSummary]] | None = None

    async def load_bars(self, ticker: str, timeframe: Timeframe, since_ms: int) -> BarColumns:
        """Return the stepped bars of an asset that open at or after a time, none if it has none."""
        since = -(-since_ms // 1000)
        # A daily bar of a metal begins with the hours of the day before.
        after = since - DAY_S - HOUR_S
        found = await self._read_current(lambda: self._snapshots.store.asset_bars(ticker, after))
        if found is None:
            return NO_COLUMNS
        snapshot, stored = found
        asset = snapshot.assets.get(ticker)
        joins_sundays = asset is not None and asset.joins_sundays
        return _build_columns(stored, timeframe, since, joins_sundays)

    async def load_summaries(self) -> Mapping[str, PriceSummary]:
        """Return the summary of every asset with bars by ticker, computed once per snapshot."""
        # The lock makes concurrent callers share one load.
        async with self._lock:
            served = await self._snapshots.snapshot()
            if self._summarized is not None and self._summarized[0] is served:
                return self._summarized[1]
            # After the first read, only the bars of later commits are read.
            found = await self._read_current(
                lambda: self._snapshots.store.recent_bars(TAIL_S, self._read_until)
            )
            if found is None:
                return {}
            snapshot, recent = found
            # In the event loop, 251 assets would take 18 ms.
            tails, added = await asyncio.to_thread(_summarize_all, self._tails, recent.blocks)
            summaries = {} if self._summarized is None else self._summarized[1]
            summaries = {**summaries, **added}
            self._tails, self._read_until = {**self._tails, **tails}, recent.number
            self._summarized = snapshot, summaries
            return summaries

    async def _read_current(
        self, read: Callable[[], Awaitable[ReadT]]
    ) -> tuple[Snapshot, ReadT] | None:
        """Return the latest snapshot and what `read` returns for it, None before the first."""
        while (snapshot := await self._snapshots.snapshot()) is not None:
            found = await read()
            if found.number == snapshot.stored.number:
                return snapshot, found
            # A run has committed. PostgreSQL reports that some milliseconds later.
            self._snapshots.expire()
        return None


class _Tail(NamedTuple):
    """The last closes of an asset, of one revision; both columns have shape (bars,)."""

    revision: int
    close_time: Times
    close: PriceColumn


def _summarize_all(
    tails: Mapping[str, _Tail], blocks: Iterable[BarBlock]
) -> tuple[dict[str, _Tail], dict[str, PriceSummary]]:
    """Return the new tails and summaries of the assets that have new bars."""
    extended, summaries = dict[str, _Tail](), dict[str, PriceSummary]()
    for block in blocks:
        close_time = compute_close_time(block.open_time, TIMEFRAME_DURATIONS_S[block.timeframe])
        close, tail = block.values[:, 3], tails.get(block.ticker)
        # A new revision replaces older bars.
        if tail is not None and tail.revision == block.revision:
            close_time = np.concatenate([tail.close_time, close_time])
            close = np.concatenate([tail.close, close])
        # A copy, so that the other columns of the block are not kept.
        kept = close_time > close_time[-1] - TAIL_S
        close_time, close = close_time[kept], close[kept]
        extended[block.ticker] = _Tail(block.revision, close_time, close)
        last, closed_at = float(close[-1]), int(close_time[-1])
        before = int(np.searchsorted(close_time, closed_at - DAY_S, side="right")) - 1
        first = int(np.searchsorted(close_time, closed_at - SPARKLINE_S, side="right"))
        step = find_longer_close(close_time[first:], SPARKLINE_STEP_S)
        # The last close of each step: the one after it begins another step.
        is_last = np.append(mark_changes(step)[1:], True)
        summaries[block.ticker] = PriceSummary(
            last_close=last,
            closed_at=1000 * closed_at,
            day_change=last / float(close[before]) - 1.0 if before >= 0 else None,
            closes=close[first:][is_last][-MAX_POINTS:].tolist(),
        )
    return extended, summaries


def _build_columns(
    stored: AssetBars, timeframe: Timeframe, since: int, joins_sundays: bool
) -> BarColumns:
    """Return the bars that open at or after a time (epoch s), built from hourly ones if needed."""
    block, hourly = stored.blocks.get(timeframe), stored.blocks.get("1h")
    if block is not None:
        open_time, prices = block.open_time, list(block.values.T)
        is_chosen = open_time >= since
    elif hourly is not None:
        longer = build_longer_bars(
            compute_close_time(hourly.open_time, HOUR_S),
            [np.ascontiguousarray(column) for column in hourly.values.T],
            TIMEFRAME_DURATIONS_S[timeframe],
            joins_sundays=joins_sundays,
        )
        open_time, prices = longer.open_time, list(longer[2:])
        # A longer bar steps only in a run of its own timeframe.
        is_chosen = (open_time >= since) & (longer.close_time <= stored.stepped.get(timeframe, 0))
    else:
        return NO_COLUMNS
    return BarColumns(
        (1000 * open_time[is_chosen]).tolist(), *(column[is_chosen].tolist() for column in prices)
    )
