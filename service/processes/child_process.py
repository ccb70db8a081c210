"""The child processes of `signals serve`, the one that computes and the workers, as their parent
sees them, and how each runs.

This module imports little, so that a child loads its modules while its parent loads others.
"""

import asyncio
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from signal import SIG_BLOCK, SIG_SETMASK, SIGHUP, SIGINT, pthread_sigmask
from typing import TYPE_CHECKING, Final

import structlog

from schemas.vocabulary import Clock
from service.commands.console import OnProgress, open_progress_bar
from service.config.logs import log_to_standard_error
from service.config.settings import Settings
from service.config.stores import retry_until_reached
from service.processes.lifecycle import (
    limit_malloc,
    listen_for_shutdown,
    terminate_with_parent,
)

if TYPE_CHECKING:
    from service.http.metrics import MetricsServer

SPAWN_CONTEXT = get_context("spawn")

log = structlog.get_logger("service")


class ParentReporter:
    """Reports to the parent: runs, commits and checkpoints, progress, and the child's failure."""

    def __init__(self, parent: Connection) -> None:
        self._parent: Final = parent
        self.on_run = partial(self.send, "run")
        self.on_rows = partial(self.send, "rows")
        self.on_checkpoint = partial(self.send, "checkpoint")
        self.on_failing = partial(self.send, "failing")

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


def run_child(
    settings: Settings,
    work: str,
    loop_module: str,
    arguments: tuple[object, ...],
    connection: Connection,
) -> None:
    """Wait until the parent says so, then run `work` until SIGTERM or the end of the parent.

    `work` names a function as MODULE:NAME. It gets the settings, what reports to the parent, what
    opens a block that a signal cancels, and the arguments. `loop_module` has the event loop.
    """
    module, _, name = work.partition(":")
    # Loaded before the parent lets the process begin.
    function = getattr(import_module(module), name)
    loop_factory = import_module(loop_module).new_event_loop
    log_to_standard_error(settings.log_level, settings.log_format)
    parent = ParentReporter(connection)

    async def run() -> None:
        limit_malloc()
        with listen_for_shutdown() as cancel_on_request:
            terminate_with_parent()
            # A process that is restarted may find that the database is away.
            await retry_until_reached(
                partial(function, settings, parent, cancel_on_request, *arguments),
                cancel_on_request,
            )

    try:
        connection.recv()
    except (EOFError, ConnectionResetError):
        return
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(run())
    except Exception as error:
        # Pickling drops the traceback, so it travels to the parent as a note.
        error.add_note("".join(traceback.format_tb(error.__traceback__)))
        parent.send("failed", error)


class ChildProcess(AbstractContextManager["ChildProcess"]):
    """A child process; restarted if it is killed, and stopped at the end of a `with` block."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        work: str,
        *arguments: object,
        loop_module: str = "asyncio",
    ) -> None:
        """Start the process, which waits for `begin`; see `run_child`."""
        self._name: Final = name
        self._arguments: Final = settings, work, loop_module, arguments
        self._has_begun = False
        self._bar = ExitStack()
        self._on_progress: OnProgress
        self._handlers: dict[str, Callable[..., object]] = {
            "bar_opened": self._open_bar,
            "bar_moved": lambda done, total: self._on_progress(done, total),
            "bar_closed": self._bar.close,
        }
        self._start()

    def __exit__(self, *error: object) -> None:
        """Terminate the process, and wait until it has closed its stores."""
        self._process.terminate()
        self._process.join()
        self._connection.close()

    def begin(self, **handlers: Callable[..., object]) -> None:
        """Let the process run; reports without a handler of their name are ignored."""
        self._handlers |= handlers
        self._has_begun = True
        self._send_begin()

    async def watch(self) -> None:
        """Handle the reports of the process until cancelled, then begin to stop it.

        Restart the process if it was killed, re-raise its error.
        """
        loop, is_readable = asyncio.get_running_loop(), asyncio.Event()
        try:
            while True:
                loop.add_reader(self._connection, is_readable.set)
                try:
                    await is_readable.wait()
                finally:
                    loop.remove_reader(self._connection)
                is_readable.clear()
                while self._connection.poll():
                    self._receive_report()
        finally:
            # The process says how far it got, which is no part of the bar's line.
            self._bar.close()
            # It closes its stores while the parent answers the last calls.
            self._process.terminate()

    def _receive_report(self) -> None:
        try:
            name, arguments = self._connection.recv()
        except (EOFError, ConnectionResetError):
            # The pipe closed without an error, so the process did not get to report one.
            self._process.join()
            exit_status = self._process.exitcode or 0
            # Signals give a negative status. A positive one would recur after a restart.
            if exit_status > 0:
                text = f"the {self._name} process ended with status {exit_status}"
                raise RuntimeError(text) from None
            dead_pid = self._process.pid
            self._connection.close()
            self._bar.close()
            self._start()
            log.warning(f"{self._name}_restarted", died=dead_pid, status=exit_status)
            return
        if name == "failed":
            raise arguments[0]
        if name in self._handlers:
            self._handlers[name](*arguments)

    def _open_bar(self, label: str) -> None:
        self._on_progress = self._bar.enter_context(open_progress_bar(label))

    def _start(self) -> None:
        self._connection, child_connection = SPAWN_CONTEXT.Pipe()
        self._process = SPAWN_CONTEXT.Process(
            target=run_child, args=(*self._arguments, child_connection)
        )
        # A terminal signals its whole process group. Only the parent reacts; it ends its children.
        previous_mask = pthread_sigmask(SIG_BLOCK, {SIGINT, SIGHUP})
        try:
            self._process.start()
        finally:
            pthread_sigmask(SIG_SETMASK, previous_mask)
        # With this copy open, the pipe would not close when the process dies.
        child_connection.close()
        if self._has_begun:
            self._send_begin()

    def _send_begin(self) -> None:
        # If the process is dead, `watch` restarts it.
        with suppress(OSError):
            self._connection.send(None)


def create_compute_process(
    settings: Settings,
    clock: Clock,
    elapsed: Clock | None,
    *,
    computes: bool = True,
    metrics_server: "MetricsServer | None" = None,
) -> ChildProcess:
    """Start the process that computes if `computes`, and does the daily maintenance.

    With a `metrics_server`, it counts its runs there, and otherwise reports them.
    """
    work = "service.commands.compute_command:run_compute_process"
    return ChildProcess("compute", settings, work, clock, elapsed, computes, metrics_server)


async def serve_beside(
    settings: Settings, clock: Clock, elapsed: Clock, computes: bool, single_process: bool
) -> int:
    """Serve until interrupted, beside a compute process unless told otherwise."""
    with ExitStack() as stack:
        compute_process = None
        if computes and not single_process:
            # It loads its modules while this process loads those of serving.
            compute_process = stack.enter_context(create_compute_process(settings, clock, elapsed))
        serve = import_module("service.commands.serve").serve
        return int(
            await serve(
                settings, clock, computes=computes, compute_process=compute_process, elapsed=elapsed
            )
        )
