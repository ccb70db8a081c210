"""The background jobs of `signals serve`, and the process in which they run.

They are the hourly compute and the daily maintenance; `--single-process` runs them in the serving
process. This module imports little, so that the process loads the compute side while its parent
loads that of serving.
"""

import asyncio
import os
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from signal import SIG_BLOCK, SIG_SETMASK, SIGHUP, SIGINT, pthread_sigmask
from typing import TYPE_CHECKING, Final, Self

import structlog

from schemas.vocabulary import Clock
from service.commands.console import OnProgress, OpenProgressBar, open_progress_bar
from service.config.logs import log_to_standard_error
from service.config.settings import Settings
from service.processes.lifecycle import (
    limit_malloc_arenas,
    listen_for_shutdown,
    run_in_background,
    terminate_with_parent,
)
from service.processes.steady_clock import COMPUTE_HOLD_MS, DELETE_HOLD_MS, make_steady

if TYPE_CHECKING:
    from service.commands.compute_command import RunObserver
    from service.http.metrics import Metrics
    from service.http.metrics_server import MetricsServer
    from service.http.resources import Resources
    from store.market_rows import Batch

SPAWN_CONTEXT = get_context("spawn")
# On a busy machine, calls come before computing.
NICENESS = 10

log = structlog.get_logger("service")


async def run_jobs(
    settings: Settings,
    resources: "Resources",
    clock: Clock,
    elapsed: Clock | None,
    observer: "RunObserver",
    *,
    computes: bool,
    on_open: Callable[[], None] = lambda: None,
    open_bar: OpenProgressBar = open_progress_bar,
) -> None:
    """Run the maintenance, and compute if `computes`, until cancelled.

    `clock` is the wall clock, `elapsed` as for `make_steady`. `on_open` is called when everything
    is opened, so that no mistake in the settings is left.
    """
    # Imported here, because neither the start of the process nor its parent has a use for them.
    from access.maintenance import MaintenanceJob
    from service.config.stores import refuse_wrong_clock

    # The maintenance would delete by it, before or without a run.
    await refuse_wrong_clock(settings, resources.market, clock())
    if settings.is_sqlite:
        from store.sqlite.copies import keep_spare

        await asyncio.to_thread(keep_spare, settings.market_path)
    compute_clock = make_steady(clock, elapsed, COMPUTE_HOLD_MS)
    maintenance = MaintenanceJob(
        resources.access,
        resources.provider,
        make_steady(clock, elapsed, DELETE_HOLD_MS),
        asyncio.sleep,
    )
    async with AsyncExitStack() as stack:
        if computes:
            from service.commands.compute_command import run_compute

            opened = asyncio.Event()
            computing = run_compute(
                settings,
                resources.market,
                compute_clock,
                observer,
                on_open=opened.set,
                open_bar=open_bar,
            )
            await stack.enter_async_context(run_in_background(computing))
            await opened.wait()
        on_open()
        await maintenance.run()


class ParentReporter:
    """Reports runs, commits, checkpoints, progress and failure of the process to its parent."""

    def __init__(self, parent: Connection) -> None:
        self._parent: Final = parent

    def on_run(self, seconds: float) -> None:
        """Report an hourly run."""
        self.send("run", seconds)

    def on_commit(self, batch: "Batch") -> None:
        """Report the numbers of rows that a batch wrote."""
        from store.change_table import count_rows

        self.send("rows", *count_rows(batch))

    def on_checkpoint(self, outcome: str) -> None:
        """Report a checkpoint of the log."""
        self.send("checkpoint", outcome)

    @contextmanager
    def open_bar(self, label: str, fallback: OnProgress) -> Iterator[OnProgress]:
        """Let the parent show a progress bar on a terminal, because it prints there as well."""
        if not sys.stderr.isatty():
            yield fallback
            return
        self.send("bar_opened", label)
        try:
            yield partial(self.send, "bar_moved")
        finally:
            self.send("bar_closed")

    def send(self, name: str, *arguments: object) -> None:
        """Send a report, unless the parent is gone."""
        # Then `terminate_with_parent` ends this process.
        with suppress(ConnectionError):
            self._parent.send((name, arguments))


def run_process(
    settings: Settings,
    clock: Clock,
    elapsed: Clock | None,
    computes: bool,
    metrics_server: "MetricsServer | None",
    parent: Connection,
) -> None:
    """Wait until the parent says so, then run the jobs until SIGTERM or the end of the parent."""
    # Loaded before the parent lets the process begin.
    from service.commands import compute_command
    from service.http.resources import open_resources

    with suppress(OSError):
        os.nice(NICENESS)
    log_to_standard_error(settings.log_level, settings.log_format)
    reporter = ParentReporter(parent)

    async def run() -> None:
        limit_malloc_arenas()
        async with AsyncExitStack() as stack:
            cancel_on_request = stack.enter_context(listen_for_shutdown())
            terminate_with_parent()
            resources = await stack.enter_async_context(open_resources(settings, clock))
            observer: compute_command.RunObserver = reporter
            with cancel_on_request():
                if metrics_server is not None:
                    # Only with several workers, because these need as long as all else.
                    from rest_shim.endpoints import CALL_NAMES
                    from service.http.health import build_readiness
                    from service.http.metrics import Metrics

                    observer = metrics = Metrics(CALL_NAMES)
                    serving = metrics_server.serve_metrics(metrics, build_readiness(resources))
                    await stack.enter_async_context(serving)
                await run_jobs(
                    settings,
                    resources,
                    clock,
                    elapsed,
                    observer,
                    computes=computes,
                    on_open=partial(reporter.send, "opened"),
                    open_bar=reporter.open_bar,
                )

    try:
        parent.recv()
    except (EOFError, ConnectionResetError):
        return
    try:
        asyncio.run(run())
    except Exception as error:
        # Pickling drops the traceback, so it travels to the parent as a note.
        error.add_note("".join(traceback.format_tb(error.__traceback__)))
        reporter.send("failed", error)
    # A supervisor that was killed cannot remove the folder.
    folder = None if metrics_server is None else metrics_server.shared_folder
    supervisor = parent_process()
    if folder is not None and supervisor is not None and not supervisor.is_alive():
        shutil.rmtree(folder, ignore_errors=True)


class ComputeProcess:
    """The compute process; restarted if it is killed, and stopped at the end of a `with` block."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        elapsed: Clock | None,
        *,
        computes: bool = True,
        metrics_server: "MetricsServer | None" = None,
    ) -> None:
        """Start the process, which waits for `begin`.

        It computes if `computes`. With a `metrics_server`, it counts its runs there, and otherwise
        reports them.
        """
        self._arguments = settings, clock, elapsed, computes, metrics_server
        self._has_begun = False
        self._bar = ExitStack()
        self._on_progress: OnProgress
        self._handlers: dict[str, Callable[..., object]] = {
            "bar_opened": self._open_bar,
            "bar_moved": lambda done, total: self._on_progress(done, total),
            "bar_closed": self._bar.close,
            "failed": _raise_error,
        }
        self._start()

    def __enter__(self) -> Self:
        """Return the handle."""
        return self

    def __exit__(self, *error: object) -> None:
        """Terminate the process, and wait until it has closed its stores."""
        self._process.terminate()
        self._process.join()
        self._connection.close()
        self._bar.close()

    def begin(
        self, metrics: "Metrics | None" = None, on_open: Callable[[], None] = lambda: None
    ) -> None:
        """Let the process open the stores, and count its runs in `metrics`; see `run_jobs`."""
        self._handlers["opened"] = on_open
        if metrics is not None:
            self._handlers |= {
                "run": metrics.on_run,
                "rows": metrics.on_rows,
                "checkpoint": metrics.on_checkpoint,
            }
        self._has_begun = True
        self._send_begin()

    async def watch(self) -> None:
        """Handle the reports of the process until cancelled, then begin to stop it."""
        loop, is_readable = asyncio.get_running_loop(), asyncio.Event()
        try:
            while True:
                loop.add_reader(self._connection, is_readable.set)
                try:
                    await is_readable.wait()
                finally:
                    loop.remove_reader(self._connection)
                is_readable.clear()
                self.poll_status()
        finally:
            # It closes its stores while the parent answers the last calls.
            self._process.terminate()

    def poll_status(self) -> None:
        """Handle the reports; restart the process if it was killed, re-raise its error."""
        while self._connection.poll():
            try:
                name, arguments = self._connection.recv()
            except (EOFError, ConnectionResetError):
                # The pipe closed without an error, so the process did not get to report one.
                self._restart()
                continue
            self._handlers[name](*arguments)

    def _open_bar(self, label: str) -> None:
        self._on_progress = self._bar.enter_context(open_progress_bar(label))

    def _start(self) -> None:
        self._connection, child_connection = SPAWN_CONTEXT.Pipe()
        arguments = (*self._arguments, child_connection)
        self._process = SPAWN_CONTEXT.Process(target=run_process, args=arguments)
        with block_terminal_signals():
            self._process.start()
        # With this copy open, the pipe would not close when the process dies.
        child_connection.close()
        if self._has_begun:
            self._send_begin()

    def _send_begin(self) -> None:
        # If the process is dead, `poll_status` restarts it.
        with suppress(OSError):
            self._connection.send(None)

    def _restart(self) -> None:
        self._process.join()
        exit_status = self._process.exitcode or 0
        # Signals give a negative status. A positive one would recur after a restart.
        if exit_status > 0:
            raise RuntimeError(f"the compute process ended with status {exit_status}")
        dead_pid = self._process.pid
        self._connection.close()
        self._bar.close()
        self._start()
        log.warning("compute_restarted", died=dead_pid, status=exit_status)


async def serve_beside(
    settings: Settings, clock: Clock, elapsed: Clock, computes: bool, single_process: bool
) -> int:
    """Serve until interrupted, beside a compute process unless told otherwise."""
    with ExitStack() as stack:
        compute_process = None
        if computes and not single_process:
            # It loads its modules while this process loads those of serving.
            compute_process = stack.enter_context(ComputeProcess(settings, clock, elapsed))
        from service.commands.serve import serve

        return await serve(
            settings, clock, computes=computes, compute_process=compute_process, elapsed=elapsed
        )


def _raise_error(error: Exception) -> None:
    raise error


@contextmanager
def block_terminal_signals() -> Iterator[None]:
    """Block SIGINT and SIGHUP during the block, so that processes started in it ignore them."""
    # A terminal signals its whole process group. Only the parent reacts; it ends its children.
    previous_mask = pthread_sigmask(SIG_BLOCK, {SIGINT, SIGHUP})
    try:
        yield
    finally:
        pthread_sigmask(SIG_SETMASK, previous_mask)
