"""The compute process of `signals serve --workers N`, which also runs the daily maintenance.

`ComputeProcess` is its handle in the parent; `_run_process` is its main function.
"""

import asyncio
import shutil
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, nullcontext, suppress
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from signal import SIG_BLOCK, SIG_SETMASK, SIGHUP, SIGINT, pthread_sigmask

import structlog

from access.maintenance import MaintenanceJob
from compute.indicators.contract import Indicator
from mcp_server.tools.registry import TOOLS_BY_NAME
from schemas.clock import Clock
from service.commands.compute_command import compute_in_background
from service.config.logs import log_to_standard_error
from service.config.settings import Settings
from service.http.metrics import Metrics
from service.http.metrics_server import MetricsServer
from service.http.resources import build_readiness, open_resources
from service.processes.memory import limit_malloc_arenas
from service.processes.shutdown import listen_for_shutdown
from service.processes.steady_clock import COMPUTE_HOLD_MS, DELETE_HOLD_MS, make_steady
from service.processes.worker import terminate_with_parent

SPAWN_CONTEXT = get_context("spawn")

log = structlog.get_logger("service")


class ComputeProcess:
    """The parent's handle of the compute process; restarts it if it is killed."""

    def __init__(
        self,
        settings: Settings,
        indicators: Sequence[Indicator],
        clock: Clock,
        elapsed: Clock | None,
        computes: bool,
        metrics_server: MetricsServer,
    ) -> None:
        """Start the process; it serves the operations port, and computes if `computes`."""
        self._arguments = settings, indicators, clock, elapsed, computes, metrics_server
        self._has_caught_up = False
        self._start()

    async def wait_until_caught_up(self) -> None:
        """Wait until the process has caught up or stands by; re-raise its error."""
        loop, is_readable = asyncio.get_running_loop(), asyncio.Event()
        while not self._has_caught_up:
            loop.add_reader(self._receiver, is_readable.set)
            try:
                await is_readable.wait()
            finally:
                loop.remove_reader(self._receiver)
            is_readable.clear()
            self.poll_status()

    def poll_status(self) -> None:
        """Restart the process if it was killed; re-raise its error if it failed."""
        while self._receiver.poll():
            try:
                failure = self._receiver.recv()
            except EOFError:
                # The pipe closed without a message, so the process did not get to report an error.
                self._restart()
                continue
            if failure is not None:
                raise failure
            self._has_caught_up = True

    def stop(self) -> None:
        """Terminate the process, and wait until it has closed its stores."""
        self._process.terminate()
        self._process.join()
        self._receiver.close()

    def _start(self) -> None:
        self._receiver, sender = SPAWN_CONTEXT.Pipe(duplex=False)
        self._process = SPAWN_CONTEXT.Process(target=_run_process, args=(*self._arguments, sender))
        with block_terminal_signals():
            self._process.start()
        # With this copy open, the pipe would not close when the process dies.
        sender.close()

    def _restart(self) -> None:
        self._process.join()
        exit_status = self._process.exitcode or 0
        # Signals give a negative status. A positive one would recur after a restart.
        if exit_status > 0:
            raise RuntimeError(f"the compute process ended with status {exit_status}")
        dead_pid = self._process.pid
        self._receiver.close()
        self._start()
        log.warning("compute_restarted", died=dead_pid, status=exit_status)


@contextmanager
def block_terminal_signals() -> Iterator[None]:
    """Block SIGINT and SIGHUP during the block, so that processes started in it ignore them."""
    # A terminal signals its whole process group. Only the parent reacts; it ends its children.
    previous_mask = pthread_sigmask(SIG_BLOCK, {SIGINT, SIGHUP})
    try:
        yield
    finally:
        pthread_sigmask(SIG_SETMASK, previous_mask)


def _run_process(
    settings: Settings,
    indicators: Sequence[Indicator],
    clock: Clock,
    elapsed: Clock | None,
    computes: bool,
    metrics_server: MetricsServer,
    parent: Connection,
) -> None:
    log_to_standard_error(settings.log_level, settings.log_format)
    try:
        asyncio.run(
            _run_until_stopped(
                settings, indicators, clock, elapsed, computes, metrics_server, parent
            )
        )
    except Exception as error:
        # Pickling drops the traceback, so it travels to the parent as a note.
        error.add_note("".join(traceback.format_tb(error.__traceback__)))
        _send_to_parent(parent, error)
    # A supervisor that was killed cannot remove the folder.
    supervisor = parent_process()
    is_orphan = supervisor is not None and not supervisor.is_alive()
    if is_orphan and metrics_server.shared_folder is not None:
        shutil.rmtree(metrics_server.shared_folder, ignore_errors=True)


async def _run_until_stopped(
    settings: Settings,
    indicators: Sequence[Indicator],
    clock: Clock,
    elapsed: Clock | None,
    computes: bool,
    metrics_server: MetricsServer,
    parent: Connection,
) -> None:
    """Compute until stopped; notify the parent once the store is caught up."""
    limit_malloc_arenas()
    compute_clock = make_steady(clock, elapsed, COMPUTE_HOLD_MS)
    maintenance_clock = make_steady(clock, elapsed, DELETE_HOLD_MS)
    async with AsyncExitStack() as stack:
        shutdown = stack.enter_context(listen_for_shutdown())
        terminate_with_parent()
        resources = await stack.enter_async_context(open_resources(settings, clock))
        metrics = Metrics(TOOLS_BY_NAME)
        with shutdown.cancel_on_request():
            compute_context = compute_in_background(
                settings, resources.market, indicators, compute_clock, metrics
            )
            metrics_context = metrics_server.serve_metrics(metrics, build_readiness(resources))
            async with metrics_context, compute_context if computes else nullcontext():
                _send_to_parent(parent, None)
                await MaintenanceJob(
                    resources.access, resources.provider, maintenance_clock, asyncio.sleep
                ).run()


def _send_to_parent(parent: Connection, failure: Exception | None) -> None:
    # If the parent is gone, `terminate_with_parent` ends this process.
    with suppress(BrokenPipeError):
        parent.send(failure)
