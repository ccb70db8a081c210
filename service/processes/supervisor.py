"""`signals serve --workers N`: supervises N serving processes and one compute process.

uvicorn's `Multiprocess` starts the workers, restarts dead ones and handles signals. A `Worker` is
the ASGI app of one of them; it is pickled into its process, and opens its own stores there.
"""

from contextlib import AsyncExitStack, closing
from socket import socket

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from access.call_log import CallLog
from rest_shim.endpoints import CALL_NAMES
from schemas.vocabulary import Clock
from service.commands.console import echo
from service.commands.serve import build_welcome, check_billing
from service.config.logs import log_to_standard_error
from service.config.settings import Settings
from service.http.app import build_app
from service.http.metrics import Metrics
from service.http.metrics_server import open_metrics_server, sample_loop_lag
from service.http.resources import open_resources
from service.http.server import build_server_config, open_listener
from service.processes.compute_process import ComputeProcess, block_terminal_signals
from service.processes.lifecycle import (
    listen_for_shutdown,
    prepare_to_serve,
    run_in_background,
    terminate_with_parent,
)

# A worker that starts on a busy machine is slow, not hung.
HEALTHCHECK_TIMEOUT_S = 30

log = structlog.get_logger("service")


async def serve_with_workers(
    settings: Settings,
    workers: int,
    clock: Clock,
    *,
    computes: bool = True,
    elapsed: Clock | None = None,
) -> int:
    """Serve with N workers, and compute in one more process, until interrupted.

    `clock` is the wall clock, `elapsed` as for `make_steady`. Return 1 if a worker cannot start;
    re-raise the compute process's error.
    """
    async with AsyncExitStack() as stack:
        cancel_on_request = stack.enter_context(listen_for_shutdown())
        listener = stack.enter_context(closing(open_listener(settings.host, settings.port)))
        # The compute process has an event loop and both stores open; the supervisor has neither. So
        # it serves the operations port, and reports for all processes.
        metrics_server = stack.enter_context(open_metrics_server(settings, is_shared=True))
        with cancel_on_request():
            async with open_resources(settings, clock) as resources:
                await check_billing(resources)
                starting = ComputeProcess(
                    settings, clock, elapsed, computes=computes, metrics_server=metrics_server
                )
                compute_process = stack.enter_context(starting)
                compute_process.begin()
                echo(await build_welcome(settings, resources, clock))
            return Supervisor(settings, workers, clock, listener, compute_process).supervise()
    return 0


class Supervisor(Multiprocess):
    """Supervises the workers and the compute process."""

    # SIGHUP ends the service, as it ends a single process; uvicorn would restart the workers.
    handle_hup = Multiprocess.handle_term

    def __init__(
        self,
        settings: Settings,
        workers: int,
        clock: Clock,
        listener: socket,
        compute_process: ComputeProcess,
    ) -> None:
        """Install the signal handlers; `clock` is the wall clock."""
        super().__init__(build_worker_config(settings, clock, workers), [listener])
        self._compute_process = compute_process

    def supervise(self) -> int:
        """Serve until interrupted; return the exit status."""
        try:
            self.run()
        finally:
            self.terminate_all()
            self.join_all()
        has_failed = any(process.exitcode == STARTUP_FAILURE for process in self.processes)
        return 1 if has_failed else 0

    def init_processes(self) -> None:
        """Start the workers."""
        with block_terminal_signals():
            super().init_processes()

    def keep_subprocess_alive(self) -> None:
        """Restart dead workers; re-raise the compute process's error."""
        self._compute_process.poll_status()
        previous_processes = tuple(self.processes)
        for process in previous_processes:
            # With this copy of the pipe open, a worker killed while it answers would seem to hang.
            process.child_conn.close()
        with block_terminal_signals():
            super().keep_subprocess_alive()
        for old, new in zip(previous_processes, self.processes, strict=True):
            if new is not old:
                log.warning("worker_restarted", died=old.pid, status=old.exitcode)


def build_worker_config(settings: Settings, clock: Clock, workers: int) -> uvicorn.Config:
    """Return the uvicorn config of a worker."""
    return build_server_config(
        Worker(settings, clock),
        base_url=settings.address,
        idle_s=settings.idle_timeout_s,
        lifespan="on",
        workers=workers,
        timeout_worker_healthcheck=HEALTHCHECK_TIMEOUT_S,
    )


class Worker:
    """An ASGI app that opens its resources in its lifespan."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        """Store the arguments; `clock` is the wall clock."""
        self._settings = settings
        self._clock = clock
        self._app: Starlette

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or the lifespan events of the server."""
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        else:
            await self._app(scope, receive, send)

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        log_to_standard_error(self._settings.log_level, self._settings.log_format)
        terminate_with_parent()
        await receive()
        metrics = Metrics(CALL_NAMES)
        async with (
            open_resources(self._settings, self._clock) as resources,
            run_in_background(sample_loop_lag(metrics.on_lag)),
        ):
            call_log = CallLog(resources.access, metrics.on_calls_dropped)
            self._app = build_app(self._settings, resources, metrics, call_log)
            prepare_to_serve()
            async with run_in_background(call_log.run()):
                await send({"type": "lifespan.startup.complete"})
                await receive()
        await send({"type": "lifespan.shutdown.complete"})
