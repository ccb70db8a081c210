"""The main function of the compute process, which also runs the daily maintenance."""

import asyncio
import os
import shutil
import sys
import traceback
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Final

from schemas.vocabulary import Clock

# Loaded before the parent lets the process begin; `run_jobs` imports it later.
from service.commands.compute_command import RunObserver
from service.commands.console import OnProgress
from service.config.logs import log_to_standard_error
from service.config.settings import Settings
from service.http.resources import Resources, open_resources
from service.processes.jobs import run_jobs
from service.processes.lifecycle import (
    limit_malloc_arenas,
    listen_for_shutdown,
    terminate_with_parent,
)
from store.change_table import count_rows
from store.market_rows import Batch

if TYPE_CHECKING:
    from service.http.metrics_server import MetricsServer

# On a busy machine, calls come before computing.
NICENESS = 10


class ParentReporter:
    """Reports runs, commits, checkpoints, progress and failure of the process to its parent."""

    def __init__(self, parent: Connection) -> None:
        self._parent: Final = parent

    def on_run(self, seconds: float) -> None:
        """Report an hourly run."""
        self.send("run", seconds)

    def on_commit(self, batch: Batch) -> None:
        """Report the numbers of rows that a batch wrote."""
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
    with suppress(OSError):
        os.nice(NICENESS)
    log_to_standard_error(settings.log_level, settings.log_format)
    reporter = ParentReporter(parent)
    try:
        parent.recv()
    except (EOFError, ConnectionResetError):
        return
    try:
        asyncio.run(_run_jobs(settings, clock, elapsed, computes, metrics_server, reporter))
    except Exception as error:
        # Pickling drops the traceback, so it travels to the parent as a note.
        error.add_note("".join(traceback.format_tb(error.__traceback__)))
        reporter.send("failed", error)
    # A supervisor that was killed cannot remove the folder.
    folder = None if metrics_server is None else metrics_server.shared_folder
    supervisor = parent_process()
    is_orphan = supervisor is not None and not supervisor.is_alive()
    if is_orphan and folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


async def _run_jobs(
    settings: Settings,
    clock: Clock,
    elapsed: Clock | None,
    computes: bool,
    metrics_server: "MetricsServer | None",
    reporter: ParentReporter,
) -> None:
    limit_malloc_arenas()
    async with AsyncExitStack() as stack:
        shutdown = stack.enter_context(listen_for_shutdown())
        terminate_with_parent()
        resources = await stack.enter_async_context(open_resources(settings, clock))
        observer: RunObserver = reporter
        with shutdown.cancel_on_request():
            if metrics_server is not None:
                serving = _serve_metrics(metrics_server, resources)
                observer = await stack.enter_async_context(serving)
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


@asynccontextmanager
async def _serve_metrics(
    metrics_server: "MetricsServer", resources: Resources
) -> AsyncIterator[RunObserver]:
    """Serve the operations port during the block; its metrics count the runs."""
    # Imported only with several workers, because these need as long as all else in this process.
    from rest_shim.endpoints import CALL_NAMES
    from service.http.health import build_readiness
    from service.http.metrics import Metrics

    metrics = Metrics(CALL_NAMES)
    async with metrics_server.serve_metrics(metrics, build_readiness(resources)):
        yield metrics
