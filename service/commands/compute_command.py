"""`signals compute`, and the same inside `signals serve`: catches up, then runs every hour."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack, suppress
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Final

import structlog

from compute.executor import find_executor
from compute.hourly_loop import HourlyLoop, OpenPipeline, log_run, log_run_failure
from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.registry import INDICATORS
from compute.sources.live import LiveSource
from compute.sources.simulated import SimulatedSource
from compute.sources.source import NotReadyError, Source
from compute.universe import Universe, load_universe
from schemas.result import SIMULATED_NOTE
from schemas.vocabulary import Clock, format_instant
from service.commands.console import (
    OnProgress,
    OpenProgressBar,
    ProgressLog,
    echo,
    open_progress_bar,
    rebase_progress,
)
from service.config.settings import Settings
from service.config.sources import describe_venues, open_log_signer, open_source
from service.config.stores import open_both, retry_until_reached
from service.processes.lifecycle import (
    limit_malloc,
    listen_for_shutdown,
    release_memory,
    run_in_background,
)
from service.processes.steady_clock import COMPUTE_HOLD_MS, make_steady
from store.change_table import count_rows
from store.failure_log import FailureLog
from store.sql.market_store import MarketStore
from store.store_errors import LockTakenError, StoreError

if TYPE_CHECKING:
    from service.http.metrics import Metrics, MetricsServer
    from service.http.resources import Resources
    from service.processes.child_process import ParentReporter

    # Takes runs, batches, checkpoints and failures.
    RunObserver = Metrics | ParentReporter

BuildLoop = Callable[..., HourlyLoop]

PLAYED_OUT_NOTE = "The recording is complete: there is nothing more to compute."
# An error in this time ends the command. Later errors are logged, and the hourly loop retries.
MAX_CATCH_UP_WAIT_S = 2.0
# Histories that have arrived wait so long for each other: many step in about the time of one.
BUILD_STEP_S = 0.2
# A leader that is silent for six seconds loses its lock. With this poll, another process takes over
# within ten.
STANDBY_POLL_S = 1.0
# On a busy machine, calls come before computing.
NICENESS = 10

log = structlog.get_logger("compute")


async def compute(settings: Settings, clock: Clock, *, elapsed: Clock | None = None) -> int:
    """Compute without serving until interrupted, or until a recording is complete.

    `clock` is the wall clock, `elapsed` as for `make_steady`.
    """
    # The compute process of `signals serve` does not run this, and need not load these.
    from service.http.health import answer_waiting, build_readiness
    from service.http.metrics import Metrics, open_metrics_server

    limit_malloc()
    steady_clock = make_steady(clock, elapsed, COMPUTE_HOLD_MS)
    async with AsyncExitStack() as stack:
        cancel_on_request = stack.enter_context(listen_for_shutdown())
        metrics_server = stack.enter_context(open_metrics_server(settings))
        stores = await retry_until_reached(
            lambda: stack.enter_async_context(open_both(settings)),
            cancel_on_request,
            answer_waiting(settings, metrics_server.listener),
        )
        if stores is None:
            return 0
        market, access = stores
        # Nothing here uses it, and the operator may restore it meanwhile.
        await access.close()
        metrics = Metrics(())
        readiness = build_readiness(market, None, clock, metrics)
        with cancel_on_request():
            async with metrics_server.serve_metrics(metrics, readiness):
                text = f"Computing on {settings.store_name}, every hour at minute :03."
                await run_compute(
                    settings, market, steady_clock, metrics, on_ready=partial(echo, text)
                )
                echo(PLAYED_OUT_NOTE)
    return 0


async def run_compute_process(
    settings: Settings,
    parent: "ParentReporter",
    cancel_on_request: Callable[[], AbstractContextManager[None]],
    clock: Clock,
    elapsed: Clock | None,
    computes: bool,
    metrics_server: "MetricsServer | None",
) -> None:
    """Run the jobs of the compute process of `signals serve`; see `create_compute_process`."""
    # `signals compute` needs none of them.
    from service.http.resources import open_resources, run_maintenance

    with suppress(OSError):
        os.nice(NICENESS)
    observer: RunObserver = parent
    on_open = partial(parent.send, "opened")
    async with AsyncExitStack() as stack:
        resources = await stack.enter_async_context(open_resources(settings, clock))
        with cancel_on_request():
            if metrics_server is not None:
                # Only with several workers, because these need as long as all else.
                from rest_shim.endpoints import CALL_NAMES
                from service.http.health import build_readiness
                from service.http.metrics import Metrics

                observer = metrics = Metrics(CALL_NAMES, metrics_server.failing)
                await stack.enter_async_context(
                    metrics_server.serve_metrics(
                        metrics, build_readiness(resources.market, resources.access, clock, metrics)
                    )
                )
            if computes:
                await run_jobs(
                    settings,
                    resources,
                    clock,
                    elapsed,
                    observer,
                    on_open=on_open,
                    open_bar=parent.open_bar,
                )
            else:
                await run_maintenance(settings, resources, clock, elapsed, on_open)


async def run_jobs(
    settings: Settings,
    resources: "Resources",
    clock: Clock,
    elapsed: Clock | None,
    observer: "RunObserver",
    *,
    on_open: Callable[[], None] = lambda: None,
    open_bar: OpenProgressBar = open_progress_bar,
) -> None:
    """Compute and do the daily maintenance until cancelled.

    `clock` is the wall clock, `elapsed` as for `make_steady`. `on_open` is called when everything
    is opened, so that no mistake in the settings is left.
    """
    from service.http.resources import run_maintenance

    has_checked, has_opened = asyncio.Event(), asyncio.Event()
    async with run_in_background(
        run_maintenance(settings, resources, clock, elapsed, has_checked.set)
    ) as maintenance:
        await has_checked.wait()
        async with run_in_background(
            run_compute(
                settings,
                resources.market,
                make_steady(clock, elapsed, COMPUTE_HOLD_MS),
                observer,
                on_open=has_opened.set,
                open_bar=open_bar,
            )
        ):
            await has_opened.wait()
            on_open()
            await asyncio.shield(maintenance)


async def run_compute(
    settings: Settings,
    market: MarketStore,
    clock: Clock,
    observer: "RunObserver",
    *,
    on_open: Callable[[], None] = lambda: None,
    on_ready: Callable[[], None] = lambda: None,
    open_bar: OpenProgressBar = open_progress_bar,
) -> None:
    """Catch up, then run every hour until cancelled, or until a recording is complete.

    `on_open` is called when the source is open, `on_ready` when the catch-up is done or goes on in
    the background.
    """
    universe = load_universe(settings.universe)
    open_executor = await find_executor(settings.dask_scheduler)
    failures = FailureLog()
    async with (
        open_log_signer(settings, market, clock, observer.on_checkpoint) as signer,
        AsyncExitStack() as stack,
    ):
        # After a takeover the store may name another origin or venue, so the source is reopened.
        async def reopen_source() -> tuple[Source, OpenPipeline, BuildLoop]:
            await stack.aclose()
            source = await stack.enter_async_context(open_source(settings, universe, market, clock))
            open_pipeline = partial(
                HourlyPipeline.open,
                *(market, source, universe, INDICATORS, clock, open_executor),
                *(lambda batch: observer.on_rows(*count_rows(batch)), signer.sign),
                believes_clock=settings.believe_clock,
            )
            build_loop = partial(
                HourlyLoop,
                *(open_pipeline, market, clock, asyncio.sleep),
                on_run=observer.on_run,
                on_failing=observer.on_failing,
                failures=failures,
            )
            return source, open_pipeline, build_loop

        source, open_pipeline, build_loop = await reopen_source()
        _announce_source(source, universe)
        catch_up = None
        try:
            pipeline = await open_pipeline()
        except LockTakenError as error:
            echo(f"Standing by to take over when the other process stops: {error}.")
        else:
            catch_up = CatchUp(
                *(pipeline, market, clock, failures, observer.on_failing),
                is_long=isinstance(source, LiveSource),
            )
        on_open()
        async with run_in_background(
            _run_pipeline(catch_up, build_loop, reopen_source, market, failures)
        ) as running:
            if catch_up is not None:
                await catch_up.wait_until_ready(open_bar)
            on_ready()
            await asyncio.shield(running)


def _announce_source(source: Source, universe: Universe) -> None:
    if isinstance(source, SimulatedSource):
        echo(f"{SIMULATED_NOTE} For real prices: make live.")
    elif isinstance(source, LiveSource):
        found = [source.get_answering_venue(one.ticker) for one in universe.tracked_assets]
        echo(f"Live market data: {describe_venues(found)}.")


async def _run_pipeline(
    catch_up: "CatchUp | None",
    build_loop: BuildLoop,
    reopen_source: Callable[[], Awaitable[tuple[Source, OpenPipeline, BuildLoop]]],
    market: MarketStore,
    failures: FailureLog,
) -> None:
    """Catch up, then run every hour; stand by while another process computes."""
    loop = None if catch_up is None else build_loop(pipeline=await catch_up.run())
    # The catch-up has freed most of what it allocated.
    release_memory()
    while True:
        try:
            if loop is not None:
                await loop.run()
                return
        except LockTakenError as error:
            # Another process computes, or may have taken over.
            log.warning("standing_by", reason=str(error))
        loop = None
        while loop is None:
            try:
                await market.lock()
                _, _, build_loop = await reopen_source()
                loop = build_loop()
            except LockTakenError:
                await asyncio.sleep(STANDBY_POLL_S)
            except StoreError as error:
                failures.write(log.warning, "cannot_stand_by", {"reason": str(error)})
                await asyncio.sleep(STANDBY_POLL_S)


class CatchUp:
    """Catches up to the current hour."""

    def __init__(
        self,
        pipeline: HourlyPipeline,
        market: MarketStore,
        clock: Clock,
        failures: FailureLog,
        on_failing: Callable[[bool], None],
        *,
        is_long: bool,
    ) -> None:
        """If `is_long`, wait only briefly, as when a snapshot exists."""
        self._failures: Final = failures
        self._on_failing: Final = on_failing
        self._pipeline: Final = pipeline
        self._market: Final = market
        self._has_snapshot: Final = pipeline.has_snapshot
        self._is_long: Final = is_long
        self._is_building: Final = is_long and bool(pipeline.building_tickers)
        is_first = self._is_building or not self._has_snapshot
        self._activity: Final = "building history" if is_first else "catching up"
        self._on_progress: OnProgress = ProgressLog(self._activity, clock, self._describe_missing)
        self._finished: Final = asyncio.Event()
        # Set once the command no longer waits, and has closed its progress bar.
        self._is_ready: Final = asyncio.Event()

    async def run(self) -> HourlyPipeline | None:
        """Run every hour that is due; return the pipeline, None if a new one must be opened."""
        is_done = False
        try:
            is_done = await self._run_all()
        finally:
            # Otherwise its fetches would compete with those of the new one.
            if not is_done:
                await self._pipeline.close()
        return self._pipeline if is_done else None

    async def _run_all(self) -> bool:
        """Run every hour that is due; return whether the pipeline can go on."""
        # While the command still waits, an error ends it. After that, an error is logged and the
        # hourly loop retries.
        on_progress = rebase_progress(
            # The progress of a history that is built asset by asset is the number of assets.
            lambda done, total: None if self._is_building else self._on_progress(done, total)
        )
        began = perf_counter()
        try:
            written = await self._pipeline.run_until(self._pipeline.due_hour, on_progress)
            # Build the missing histories until their venues have failed, or the hourly loop is due.
            while (
                self._pipeline.untried_tickers
                and self._pipeline.has_time_to_build
                and not self._pipeline.pending_tickers
            ):
                await self._pipeline.build_history()
                total = self._pipeline.asset_count
                self._on_progress(total - len(self._pipeline.building_tickers), total)
                await asyncio.sleep(BUILD_STEP_S)
        except asyncio.CancelledError:
            reached = (await self._market.progress()).market_time
            begin = "from the beginning" if reached is None else f"from {format_instant(reached)}"
            echo(f"Stopped while {self._activity}. The next start continues {begin}.")
            raise
        except LockTakenError as error:
            log.warning("lock_lost", reason=str(error))
            self._finished.set()
            return False
        except NotReadyError as error:
            # For the 503s, the pages and the doctor; the hourly loop tries again.
            with suppress(StoreError):
                await self._market.record_outage(str(error))
            echo(f"Nothing can be computed yet: {error}.")
            self._finished.set()
            return False
        except Exception as error:
            if not self._is_ready.is_set():
                raise
            log_run_failure(self._failures, error)
            self._on_failing(True)
            return False
        self._finished.set()
        # A line would break the progress bar.
        await self._is_ready.wait()
        log_run("caught_up", self._pipeline, written, began)
        if missing := self._describe_missing():
            echo(f"Caught up{missing}: the others are built as their venues answer.")
        elif self._activity == "building history":
            echo("The history is complete.")
        return True

    async def wait_until_ready(self, open_bar: OpenProgressBar) -> None:
        """Wait until catching up is done, only briefly if a snapshot exists or it takes long."""
        if self._is_building:
            echo("Building history, coins first: calls are answered with what is complete.")
        elif not self._has_snapshot:
            echo("Building history: responses are 503 until it is complete.")
        progress_log = self._on_progress
        with (
            open_bar(self._activity, progress_log) as self._on_progress,
            suppress(TimeoutError),
        ):
            async with asyncio.timeout(
                MAX_CATCH_UP_WAIT_S if self._has_snapshot or self._is_long else None
            ):
                await self._finished.wait()
        self._on_progress = progress_log
        self._is_ready.set()
        if self._activity == "catching up" and not self._finished.is_set():
            echo("Still catching up: responses are marked stale until it is done.")

    def _describe_missing(self) -> str:
        """Return how many assets the history lacks so far, for the end of a line of progress."""
        missing = len(self._pipeline.building_tickers)
        total = self._pipeline.asset_count
        return f", {total - missing} of {total} assets" if missing else ""
