"""`signals serve`: serves both transports and the pages, and computes every hour.

It computes in a process of its own at a lower priority, unless told not to. Until the first history
is built, calls get 503. SIGINT and SIGTERM end the command with status 0 at any time.

With several workers, uvicorn's `Multiprocess` starts them, restarts dead ones and handles signals.
A `Worker` is the ASGI app of one of them; it is pickled into its process, and opens its own stores
there.
"""

import asyncio
import sys
from contextlib import AsyncExitStack, closing
from pathlib import Path
from socket import socket

import structlog
import uvicorn
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from access.call_log import CallLog
from access.keys import OperatorKeys
from access.sign_in import LINK_MINUTES, create_owner_link
from rest_shim.endpoints import CALL_NAMES
from rest_shim.manifest import build_manifest
from schemas.vocabulary import Clock
from service.commands.console import echo
from service.config.billing import describe_billing, find_outage_reason
from service.config.logs import log_to_standard_error
from service.config.mail import describe_mail
from service.config.settings import Settings
from service.http.app import build_app
from service.http.health import build_readiness
from service.http.metrics import Metrics
from service.http.metrics_server import open_metrics_server, sample_loop_lag
from service.http.resources import Resources, open_resources
from service.http.server import build_server_config, open_listener, serve_in_background
from service.processes.compute_process import ComputeProcess, block_terminal_signals, run_jobs
from service.processes.lifecycle import (
    limit_malloc_arenas,
    listen_for_shutdown,
    prepare_to_serve,
    run_in_background,
    terminate_with_parent,
)
from store.addresses import is_loopback
from store.sql.access_store import AccessStore

# A worker that starts on a busy machine is slow, not hung.
HEALTHCHECK_TIMEOUT_S = 30

log = structlog.get_logger("service")


async def serve(
    settings: Settings,
    clock: Clock,
    *,
    computes: bool = True,
    compute_process: ComputeProcess | None = None,
    elapsed: Clock | None = None,
) -> int:
    """Serve until interrupted, and compute in `compute_process`, or else here if `computes`.

    `clock` is the wall clock, `elapsed` as for `make_steady`.
    """
    # Must come before the first thread: glibc keeps the arenas that threads already have.
    limit_malloc_arenas()
    async with AsyncExitStack() as stack:
        cancel_on_request = stack.enter_context(listen_for_shutdown())
        listener = stack.enter_context(closing(open_listener(settings.host, settings.port)))
        metrics_server = stack.enter_context(open_metrics_server(settings))
        resources = await stack.enter_async_context(open_resources(settings, clock))
        metrics = Metrics(CALL_NAMES)
        with cancel_on_request():
            await check_billing(resources)
            opened = asyncio.Event()
            if compute_process is not None:
                compute_process.begin(metrics, opened.set)
            call_log = CallLog(resources.access, metrics.on_calls_dropped)
            config = build_server_config(
                build_app(settings, resources, metrics, call_log),
                base_url=settings.address,
                idle_s=settings.idle_timeout_s,
            )
            async with (
                metrics_server.serve_metrics(metrics, build_readiness(resources)),
                run_in_background(call_log.run()),
                serve_in_background(config, listener) as serving,
            ):
                prepare_to_serve()
                if compute_process is not None:
                    jobs = compute_process.watch()
                else:
                    jobs = run_jobs(
                        settings,
                        resources,
                        clock,
                        elapsed,
                        metrics,
                        computes=computes,
                        on_open=opened.set,
                    )
                async with run_in_background(jobs):
                    await opened.wait()
                    echo(await build_welcome(settings, resources, clock))
                    await asyncio.shield(serving)
    return 0


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


async def check_billing(resources: Resources) -> None:
    """Log a warning if the processor is down; BillingSetupError if billing is misconfigured."""
    if (reason := await find_outage_reason(resources.provider)) is not None:
        log.warning("billing_unavailable", why=reason)


async def _create_first_key(access: AccessStore, clock: Clock) -> str | None:
    """Create a key at the first start; None if there was one."""
    keys = OperatorKeys(access, clock)
    return None if await keys.list() else await keys.create("first start")


async def build_welcome(settings: Settings, resources: Resources, clock: Clock) -> str:
    """Return the start message; each indented line can be pasted into a shell.

    It contains the first API key if it created one, and a sign-in link of the owner if only the
    owner sees it, so the caller must print it.
    """
    mcp = build_manifest(settings.address, None).mcp
    program = sys.argv[0] if Path(sys.argv[0]).name == "signals" else "signals"
    key = f"Create an API key:\n  {program} keys create --label me"
    pages = f"Sign in to the pages as owner:\n  {program} sign-in"
    # Only on a local service with a terminal: a log file would keep key and link in clear.
    if is_loopback(settings.host) and settings.base_url is None and sys.stderr.isatty():
        if (api_key := await _create_first_key(resources.access, clock)) is not None:
            key = f"Your API key, shown only once:\n  export SIGNALS_API_KEY={api_key}"
        link = await create_owner_link(resources.access, clock, settings.address)
        pages = (
            f"Open your board; the link works once, within {LINK_MINUTES} minutes "
            f"(for another: {program} sign-in):\n  {link}"
        )
    paragraphs = (
        f"Listening on {settings.address}",
        _describe_all_addresses(settings),
        describe_billing(resources.provider, is_local=settings.is_local),
        describe_mail(settings),
        f"MCP endpoint:\n  {mcp.url}",
        key,
        pages,
        f"Register with a client:\n  {mcp.registration}",
    )
    return "\n".join(part for part in paragraphs if part)


def _describe_all_addresses(settings: Settings) -> str | None:
    hint = settings.address_hint
    return None if hint is None else f"Listening on all addresses of this machine: {hint}."
