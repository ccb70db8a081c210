"""The parent's handle of the compute process of `signals serve`; compute_main.py runs in it.

It imports little, so that the process loads its modules while the parent loads those of serving.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from signal import SIG_BLOCK, SIG_SETMASK, SIGHUP, SIGINT, pthread_sigmask
from typing import TYPE_CHECKING, Self

import structlog

from schemas.vocabulary import Clock
from service.commands.console import OnProgress, open_progress_bar
from service.config.settings import Settings

if TYPE_CHECKING:
    from service.http.metrics import Metrics
    from service.http.metrics_server import MetricsServer

SPAWN_CONTEXT = get_context("spawn")

log = structlog.get_logger("service")


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
        self._process = SPAWN_CONTEXT.Process(target=_run_process, args=arguments)
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


def _run_process(
    settings: Settings,
    clock: Clock,
    elapsed: Clock | None,
    computes: bool,
    metrics_server: "MetricsServer | None",
    parent: Connection,
) -> None:
    # Imported only in the process: the parent has no use for the compute side.
    from service.processes.compute_main import run_process

    run_process(settings, clock, elapsed, computes, metrics_server, parent)
