"""The hourly loop: a run at minute :03 UTC, batches for late assets after it, a daily prune."""

import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter
from typing import Final

import structlog

from compute.bars import DAY_S
from compute.hourly_pipeline import HourlyPipeline, RowCounts
from compute.schedule import to_market_ms
from compute.sources.source import NotReadyError
from schemas.errors import OperatorError
from schemas.vocabulary import Clock, format_instant
from store.failure_log import FailureLog
from store.sql.market_store import MarketStore
from store.store_errors import LockTakenError, StoreError

LATE_RETRY_DELAYS_S = (30, 60, 120)
# The loop sleeps in short steps and compares clocks after each. One long sleep would run late
# after the machine was suspended or its clock was set.
SLEEP_STEP_S = 1.0
RETRY_S = 10.0
MAX_LOGGED_NAMES = 10
OpenPipeline = Callable[[], Awaitable[HourlyPipeline]]

log = structlog.get_logger("compute")


class HourlyLoop:
    """Runs each due hour, one after another, until cancelled."""

    def __init__(
        self,
        open_pipeline: OpenPipeline,
        store: MarketStore,
        clock: Clock,
        sleep: Callable[[float], Awaitable[object]],
        *,
        pipeline: HourlyPipeline | None = None,
        on_run: Callable[[float], None] = lambda seconds: None,
        on_failing: Callable[[bool], None] = lambda are_failing: None,
        failures: FailureLog | None = None,
    ) -> None:
        """Take a wall clock and an async `sleep` (seconds); `pipeline` is one already open.

        `on_run` is called with the duration of each run in seconds, without the batches for late
        assets, `on_failing` when runs begin to fail, and when they no longer do. `failures` logs
        failed runs.
        """
        self._open_pipeline: Final = open_pipeline
        self._pipeline = pipeline
        self._store: Final = store
        self._clock: Final = clock
        self._sleep: Final = sleep
        self._on_run: Final = on_run
        self._on_failing: Final = on_failing
        self._is_failing: bool | None = None
        # Why the source cannot be read, None if it can; not known at first.
        self._outage: str | None = ""
        self._has_resumed = False
        self._pruned_day = -1
        self._failures: Final = failures or FailureLog()

    async def run(self) -> None:
        """Run until cancelled, or until a recording has been played to its end.

        If a run fails, it is logged and repeated by a new pipeline after 10 seconds. Raise
        LockTakenError if another process computes on the store, or may have begun to.
        """
        try:
            await self._run_all()
        finally:
            await self._close_pipeline()
        # The market clock of a recording rests at its end, so no row expires after this.
        while True:
            try:
                await self._prune()
                break
            except StoreError as error:
                log_run_failure(self._failures, error)
                await self._sleep(RETRY_S)
        # A recording that has ended needs no compute. Without the lock, another process can
        # replay the bars that its folder gains later.
        await self._store.unlock()

    async def _run_all(self) -> None:
        """Run each due hour until a recording has been played to its end."""
        while self._pipeline is None or not self._pipeline.is_finished:
            try:
                await self._run_if_due(self._pipeline or await self._reopen_pipeline())
                self._report_failing(False)
                await self._record_outage(None)
                await self._wait_step()
            # Trying again would compete with the process that computes now.
            except LockTakenError:
                self._report_failing(False)
                raise
            except NotReadyError as error:
                reason = {"reason": str(error)}
                self._failures.write(log.warning, "source_not_ready", reason)
                with suppress(StoreError):
                    await self._record_outage(str(error))
                await self._sleep(RETRY_S)
            except Exception as error:
                # The state in memory may be ahead of the store, so it is loaded again.
                self._report_failing(True)
                await self._close_pipeline()
                log_run_failure(self._failures, error)
                await self._sleep(RETRY_S)

    def _report_failing(self, is_failing: bool) -> None:
        if is_failing is not self._is_failing:
            self._is_failing = is_failing
            self._on_failing(is_failing)

    async def _record_outage(self, reason: str | None) -> None:
        if reason != self._outage:
            await self._store.record_outage(reason)
            self._outage = reason

    async def _close_pipeline(self) -> None:
        pipeline, self._pipeline, self._has_resumed = self._pipeline, None, False
        if pipeline is not None:
            await pipeline.close()

    async def _prune(self) -> None:
        began = perf_counter()
        rows = await self._store.prune()
        log.info("pruned", rows=rows, duration_s=round(perf_counter() - began, 3))

    async def _reopen_pipeline(self) -> HourlyPipeline:
        self._pipeline = await self._open_pipeline()
        done = self._pipeline.done_hour
        # A first start has computed no hour yet.
        log.info("computing", done=format_instant(to_market_ms(done)) if done > 0 else None)
        return self._pipeline

    async def _run_if_due(self, pipeline: HourlyPipeline) -> None:
        # The process may have stopped between an hour's run and its batches for late assets.
        if not self._has_resumed:
            self._has_resumed = True
            fetched_at = self._clock()
            if pipeline.done_hour == pipeline.due_hour and pipeline.pending_tickers:
                await self._run_late(pipeline)
            await self._retry_late_assets(pipeline, pipeline.done_hour, fetched_at)
        if pipeline.due_hour > pipeline.done_hour:
            if await pipeline.has_source_moved():
                await self._close_pipeline()
                pipeline, self._has_resumed = await self._reopen_pipeline(), True
            due, fetched_at, began = pipeline.due_hour, self._clock(), perf_counter()
            written = await pipeline.run_until(due)
            self._on_run(perf_counter() - began)
            log_run("run", pipeline, written, began)
            await self._retry_late_assets(pipeline, due, fetched_at)
            if due // DAY_S != self._pruned_day:
                await self._prune()
                self._pruned_day = due // DAY_S
        await self._build_history(pipeline)

    async def _retry_late_assets(
        self, pipeline: HourlyPipeline, hour: int, fetched_at: int
    ) -> None:
        """Run an hour's late assets at each retry delay that ends after `fetched_at` (epoch ms)."""
        # Assets of a delayed source are fetched after its delay, and late ones after each retry
        # delay.
        offsets_s = {0, *LATE_RETRY_DELAYS_S}
        delays_s = {delay + late for delay in (0, *pipeline.delays) for late in offsets_s}
        for offset_s in sorted(delays_s - {0}):
            at = to_market_ms(hour) + offset_s * 1000
            if fetched_at >= at:
                continue
            if not pipeline.pending_tickers or not await self._wait_until(pipeline, hour, at):
                break
            fetched_at = self._clock()
            await self._run_late(pipeline)

    async def _run_late(self, pipeline: HourlyPipeline) -> None:
        began = perf_counter()
        log_run("run_late", pipeline, await pipeline.run_late(), began)

    async def _build_history(self, pipeline: HourlyPipeline) -> None:
        """Build the histories that have arrived, unless the next run is near."""
        if not pipeline.building_tickers or not pipeline.has_time_to_build:
            return
        began = perf_counter()
        written = await pipeline.build_history()
        if written != RowCounts():
            log_run("history_part", pipeline, written, began)

    async def _wait_step(self) -> None:
        """Sleep for a step; raise LockTakenError now, not an hour later, if the lock is lost."""
        await self._sleep(SLEEP_STEP_S)
        self._store.check_lock()

    async def _wait_until(self, pipeline: HourlyPipeline, hour: int, at: int) -> bool:
        """Wait until `at` (epoch ms); False if the next run is due or the clock went back."""
        while to_market_ms(hour) <= self._clock() < at:
            await self._build_history(pipeline)
            await self._wait_step()
        return self._clock() >= at and pipeline.due_hour == hour


def log_run(event: str, pipeline: HourlyPipeline, written: RowCounts, began: float) -> None:
    """Log what a run that began at a time of `perf_counter` wrote, and which assets are late."""
    late = list(pipeline.late)
    log.info(
        event,
        hour=format_instant(pipeline.done_hour * 1000),
        **written._asdict(),
        duration_s=round(perf_counter() - began, 3),
        late=len(late),
        late_assets=late[:MAX_LOGGED_NAMES],
        building=len(pipeline.building_tickers),
    )


def log_run_failure(failures: FailureLog, error: Exception) -> None:
    """Log the error of a failed run; the first time with its traceback, if it is unexpected."""
    # Unlike a request, a run handles no customers' data, so every message can be logged.
    cause, details = {"failure": f"{type(error).__name__}: {error}"}, {}
    if not isinstance(error, OperatorError):
        frames = traceback.extract_tb(error.__traceback__)
        cause["where"] = " < ".join(
            f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames[-4:])
        )
        details["traceback"] = "".join(traceback.format_list(frames))
    failures.write(log.error, "run_failed", cause, **details)
