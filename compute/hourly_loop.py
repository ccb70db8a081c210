"""The hourly loop: a run at every minute :03 UTC, passes for late assets, a daily prune.

It sleeps in short steps and judges by the clock alone, so neither suspend nor a jump of the clock
does harm. What fails is logged and begun again from what the store holds.
"""

import traceback
from collections.abc import Awaitable, Callable, Iterable
from time import perf_counter
from typing import Final

import structlog

from compute.bars import DAY_S
from compute.hourly_pipeline import HourlyPipeline
from compute.schedule import to_market_ms
from compute.sources.source import NotReadyError
from schemas.clock import Clock
from schemas.vocabulary import format_instant
from store.errors import LockTakenError, MarketStore

LATE_RETRY_DELAYS_S = (30, 60, 120)
SLEEP_STEP_S = 1.0
RETRY_S = 10.0

log = structlog.get_logger("compute")


class HourlyLoop:
    """Runs every hour that is due, one after another, until it is cancelled."""

    def __init__(
        self,
        pipeline: HourlyPipeline,
        store: MarketStore,
        clock: Clock,
        sleep: Callable[[float], Awaitable[object]],
        *,
        is_prepared: bool,
        on_run: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """`clock` tells the wall clock (epoch ms); `sleep` waits for some seconds.

        `ran` hears how many seconds each run took, without the passes for late assets.
        """
        self._pipeline: Final = pipeline
        self._store: Final = store
        self._clock: Final = clock
        self._sleep: Final = sleep
        self._is_prepared = is_prepared
        self._on_run: Final = on_run
        self._has_resumed = False
        self._pruned_day = -1

    async def run(self) -> None:
        """Run until cancelled, or until a recording has been played to its end.

        LockTakenError where another process computes, or may by now.
        """
        while not (self._is_prepared and self._pipeline.is_finished):
            try:
                await self._run_if_due()
                await self._sleep(SLEEP_STEP_S)
            except LockTakenError:
                raise
            except NotReadyError as error:
                log.warning("source_not_ready", reason=str(error))
                await self._sleep(RETRY_S)
            except Exception as error:
                self._is_prepared = self._has_resumed = False
                log_failure(error)
                await self._sleep(RETRY_S)
        await self._store.unlock()

    async def _run_if_due(self) -> None:
        if not self._is_prepared:
            await self._pipeline.prepare()
            self._is_prepared = True
            log.info("computing", done=format_instant(to_market_ms(self._pipeline.done_hour)))
        if not self._has_resumed:
            self._has_resumed = True
            await self._retry_late_assets(self._pipeline.done_hour, self._clock())
        if self._pipeline.due_hour > self._pipeline.done_hour:
            await self._run_hour(self._pipeline.due_hour)

    async def _run_hour(self, due: int) -> None:
        fetched_at, began = self._clock(), perf_counter()
        await self._pipeline.run_until(due)
        self._on_run(perf_counter() - began)
        await self._retry_late_assets(due, fetched_at)
        log.info("run", hour=format_instant(due * 1000), late=list(self._pipeline.late_tickers))
        if due // DAY_S != self._pruned_day:
            log.info("pruned", rows=await self._store.prune())
            self._pruned_day = due // DAY_S

    async def _retry_late_assets(self, hour: int, fetched_at: int) -> None:
        """Make the passes for late assets whose time comes after all were last asked (ms)."""
        for offset_s in list_retry_delays_s(self._pipeline.delays):
            at = to_market_ms(hour) + offset_s * 1000
            if fetched_at >= at:
                continue
            if not self._pipeline.pending_tickers or not await self._wait_until(hour, at):
                break
            fetched_at = self._clock()
            await self._pipeline.run_late()

    async def _wait_until(self, hour: int, at: int) -> bool:
        """Wait for a time (ms); False where the next run's has come or the clock went back."""
        while to_market_ms(hour) <= self._clock() < at:
            await self._sleep(SLEEP_STEP_S)
        return self._clock() >= at and self._pipeline.due_hour == hour


def list_retry_delays_s(delays: Iterable[int]) -> list[int]:
    """Return when after a run what was not there is asked for again, in seconds.

    That is for late assets, and when bars come that are delayed by so much.
    """
    return sorted(
        {*LATE_RETRY_DELAYS_S, *(d + late for d in delays for late in (0, *LATE_RETRY_DELAYS_S))}
    )


def log_failure(error: Exception) -> None:
    """Log a run that failed and will be begun again."""
    where = "".join(traceback.format_tb(error.__traceback__))
    log.error("run_failed", failure=f"{type(error).__name__}: {error}", where=where)
