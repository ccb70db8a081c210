"""`signals serve`: serves both transports and the pages, and computes every hour.

It computes in a process of its own at a lower priority, unless told not to. Until the first history
is built, calls get 503. SIGINT, SIGTERM and SIGHUP end the command with status 0 at any time.

Several workers share the listener; each opens its own stores.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, closing
from ctypes import c_bool
from pathlib import Path
from socket import socket

import structlog

from access.call_log import CallLog
from access.keys_and_quota import create_operator_key
from access.sign_in import LINK_MINUTES, create_owner_link
from rest_shim.endpoints import CALL_NAMES
from rest_shim.manifest import build_manifest
from schemas.vocabulary import Clock
from service.commands.console import echo
from service.config.providers import describe_billing, find_outage_reason
from service.config.settings import Settings
from service.config.stores import retry_until_reached
from service.http.app import build_app
from service.http.health import answer_waiting, build_readiness
from service.http.metrics import Metrics, MetricsServer, open_metrics_server, sample_loop_lag
from service.http.resources import Resources, open_resources, run_maintenance
from service.http.server import build_server_config, open_kept_listener, serve_in_background
from service.processes.child_process import ChildProcess, ParentReporter, create_compute_process
from service.processes.lifecycle import (
    limit_malloc,
    listen_for_shutdown,
    prepare_to_serve,
    run_in_background,
)
from store.addresses import is_loopback

CancelOnRequest = Callable[[], AbstractContextManager[None]]

log = structlog.get_logger("service")


async def serve(
    settings: Settings,
    clock: Clock,
    *,
    computes: bool = True,
    compute_process: ChildProcess | None = None,
    elapsed: Clock | None = None,
) -> int:
    """Serve until interrupted, and compute in `compute_process`, or else here if `computes`.

    `clock` is the wall clock, `elapsed` as for `make_steady`.
    """
    # Must come before the first thread: glibc keeps the arenas that threads already have.
    limit_malloc()
    async with AsyncExitStack() as stack:
        cancel_on_request, listener, metrics_server, resources = await open_service(
            settings, clock, stack, stack
        )
        if resources is None:
            return 0
        metrics = Metrics(CALL_NAMES)
        with cancel_on_request():
            await check_billing(resources)
            opened = asyncio.Event()
            if compute_process is not None:
                compute_process.begin(
                    opened=opened.set,
                    run=metrics.on_run,
                    rows=metrics.on_rows,
                    checkpoint=metrics.on_checkpoint,
                    failing=metrics.on_failing,
                )
            async with (
                metrics_server.serve_metrics(
                    metrics, build_readiness(resources.market, resources.access, clock, metrics)
                ),
                serve_calls(settings, resources, metrics, listener) as serving,
            ):
                if compute_process is not None:
                    jobs = compute_process.watch()
                elif computes:
                    from service.commands.compute_command import run_jobs

                    jobs = run_jobs(
                        settings, resources, clock, elapsed, metrics, on_open=opened.set
                    )
                else:
                    jobs = run_maintenance(settings, resources, clock, elapsed, opened.set)
                async with run_in_background(jobs):
                    await opened.wait()
                    echo(await build_welcome(settings, resources, clock))
                    await asyncio.shield(serving)
    return 0


async def open_service(
    settings: Settings,
    clock: Clock,
    stack: AsyncExitStack,
    opened: AsyncExitStack,
    *,
    is_shared: bool = False,
) -> tuple[CancelOnRequest, socket, MetricsServer, Resources | None]:
    """Open the ports on `stack`, and on `opened` the resources, once the database is reached.

    They are None if a signal came first. All processes count together if `is_shared`.
    """
    cancel_on_request = stack.enter_context(listen_for_shutdown())
    listener = stack.enter_context(closing(open_kept_listener(settings.host, settings.port)))
    metrics_server = stack.enter_context(open_metrics_server(settings, is_shared=is_shared))
    resources = await retry_until_reached(
        lambda: opened.enter_async_context(open_resources(settings, clock)),
        cancel_on_request,
        answer_waiting(settings, listener, metrics_server.listener),
    )
    return cancel_on_request, listener, metrics_server, resources


async def serve_with_workers(
    settings: Settings,
    workers: int,
    clock: Clock,
    *,
    computes: bool = True,
    elapsed: Clock | None = None,
) -> int:
    """Serve with N workers, and compute in one more process, until interrupted.

    `clock` is the wall clock, `elapsed` as for `make_steady`. The error of a child is re-raised.
    """
    async with AsyncExitStack() as stack:
        opened = await stack.enter_async_context(AsyncExitStack())
        # The compute process has both stores open; this one has neither. So it serves the
        # operations port, and reports for all processes.
        cancel_on_request, listener, metrics_server, resources = await open_service(
            settings, clock, stack, opened, is_shared=True
        )
        if resources is None:
            return 0
        with cancel_on_request():
            async with opened:
                await check_billing(resources)
                compute_process = create_compute_process(
                    settings, clock, elapsed, computes=computes, metrics_server=metrics_server
                )
                children = [stack.enter_context(compute_process)]
                compute_process.begin()
                echo(await build_welcome(settings, resources, clock))
            work = "service.commands.serve:run_worker"
            for _ in range(workers):
                worker = ChildProcess(
                    *("worker", settings, work, clock, listener, metrics_server.failing),
                    loop_module="uvloop",
                )
                children.append(stack.enter_context(worker))
                worker.begin()
            async with AsyncExitStack() as watching:
                for child in children:
                    await watching.enter_async_context(run_in_background(child.watch()))
                await asyncio.Event().wait()
    return 0


async def run_worker(
    settings: Settings,
    parent: ParentReporter,
    cancel_on_request: CancelOnRequest,
    clock: Clock,
    listener: socket,
    failing: c_bool,
) -> None:
    """Serve in a process of its own, until interrupted; `failing` is true while runs fail."""
    metrics = Metrics(CALL_NAMES, failing)
    async with open_resources(settings, clock) as resources:
        with cancel_on_request():
            async with (
                run_in_background(sample_loop_lag(metrics.on_lag)),
                serve_calls(settings, resources, metrics, listener) as serving,
            ):
                await asyncio.shield(serving)


@asynccontextmanager
async def serve_calls(
    settings: Settings, resources: Resources, metrics: Metrics, listener: socket
) -> AsyncIterator[asyncio.Task[None]]:
    """Serve both transports and the pages during the block."""
    call_log = CallLog(resources.access, metrics.on_calls_dropped)
    config = build_server_config(
        build_app(settings, resources, metrics, call_log),
        base_url=settings.address,
        idle_s=settings.idle_timeout_s,
    )
    async with (
        run_in_background(call_log.run()),
        serve_in_background(config, listener) as serving,
    ):
        prepare_to_serve()
        yield serving


async def check_billing(resources: Resources) -> None:
    """Log a warning if the processor is down; BillingSetupError if billing is misconfigured."""
    if (reason := await find_outage_reason(resources.provider)) is not None:
        log.warning("billing_unavailable", why=reason)


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
        if not await resources.access.list_keys():
            api_key = await create_operator_key(resources.access, clock(), "first start")
            key = f"Your API key, shown only once:\n  export SIGNALS_API_KEY={api_key}"
        link = await create_owner_link(resources.access, clock, settings.address)
        pages = (
            f"Open your board; the link works once, within {LINK_MINUTES} minutes "
            f"(for another: {program} sign-in):\n  {link}"
        )
    hint = settings.address_hint
    is_mail_sent_or_unused = settings.smtp_url is not None or settings.billing == "off"
    paragraphs = (
        f"Listening on {settings.address}",
        None if hint is None else f"Listening on all addresses of this machine: {hint}.",
        describe_billing(resources.provider, is_local=settings.is_local),
        None if is_mail_sent_or_unused else f"Mail: written to {settings.outbox_folder}.",
        f"MCP endpoint:\n  {mcp.url}",
        key,
        pages,
        f"Register with a client:\n  {mcp.registration}",
    )
    return "\n".join(part for part in paragraphs if part)
