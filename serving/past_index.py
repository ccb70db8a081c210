"""Keeps in memory all that past snapshots are made of, so that each is a search instead of reads.

It is read in the background when a past snapshot is first requested, then follows the commits. Its
snapshots equal those of the store, which answers until it is read, and if it would be too large.
"""

import asyncio
from array import array
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import structlog

from schemas.errors import describe_failure
from schemas.vocabulary import (
    HOUR_MS,
    RUN_DELAY_MS,
    TIMEFRAME_DURATIONS_S,
    find_latest_run,
)
from serving.board_log import BYTES_PER_CHANGE, BoardLog
from store.codes import TIMEFRAMES_BY_CODE
from store.errors import StoreError
from store.lagging import COUNTED_HISTORY_MS, find_building_tickers, find_late
from store.market_rows import (
    BarRun,
    PastCommit,
    PastCommits,
    PastKey,
    PastMissingBars,
    StoredSnapshot,
    WatermarkRow,
)

if TYPE_CHECKING:  # So that client commands such as `signals stdio` do not import NumPy.
    from store.sql.market_store import MarketStore
    from store.sql.past_log import Runs

log = structlog.get_logger("past")

# A year of 251 assets takes about 25 MB.
MAX_INDEX_BYTES = 60_000_000
BYTES_PER_COMMIT, BYTES_PER_WATERMARK, BYTES_PER_RUN = 200, 300, 16
# A slice takes 2 ms of the event loop. After each, the loop has the pause for other work.
CHANGES_PER_READ, PAUSE_S = 2048, 0.005
COMMITS_PER_READ = 5000
# A call waits while the hours of a day are read, not for more.
MAX_AWAITED_COMMITS = 24


class BarTimes:
    """When the bars of an asset and timeframe open, as runs of consecutive bars."""

    def __init__(self, period_s: int) -> None:
        self._period_s = period_s
        self._firsts = array("q")
        self._lasts = array("q")

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._firsts)

    def extend(self, runs: Iterable[BarRun]) -> None:
        """Append later runs."""
        for first, last in runs:
            if self._lasts and first - self._lasts[-1] == self._period_s:
                self._lasts[-1] = last
            else:
                self._firsts.append(first)
                self._lasts.append(last)

    def find_last_close(self, at: int) -> int | None:
        """Return the close of the last bar that opened a whole period before a time; epoch s."""
        period_s = self._period_s
        opened_by = at // period_s * period_s - period_s
        after = bisect_right(self._firsts, opened_by)
        if not after:
            return None
        first = self._firsts[after - 1]
        opened = first + (opened_by - first) // period_s * period_s
        opened = min(opened, self._lasts[after - 1])
        # A bar that opens off its boundary closes on the next one.
        return -(-(opened + period_s) // period_s) * period_s


class CommitLog:
    """The times of all commits."""

    def __init__(self) -> None:
        self._market_times = array("q")
        self._is_nominal = bytearray()
        self._last_created_at = array("q")
        # (time from which on a commit counts, its number)
        self._starts: list[tuple[int, int]] = []

    @property
    def number(self) -> int:
        """The number of the last commit, 0 before the first."""
        return len(self._market_times)

    @property
    def last_created_at(self) -> int:
        """The `created_at` of the last row of all commits, 0 without rows."""
        return self._last_created_at[-1] if self._last_created_at else 0

    def append(self, commit: PastCommit) -> None:
        """Append the next commit."""
        number, market_time, written_at, last = commit
        insort(self._starts, (market_time if written_at is None else written_at, number))
        self._last_created_at.append(self.last_created_at if last is None else last)
        self._market_times.append(market_time)
        self._is_nominal.append(written_at is None)

    def has_state(self, state: StoredSnapshot) -> bool:
        """Return whether a state that was the latest is that of the commit with its number."""
        place = (state.number or 0) - 1
        ends = self._market_times[place], self._last_created_at[place]
        return ends == (state.market_time, state.last_created_at)

    def find_key(self, at: int) -> PastKey:
        """Return the key of the state that was the latest at a time, as `find_past_key` does."""
        after = bisect_right(self._starts, (at, self.number))
        number = self._starts[after - 1][1] if after else 0
        market_time = self._market_times[number - 1] if number else 0
        run = find_latest_run(at)
        if number < self.number and self._is_nominal[number] and run > market_time:
            return PastKey(None, run, run + HOUR_MS - 1)
        return PastKey(number, market_time, self._last_created_at[number - 1] if number else 0)


class PastIndex:
    """The commits of a store up to `number`, from which it builds past snapshots."""

    def __init__(self, store: "MarketStore", max_bytes: int = MAX_INDEX_BYTES) -> None:
        self._store = store
        self._max_bytes = max_bytes
        self._task: asyncio.Task[None] | None = None
        self._forget()

    def _forget(self) -> None:
        if self._task is not None:
            self._task.cancel()
        self._is_off = False
        self._commits = CommitLog()
        self._boards = BoardLog()
        self._boards_until = 0
        self._tickers: dict[int, str] = {}
        self._published_from: dict[str, int] = {}
        self._revisions: dict[int, int] = {}
        self._bar_times: dict[int, dict[int, BarTimes]] = {}
        self._watermarks: dict[int, Sequence[WatermarkRow]] = {}
        self._missing_bars: list[PastMissingBars] = []

    @property
    def number(self) -> int:
        """The number of the last commit that is here, 0 before the index was read."""
        return self._commits.number

    async def prepare(self, latest: StoredSnapshot) -> bool:
        """Return whether the index is that of the latest state; read the last commits first."""
        number = latest.number or 0
        if 0 < number <= self.number and not self._commits.has_state(latest):
            # The database was restored from a copy.
            self._forget()
        if number <= self.number or self._is_off:
            return 0 < number == self.number
        reading = self._start_reading()
        if not self.number or number - self.number > MAX_AWAITED_COMMITS:
            return False
        await asyncio.wait([reading])
        return number == self.number

    async def follow(self) -> None:
        """Read the commits that are missing here."""
        await asyncio.wait([self._start_reading()])

    def find_key(self, at: int) -> PastKey:
        """Return the key of the state that was the latest at a time (epoch ms)."""
        return self._commits.find_key(at)

    def build(self, key: PastKey, latest: StoredSnapshot) -> StoredSnapshot | None:
        """Return the state of a key; None if the index lacks it or is not of the latest state."""
        if key.last_created_at < self._boards.begins or self.number != latest.number:
            return None
        watermarks = () if key.number is None else self._watermarks.get(key.number, ())
        building, unbuilt = find_building_tickers(watermarks, self._published_from)
        return StoredSnapshot(
            coverage=latest.coverage,
            market_time=key.market_time,
            last_created_at=key.last_created_at,
            readings=self._boards.get_readings(key.last_created_at, self._tickers),
            late=find_late(watermarks, latest.coverage, self._published_from),
            building_tickers=building,
            unbuilt_tickers=unbuilt,
            history_starts_at=latest.history_starts_at,
            last_closes=self._find_last_closes(watermarks, key.market_time),
            missing_bars=self._count_missing_bars(key.market_time),
        )

    def _find_last_closes(
        self, watermarks: Sequence[WatermarkRow], market_time: int
    ) -> dict[str, int]:
        """Return the close (epoch s) of the last bar of each ticker at a run, if it has one."""
        run_s = (find_latest_run(market_time) - RUN_DELAY_MS) // 1000
        lagging = {row.ticker: row.watermark for row in watermarks}
        closes: dict[str, int] = {}
        for asset_id, times in self._bar_times.items():
            ticker = self._tickers[asset_id]
            until = lagging.get(ticker, run_s)
            for each in times.values():
                close = each.find_last_close(until)
                if close is not None:
                    closes[ticker] = max(close, closes.get(ticker, 0))
        return closes

    def _count_missing_bars(self, market_time: int) -> dict[str, int]:
        """Return how many bars the history of each ticker lacks at a market time, if any."""
        after, until = (market_time - COUNTED_HISTORY_MS) // 1000, market_time // 1000
        counts: Counter[str] = Counter()
        for asset_id, revision, bars, first_close, last_close in self._missing_bars:
            is_current = revision == self._revisions.get(asset_id)
            if is_current and last_close > after and first_close <= until:
                counts[self._tickers[asset_id]] += bars
        return dict(counts)

    def _start_reading(self) -> "asyncio.Task[None]":
        """Return the task that reads what is missing; all callers share it."""
        if self._task is None:
            self._task = asyncio.create_task(self._read())
            self._task.add_done_callback(self._on_read)
        return self._task

    def _on_read(self, task: "asyncio.Task[None]") -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()
        # The store reports its own failures, and the next call tries again. Any other one, such as
        # an indicator of a later version, would come again.
        if error is not None and not isinstance(error, StoreError):
            self._is_off = True
            log.error("past_index_failed", **describe_failure(error))

    async def _read(self) -> None:
        past_log = self._store.past_log
        if not self.number and not self._is_off:
            max_changes = self._max_bytes // BYTES_PER_CHANGE
            self._is_off = await past_log.has_more_changes(max_changes)
        while not self._is_off:
            found = await past_log.load_commits(self.number, COMMITS_PER_READ)
            if not found.commits:
                return
            await self._read_changes(
                max((c.last_created_at or 0 for c in found.commits), default=0)
            )
            restated, runs = await self._read_runs(found)
            # From here on nothing is awaited, so that no call finds half of a commit.
            self._add_commits(found)
            self._add_runs(restated, runs)
            self._limit_bytes()

    async def _read_changes(self, until: int) -> None:
        while self._boards_until < until:
            rows = await self._store.past_log.load_readings(
                self._boards_until, until, CHANGES_PER_READ
            )
            self._boards.append(rows)
            self._boards_until = rows[-1][0] if len(rows) == CHANGES_PER_READ else until
            self._limit_bytes()
            if self._boards_until < until:
                await asyncio.sleep(PAUSE_S)

    async def _read_runs(self, found: PastCommits) -> "tuple[set[int], Runs]":
        """Return the assets whose history was restated, and the new bars; of these, all bars."""
        until = found.commits[-1].number
        restated = {
            asset.id: asset.revision
            for asset in found.assets
            if asset.revision is not None and asset.revision != self._revisions.get(asset.id)
        }
        runs: Runs = {}
        for asset_id, revision in restated.items():
            runs |= await self._store.past_log.load_runs_of_asset(asset_id, revision, until)
        if len(restated) < len(found.assets):
            later = await self._store.past_log.load_runs_of_commits(self.number, until)
            runs |= {cell: own for cell, own in later.items() if cell[0] not in restated}
        return set(restated), runs

    def _add_commits(self, found: PastCommits) -> None:
        for commit in found.commits:
            self._commits.append(commit)
        self._tickers = {asset.id: asset.ticker for asset in found.assets}
        self._published_from = {asset.ticker: asset.publish_from for asset in found.assets}
        self._revisions = {
            asset.id: asset.revision for asset in found.assets if asset.revision is not None
        }
        self._watermarks |= found.watermarks
        self._missing_bars += found.missing_bars

    def _add_runs(self, restated: Iterable[int], runs: "Runs") -> None:
        for asset_id in restated:
            self._bar_times[asset_id] = {}
        for (asset_id, revision, code), own in runs.items():
            if revision == self._revisions.get(asset_id):
                by_timeframe = self._bar_times.setdefault(asset_id, {})
                if code not in by_timeframe:
                    period_s = TIMEFRAME_DURATIONS_S[TIMEFRAMES_BY_CODE[code]]
                    by_timeframe[code] = BarTimes(period_s)
                by_timeframe[code].extend(own)

    def _limit_bytes(self) -> None:
        """Drop the oldest changes beyond the limit; the store answers for them."""
        others = (
            BYTES_PER_COMMIT * self.number
            + BYTES_PER_WATERMARK * sum(map(len, self._watermarks.values()))
            + BYTES_PER_RUN
            * sum(len(times) for each in self._bar_times.values() for times in each.values())
        )
        while self._boards.size_bytes + others > self._max_bytes and self._boards.drop_oldest():
            pass
