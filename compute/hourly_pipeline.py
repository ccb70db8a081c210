"""Runs the nominal hours: fetch from a source, step, publish and commit to the store.

Replay, catch-up and live runs share this code; they differ in how many hours a batch holds.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple, Self

import structlog

from compute.bars import DAY_S, HOUR_S
from compute.batch_assembler import BatchAssembler
from compute.covered_assets import add_dropped_assets, build_coverage
from compute.executor import OpenExecutor, open_local_executor
from compute.indicators.contract import Indicator
from compute.late_assets import HistoryBuilder, open_tracker
from compute.rebuild import StateLoader, load_published_times
from compute.schedule import (
    NAMED_PAUSE_DAYS,
    HistoryBounds,
    count_pause_days,
    find_last_run,
    to_market_ms,
)
from compute.sources.source import FetchResult, Source
from compute.universe import Universe
from schemas.vocabulary import Clock, Timeframe, format_instant
from store.market_rows import Batch, Progress
from store.sql.market_store import MarketStore

# Measured on a first start of a year: batches of 10, 30, 40 and 60 days took 24, 20, 19 and 17 s
# and peaked at 170, 240, 275 and 345 MB. Forty days is the longest that stays below 300 MB.
BATCH_S = 40 * DAY_S
# Stepping the histories that have arrived takes several seconds, which must not make a run late.
BUILD_MARGIN_MS = 60_000
OnCommit = Callable[[Batch], None]
OnProgress = Callable[[int, int], None]
SignLog = Callable[[], Awaitable[None]]

log = structlog.get_logger("compute")


class RowCounts(NamedTuple):
    """How many rows of the market store a run wrote."""

    bars: int = 0
    changes: int = 0
    alerts: int = 0


class HourlyPipeline:
    """Brings a store up to an hour, any number of times; create one with `open`.

    After an error, open another one: the state in memory may be ahead of the store.
    """

    def __init__(
        self,
        store: MarketStore,
        source: Source,
        universe: Universe,
        indicators: Sequence[Indicator],
        clock: Clock,
        open_executor: OpenExecutor,
        on_commit: OnCommit,
        sign_log: SignLog | None,
        *,
        believes_clock: bool,
    ) -> None:
        """Callers use `open`, which loads the stored state."""
        self._store: Final = store
        self._source: Final = source
        self._universe: Final = universe
        self._indicators: Final = indicators
        self._open_executor: Final = open_executor
        self._on_commit: Final = on_commit
        self._sign_log: Final = sign_log
        # A recording ends at its last bar, at any time.
        self._believes_clock: Final = believes_clock or source.ends_at is not None
        # A recording stops the market clock at its last bar's run.
        until = None if source.ends_at is None else to_market_ms(source.ends_at)
        self._market_clock: Final = clock if until is None else lambda: min(clock(), until)
        self._recorded_until: Final = until
        self._commit_task: asyncio.Future[None] | None = None
        self._has_restated = False
        self._written = RowCounts()

    @classmethod
    async def open(
        cls,
        store: MarketStore,
        source: Source,
        universe: Universe,
        indicators: Sequence[Indicator],
        clock: Clock,
        open_executor: OpenExecutor = open_local_executor,
        on_commit: OnCommit = lambda batch: None,
        sign_log: SignLog | None = None,
        *,
        believes_clock: bool = False,
    ) -> Self:
        """Lock the store, adopt the source, publish the coverage and load the stored state.

        `clock` is a wall clock; the market clock follows it. An executor rebuilds outdated carries;
        `on_commit` is called with each committed batch, `sign_log` after the batches of a run.
        Raise LockTakenError if another process computes on the store, and NotReadyError if the
        clock is far from the last run, unless `believes_clock`.
        """
        pipeline = cls(
            *(store, source, universe, indicators, clock, open_executor, on_commit, sign_log),
            believes_clock=believes_clock,
        )
        # Locked before anything is read, because only the holder of the lock may change it.
        await store.lock()
        progress = await store.progress()
        now, last_run = pipeline._market_clock(), progress.last_known_time
        days = count_pause_days(now, last_run, believes_clock=pipeline._believes_clock)
        if last_run is not None and not 0 <= days < NAMED_PAUSE_DAYS:
            times = {"clock": format_instant(now), "last_run": format_instant(last_run)}
            log.warning("clock_far_from_last_run", days=days, **times)
        started_at = await store.adopt_source(source.name, pipeline._market_clock())
        await pipeline._load(progress, started_at)
        return pipeline

    async def _load(self, progress: Progress, started_at: int) -> None:
        """Publish the coverage, and load the state that the runs continue.

        `started_at` (epoch ms) is the first start of the store.
        """
        store, source, universe = self._store, self._source, self._universe
        first_run, ends_at = find_last_run(started_at), source.ends_at
        shown_from = max(0, started_at - 1000 * source.shown_history_s)
        self._bounds = HistoryBounds(
            shown_from if ends_at is None else 0,
            first_run if ends_at is None else ends_at,
            to_market_ms(first_run),
        )
        covered_before = await self._publish_coverage(self._bounds.served_from)
        native_timeframes = {
            ticker: timeframe
            for ticker in universe.by_ticker
            if (timeframe := source.get_native_timeframe(ticker)) is not None
        }
        self._loader = StateLoader(
            store, universe, self._indicators, native_timeframes, self._open_executor
        )
        market_time, publish_from = progress.market_time, await store.publish_from()
        self._done_hour = -HOUR_S if market_time is None else find_last_run(market_time)
        self._tracker = await open_tracker(
            *(store, source, universe, native_timeframes),
            *(self._done_hour, publish_from.keys(), covered_before),
        )
        self._assembler = BatchAssembler(
            await self._loader.load_state(),
            self._tracker,
            publish_from,
            progress.last_created_at,
            await load_published_times(store),
            self._bounds,
            self._market_clock,
        )
        self._builder = HistoryBuilder(source, self._tracker, universe, self._market_clock)

    async def _publish_coverage(self, served_from: int) -> set[str]:
        """Publish what the source can serve; return the assets that were covered before."""
        coverage = build_coverage(
            self._universe,
            self._source,
            self._indicators,
            self._market_clock(),
            self._recorded_until,
            served_from,
        )
        published = await self._store.snapshot()
        old = None if published.market_time is None else published.coverage
        today = datetime.fromtimestamp((published.market_time or 0) // 1000, UTC).date()
        await self._store.publish_coverage(add_dropped_assets(coverage, old, today))
        return {asset.ticker for asset in (old.assets if old else ()) if asset.timeframes}

    @property
    def done_hour(self) -> int:
        """The hour of the last run, one hour before the epoch if there was none."""
        return self._done_hour

    @property
    def due_hour(self) -> int:
        """The hour of the newest run whose market time has come."""
        return find_last_run(self._market_clock())

    @property
    def has_time_to_build(self) -> bool:
        """Whether histories can be stepped without making the next run late."""
        return self._market_clock() <= to_market_ms(self._done_hour + HOUR_S) - BUILD_MARGIN_MS

    @property
    def is_finished(self) -> bool:
        """Whether a recording has been played to its end, so that no run follows."""
        return self._source.ends_at is not None and self._done_hour >= self._source.ends_at

    @property
    def late(self) -> dict[str, tuple[Timeframe, ...]]:
        """The timeframes of each asset whose due candle the last batch could not step."""
        return self._tracker.late

    @property
    def building_tickers(self) -> tuple[str, ...]:
        """The assets whose history is being built between the runs, sorted."""
        return tuple(sorted(self._tracker.building))

    @property
    def untried_tickers(self) -> frozenset[str]:
        """The assets whose history is being built and of which no fetch has failed yet."""
        return self._builder.untried_tickers

    @property
    def asset_count(self) -> int:
        """The number of assets that the source covers."""
        return len(self._tracker.watermarks)

    @property
    def has_snapshot(self) -> bool:
        """Whether the store may be served: the first start has built the history."""
        return self._done_hour >= 0 and to_market_ms(self._done_hour) >= self._bounds.served_from

    @property
    def pending_tickers(self) -> tuple[str, ...]:
        """The assets with a candle that another fetch may let the last run step."""
        closes = self._assembler.state.buffer.find_pending_closes()
        return self._tracker.list_pending(self._done_hour, closes)

    @property
    def delays(self) -> tuple[int, ...]:
        """The delays (seconds) that the source declares, sorted, without duplicates and 0."""
        tickers = self._tracker.watermarks
        return tuple(sorted({self._source.get_delay_s(ticker) for ticker in tickers} - {0}))

    async def has_source_moved(self) -> bool:
        """Let the source choose its venues again if that is due; return whether any has changed.

        After a change, runs need a new pipeline.
        """
        return await self._source.has_moved()

    async def run_until(
        self, until: int, on_progress: OnProgress = lambda done, end: None
    ) -> RowCounts:
        """Run every hour up to `until` at which something is due, in batches of forty days.

        If the source ends earlier, so does the run. Return what was written. Raise NotReadyError
        if the source is not ready, or the hour is too far from the last run.
        """
        self._written = RowCounts()
        if self._done_hour >= 0:
            # A first start that was interrupted goes on from long ago.
            last = max(self._done_hour, self._bounds.backfilled_until)
            times = to_market_ms(until), to_market_ms(last)
            count_pause_days(*times, believes_clock=self._believes_clock)
        await self._source.check_ready()
        end = until if self._source.ends_at is None else min(until, self._source.ends_at)
        first = self._find_next_hour()
        start = self._done_hour if first is None else max(self._done_hour, first - HOUR_S)
        on_progress(start, end)
        batch = await self._run_batches(end, on_progress)
        if batch is not None:
            await self._commit(batch)
        if self._done_hour < end:
            await self._commit(await self._step(self._done_hour + HOUR_S, end, {}))
        await self._sign()
        return self._written

    async def _run_batches(self, end: int, on_progress: OnProgress) -> Batch | None:
        """Run every hour up to `end` and commit all batches but the last, which is returned."""
        batch: Batch | None = None
        while (first := self._find_next_hour()) is not None and first <= end:
            # The batches lie on a fixed grid: a process that was killed and restarted commits the
            # same batches as an uninterrupted one, and so writes the same digest chain.
            batch_end = min((first // BATCH_S + 1) * BATCH_S - HOUR_S, end)
            # The rows of a batch have all nominal times, or none.
            if first <= self._bounds.backfilled_until:
                batch_end = min(batch_end, self._bounds.backfilled_until)
            # The batch before is committed while this one steps.
            if batch is not None:
                self._commit_task = asyncio.ensure_future(self._commit(batch))
            try:
                batch = await self._run_batch(self._done_hour + HOUR_S, batch_end)
            finally:
                if self._commit_task is not None:
                    await self._commit_task
            on_progress(self._done_hour, end)
        return batch

    async def run_late(self) -> RowCounts:
        """Run the last hour again for the assets that lag behind it.

        Commit if anything has arrived, or if other candles are late now. The rows are dated by the
        market clock, even after the last hour of a backfill. Return what was written.
        """
        self._written = RowCounts()
        self._assembler.end_backfill()
        late_before = self._tracker.late
        tickers = self._tracker.list_behind(self._done_hour)
        fetched = await self._tracker.fetch(tickers, self._done_hour)
        batch = await self._step(self._done_hour, self._done_hour, fetched)
        if batch.bars or batch.funding or batch.carries or self._tracker.late != late_before:
            await self._commit(batch)
            await self._sign()
        return self._written

    async def build_history(self) -> RowCounts:
        """Commit the histories that were fetched between the runs.

        Start to fetch what is still missing, without waiting for it. The bars are stepped at their
        own closes on all timeframes, and their rows dated by the market clock. Return what was
        written.
        """
        self._written = RowCounts()
        building = self._tracker.building
        if not building or self._done_hour < 0:
            return self._written
        self._assembler.end_backfill()
        if fetched := self._builder.take_fetched(self._done_hour):
            await self._commit(await self._step(self._done_hour, self._done_hour, fetched))
            await self._sign()
        self._builder.start_fetches(self._done_hour)
        if built := building - self._tracker.building:
            log.info("history_built", assets=sorted(built), building=len(self._tracker.building))
        return self._written

    async def close(self) -> None:
        """Cancel the fetches of histories that are being built."""
        await self._builder.close()

    def _find_next_hour(self) -> int | None:
        """Return the next hour at which a bar, new or buffered, or a held alert is due."""
        watermarks, state = self._tracker.watermarks, self._assembler.state
        hours = [*state.buffer.find_pending_closes().values(), *state.alerts.list_due_hours()]
        for ticker in self._tracker.list_followed():
            if (close := self._source.find_next_close(ticker, watermarks[ticker])) is not None:
                hours.append(close)
        return max(min(hours), self._done_hour + HOUR_S) if hours else None

    async def _sign(self) -> None:
        if self._sign_log is not None:
            await self._sign_log()

    async def _commit(self, batch: Batch) -> None:
        await self._store.commit(batch)
        bars, changes, alerts = self._written
        self._written = RowCounts(
            bars + sum(map(len, batch.bars)),
            changes + len(batch.changes),
            alerts + len(batch.alerts),
        )
        self._on_commit(batch)

    async def _run_batch(self, start: int, until: int) -> Batch:
        """Fetch the followed assets and step everything due at the runs `start` to `until`.

        The later batches do not wait again for assets that cost this one its history: those are
        built between the runs.
        """
        # Sources compare new bars with the stored ones. A history that was restated must be stored
        # before the next fetch, or it would be restated twice.
        if self._has_restated:
            await self._wait_for_commit()
        fetched = await self._tracker.fetch(self._tracker.list_followed(), until)
        if aside := self._tracker.set_aside(fetched, start, until):
            log.warning("history_set_aside", assets=aside, building=len(self._tracker.building))
        return await self._step(start, until, fetched)

    async def _step(self, start: int, until: int, fetched: Mapping[str, FetchResult]) -> Batch:
        """Step everything due at the runs `start` to `until`, with the fetched bars."""
        restated = {ticker: new for ticker, new in fetched.items() if new.is_restated}
        self._has_restated = bool(restated)
        if restated:
            await self._wait_for_commit()
        # As part of this batch. The rebuild reads the store, so no commit may be in progress.
        for ticker, new in restated.items():
            series, _ = self._tracker.cut_at_removal(ticker, new)
            await self._loader.rebuild_asset(self._assembler.state, ticker, series, new.reason)
        batch = await asyncio.to_thread(self._assembler.assemble, start, until, fetched)
        self._done_hour = until
        return batch

    async def _wait_for_commit(self) -> None:
        # `wait` does not raise its error; `_run_batches` does.
        if self._commit_task is not None:
            await asyncio.wait([self._commit_task])
