"""The HTTP/1.1 server: uvicorn behind the gate of each connection, and around the app the exchange.

uvicorn itself waits without end for the rest of a request and for a client that reads no response,
and accepts a head of any length.
"""

import asyncio
import logging
import os
import re
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from socket import (
    AF_INET,
    AF_UNIX,
    IPPROTO_TCP,
    SHUT_RDWR,
    SO_REUSEADDR,
    SOCK_DGRAM,
    SOCK_STREAM,
    SOL_SOCKET,
    getaddrinfo,
    send_fds,
    socket,
)
from time import perf_counter
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars

from service.config.settings import DEFAULT_IDLE_S, SettingsError
from service.http.gate import Connections, Gate
from service.http.request_log import RefusalLog, log_response
from service.http.request_log import log as request_log
from serving.error_responses import CLIENT_CLOSED_REQUEST
from serving.http import (
    CLOSE_CONNECTION,
    ERROR_KEY,
    MAX_HEAD_BYTES,
    REQUEST_ID_KEY,
    read_headers,
)
from store.failure_log import FailureLog

# Descriptors kept for stores, sources and the payment processor, and for connections that were
# accepted or closed but not yet counted.
RESERVED_DESCRIPTORS, UNCOUNTED_DESCRIPTORS = 128, 64
MAX_CONNECTIONS = 10_000
# Clients wait in this queue while the service starts or is busy.
LISTEN_BACKLOG = 1024
GRACEFUL_SHUTDOWN_S = 3
# At the end, open connections have a quarter of a second to bring one more request. A proxy would
# report a request on a connection that is being closed as 502.
LAST_REQUEST_STEPS, LAST_REQUEST_STEP_S = 25, 0.01
# The first descriptor that systemd passes, as sd_listen_fds(3) says.
FIRST_PASSED_DESCRIPTOR = 3
# An id that a client may give its request; it is written to logs, headers and JSON unescaped.
REQUEST_ID_PATTERN = re.compile(rb"[A-Za-z0-9._-]{1,64}")


def open_listener(host: str, port: int, setting_prefix: str = "SIGNALS_") -> socket:
    """Bind and listen; SettingsError names the PORT and HOST settings with this prefix."""
    # Opened before any other work, so that an occupied port fails first.
    listener: socket | None = None
    try:
        family, address = _resolve(host, port)
        # asyncio disables Nagle's delay only on sockets that name their protocol.
        listener = socket(family, SOCK_STREAM, IPPROTO_TCP)
        listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(LISTEN_BACKLOG)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise SettingsError(
            f"cannot listen on {host} port {port}: {error.strerror}; "
            f"set {setting_prefix}PORT or {setting_prefix}HOST to another value"
        ) from None
    return listener


def _resolve(host: str, port: int) -> tuple[int, Any]:
    """Return the family and the address to listen on, of IPv4 if there is one."""
    found = getaddrinfo(host, port, type=SOCK_STREAM)
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != AF_INET)
    return family, address


def open_kept_listener(host: str, port: int) -> socket:
    """Return the listener that systemd has kept since before a restart, or open one that it keeps.

    Meanwhile connections wait in its queue instead of being refused. Without systemd, or without
    `FileDescriptorStoreMax` in its unit, it is like any other. Raise SettingsError as
    `open_listener` does.
    """
    manager = os.environ.get("NOTIFY_SOCKET")
    if os.environ.get("LISTEN_PID") == str(os.getpid()):
        kept = socket(fileno=FIRST_PASSED_DESCRIPTOR)
        with suppress(OSError):
            if kept.getsockname() == _resolve(host, port)[1]:
                return kept
        # The settings have changed. systemd's own copy would go on listening if this one were only
        # closed, and could hold the new address.
        with suppress(OSError):
            kept.shutdown(SHUT_RDWR)
        kept.close()
    listener = open_listener(host, port)
    if manager is not None:
        # Without it a restart refuses connections for some seconds, which is no reason to stop.
        with suppress(OSError), socket(AF_UNIX, SOCK_DGRAM) as notifier:
            notifier.connect(manager.replace("@", "\0", 1))
            notifier.send(b"FDSTOREREMOVE=1\nFDNAME=listener")
            send_fds(notifier, [b"FDSTORE=1\nFDNAME=listener"], [listener.fileno()])
    return listener


def calculate_max_connections() -> int:
    """Return how many connections fit within the process's limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    usable = soft - RESERVED_DESCRIPTORS - UNCOUNTED_DESCRIPTORS
    return max(1, min(MAX_CONNECTIONS, usable))


class Exchanges:
    """ASGI app: gives each request an id, logs its end, and tells its connection of both."""

    def __init__(self, app: ASGIApp, refusals: RefusalLog) -> None:
        self._app = app
        self._refusals = refusals
        self._failures = FailureLog()
        # Asking structlog costs as much as checking a Host.
        self._logs_all = request_log.is_enabled_for(logging.DEBUG)
        # Whether each response is the last one of its connection.
        self.is_ending = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app on a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        gate: Gate = scope["state"].pop("gate")
        headers, started_at, status = read_headers(scope), perf_counter(), 0
        sent_id = headers.get(b"x-request-id", b"")
        is_kept = sent_id and REQUEST_ID_PATTERN.fullmatch(sent_id)
        name = sent_id.decode() if is_kept else gate.create_request_id()
        scope[REQUEST_ID_KEY] = request_id = name.encode()
        bind_contextvars(request_id=name)
        gate.begin(scope, headers)
        length = headers.get(b"content-length", b"")
        # A short body that no app reads is skipped; after any other, the next request is not found.
        unread_bytes = int(length) if length.isdigit() and len(length) < 9 else MAX_HEAD_BYTES + 1

        async def receive_body() -> Message:
            gate.await_body()
            event = await receive()
            gate.take_body(len(event.get("body", b"")), is_last=not event.get("more_body", False))
            return event

        async def send_event(event: Message) -> None:
            nonlocal status
            if event["type"] == "http.response.start":
                status = event["status"]
                event["headers"] = [(b"x-request-id", request_id), *event["headers"]]
                is_skipped = gate.is_read or unread_bytes <= MAX_HEAD_BYTES
                # The parser leaves what follows an upgrade to another protocol.
                if b"upgrade" in headers or not is_skipped or self.is_ending:
                    event["headers"].append(CLOSE_CONNECTION)
                gate.is_answered = not gate.is_closed
            await send(event)

        try:
            await self._app(scope, receive_body, send_event)
        except Exception:
            status = status or 500
            raise
        finally:
            if gate.is_closed and not gate.is_answered:
                status = CLIENT_CLOSED_REQUEST
            gate.end(0 if gate.is_read else unread_bytes)
            if status >= 400 or ERROR_KEY in scope or self._logs_all:
                seconds = perf_counter() - started_at
                log_response(scope, status, seconds, self._refusals, self._failures)


class Server(uvicorn.Server):
    """Leaves signals to `listen_for_shutdown`, and ends without cutting a request off."""

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Accept no more connections, and close each after its next response, if it comes soon."""
        for server in self.servers:
            server.close()
        assert isinstance(self.config.app, Exchanges)
        self.config.app.is_ending = True
        for _ in range(LAST_REQUEST_STEPS):
            if not self.server_state.connections:
                break
            await asyncio.sleep(LAST_REQUEST_STEP_S)
        await super().shutdown(sockets)

    # uvicorn would raise a captured signal again before the stores are closed.

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture nothing."""
        yield


@asynccontextmanager
async def serve_in_background(
    config: uvicorn.Config, listener: socket
) -> AsyncIterator[asyncio.Task[None]]:
    """Serve during the block; at its end, finish the requests in flight first."""
    server = Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield serving
    finally:
        server.should_exit = True
        await serving


def build_server_config(
    app: Any,
    *,
    base_url: str = "http://localhost",
    idle_s: float = DEFAULT_IDLE_S,
    max_connections: int | None = None,
    refusals: RefusalLog | None = None,
    **options: Any,
) -> uvicorn.Config:
    """Return uvicorn's config: no other parser, no WebSocket, no banner, no access log.

    `base_url` is the service's address, for the refusals of requests that reach no app. A
    connection may wait for `idle_s`; there are as many as fit the process's limit of open files,
    or `max_connections`. `options` are further ones of uvicorn.
    """
    refusals = refusals or RefusalLog()
    limit = max_connections or calculate_max_connections()
    connections = Connections(f"{base_url}/api/v1", idle_s, limit, refusals)
    # uvicorn's own log would quote paths and queries.
    return uvicorn.Config(
        Exchanges(app, refusals),
        http=partial(Gate, connections),  # type: ignore[arg-type]
        loop="uvloop",
        ws="none",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=LISTEN_BACKLOG,
        timeout_keep_alive=int(idle_s) + 1,
        timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_S,
        lifespan="off",
        **options,
    )
