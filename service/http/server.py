"""The HTTP/1.1 server: uvicorn behind the gate of each connection, and around the app the exchange.

uvicorn itself waits without end for the rest of a request and for a client that reads no response,
and accepts a head of any length. The gate is a protocol to the event loop and a transport to
uvicorn's protocol. It uses only what asyncio documents and the scope of ASGI, whose `state` names
the connection of a request. The bytes of heads, of chunks' heads and of trailers are bounded here,
bodies by the app.

Each request has a debug line in the log, and the refusals have at most ten lines a minute. A line
has the route's template, never a path, query, header or body: clients put keys and addresses into
all of these.
"""

import asyncio
import logging
import os
import re
import resource
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
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

import structlog
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from schemas.errors import ApiError
from service.config.settings import DEFAULT_IDLE_S, SettingsError
from serving.error_responses import CLIENT_CLOSED_REQUEST
from serving.host_origin import ANY_ORIGIN_HEADERS
from serving.http import (
    CLOSE_CONNECTION,
    ERROR_KEY,
    MAX_HEAD_BYTES,
    ON_DISCONNECT_KEY,
    REQUEST_ID_KEY,
    TOOL_KEY,
    HeaderMap,
    build_size_error,
    http_error,
    read_headers,
    respond,
)
from serving.tool_runner import format_error_body
from store.failure_log import INTERVAL_S, CallLater, FailureLog

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
# The heads of chunks and the trailers of a body. Each chunk costs about a microsecond, and uvicorn
# keeps trailers of any length. A body of a megabyte in chunks of a kilobyte has 7 KB.
MAX_FRAMING_BYTES = 8 * 1024
# Time for a client to read a refusal and close, while the rest of its request is discarded.
LINGER_S = 2.0
HEAD_END, SHORTEST_STEP = b"\r\n\r\n", 64
# Copying more than this takes longer than a second write.
MAX_COPIED_BYTES = 64 * 1024
# All connections read into it, one after the other. Small, because each end of a head in what was
# read costs a copy of the rest.
READ_BUFFER = memoryview(bytearray(4096))
# Refusals that have a line of their own in a minute. Anybody can cause thousands a second.
MAX_REFUSAL_LINES = 10

log = structlog.get_logger("http")


@dataclass
class RefusalLog:
    """Writes the first refusals of a minute, then one line that counts them by status and route.

    Without `call_later`, that of the running event loop is used.
    """

    call_later: CallLater | None = None
    # Routes are templates, so strangers cannot add entries.
    counts: Counter[str] = field(default_factory=Counter)

    def write(self, fields: dict[str, Any]) -> None:
        """Log a refusal, or only count it if it is one of many."""
        if not self.counts:
            call_later = self.call_later or asyncio.get_running_loop().call_later
            # A context of its own, because the line belongs to no single request.
            call_later(INTERVAL_S, self._end_minute, context=Context())
        self.counts[f"{fields['status']} {fields.get('route', 'no route')}"] += 1
        if self.counts.total() <= MAX_REFUSAL_LINES:
            log.info("refused", **fields)

    def _end_minute(self) -> None:
        counts, self.counts = self.counts, Counter()
        if counts.total() > MAX_REFUSAL_LINES:
            by_route = [f"{key}: {count}" for key, count in counts.most_common()]
            log.info("refusals", count=counts.total(), by_route=by_route)


def log_response(
    scope: Scope, status: int, seconds: float, refusals: RefusalLog, failures: FailureLog
) -> None:
    """Log a request that was answered, and its refusal if it is one.

    `status` is CLIENT_CLOSED_REQUEST if the connection ended before the response.
    """
    error, route, has_left = (
        scope.get(ERROR_KEY),
        scope.get("route"),
        status == CLIENT_CLOSED_REQUEST,
    )
    if error is not None and not has_left:
        # A tool's error over MCP comes with HTTP status 200.
        status = max(status, error.status)
    named = {
        "request_id": scope[REQUEST_ID_KEY].decode(),
        "method": scope["method"],
        # A request that no route matched has none.
        "route": None if route is None else route.path,
        "tool": scope.get(TOOL_KEY),
        "status": status,
        "error": None if error is None else error.code,
        "duration_ms": round(1000 * seconds, 2),
    }
    fields: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
    log.debug("request", **fields)
    if has_left or (error is None and status < 400):
        return
    if status < 500:
        refusals.write(fields)
        return
    # It is the service's fault; the same of other requests, once a minute.
    details = {name: fields.pop(name) for name in ("request_id", "duration_ms")}
    failures.write(log.warning, "refused", fields, **details)


class Connections:
    """The connections of a server by the time since which they wait, the longest waiting first.

    If there are more than `limit`, the longest waiting one is closed for the newest, so idle
    clients cannot keep others out. One that waits for `idle_s` is closed too: for a request, for
    the rest of one, or for its client to read the response.
    """

    def __init__(self, docs: str, idle_s: float, limit: int, refusals: RefusalLog) -> None:
        """`docs` is named in refusals, which `refusals` logs."""
        self.docs, self.idle_s, self.limit, self.refusals = docs, idle_s, limit, refusals
        self.waiting: OrderedDict[Gate, float] = OrderedDict()
        self.is_sweeping = False

    def add(self, gate: "Gate") -> None:
        """Add a connection; if there are too many, close the one that has waited longest."""
        self.waiting[gate] = gate.loop.time()
        if len(self.waiting) > self.limit:
            self.waiting.popitem(last=False)[0].transport.abort()
        if not self.is_sweeping:
            self.sweep(gate.loop)

    def sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close the connections that wait too long, and look again later if there are others."""
        while self.waiting and next(iter(self.waiting.values())) <= loop.time() - self.idle_s:
            self.waiting.popitem(last=False)[0].transport.abort()
        self.is_sweeping = bool(self.waiting)
        if self.is_sweeping:
            loop.call_later(min(1.0, self.idle_s / 4), self.sweep, loop)


class Gate(asyncio.BufferedProtocol, asyncio.Transport):
    """A connection between the event loop's transport and uvicorn's protocol."""

    transport: asyncio.Transport
    id_prefix: str
    is_parsing = is_closed = is_paused = is_answered = False
    # Whether the app has read all that came of the body, and waits for more.
    is_awaited = False
    # Whether the next end of a head is that of the next request, not part of a body before it.
    is_before_head = True
    # Whether the whole request has been read; there is none at first.
    is_read = True
    room, request_count, unparsed = MAX_HEAD_BYTES, 0, b""
    # The head of a response until it is sent with the first part of the body; then it is empty.
    head: bytes | None = None
    check: asyncio.Handle | None = None

    def __init__(self, connections: Connections, app_state: dict[str, Any], **named: Any) -> None:
        """Take what uvicorn gives to a protocol; `connections` are those of the server."""
        super().__init__()
        self.connections, self.loop = connections, asyncio.get_running_loop()
        self.inner = HttpToolsProtocol(app_state=app_state | {"gate": self}, **named)
        self.pause_writing = self.inner.pause_writing  # type: ignore[method-assign]
        self.resume_writing = self.inner.resume_writing  # type: ignore[method-assign]
        self.scope: Scope = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection."""
        self.transport, self.id_prefix = transport, os.urandom(8).hex()
        self.get_extra_info = transport.get_extra_info  # type: ignore[method-assign]
        self.connections.add(self)
        self.inner.connection_made(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Tell uvicorn, and the line in which a request waits."""
        self.is_closed = True
        self.connections.waiting.pop(self, None)
        if (give_up := self.scope.get(ON_DISCONNECT_KEY)) is not None:
            give_up()
        # With an error, uvicorn would not cancel its timer.
        self.inner.connection_lost(None)
        # Without references in cycles, memory is free at once. Strangers can open thousands of
        # connections a second, and the next full collection of garbage may be minutes away.
        self.inner.cycle = None  # type: ignore[assignment]
        self.inner.pipeline.clear()
        del self.inner, self.pause_writing, self.resume_writing

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer to read into."""
        return READ_BUFFER

    def buffer_updated(self, size: int) -> None:
        """Let uvicorn parse what was read; stop reading if it is more than there is room for."""
        if self.is_closed:
            return
        self.room -= size
        self.unparsed += bytes(READ_BUFFER[:size])
        self.parse()
        if self.room < 0 and not self.is_closed:
            # The app of a request that was just read begins before this call, or reads on.
            self.transport.pause_reading()
            self.plan_check()

    def plan_check(self) -> None:
        """Check the room once the app has had its turn at all that was read."""
        # One that was planned before a read would come before the app's turn at what it brought.
        if self.check is not None:
            self.check.cancel()
        self.check = self.loop.call_soon(self.check_room)

    def parse(self) -> None:
        """Let uvicorn parse head by head, until it wants no more for now."""
        # It would keep each of the requests that are ahead of their responses, in 4 KB.
        while self.unparsed and not self.is_paused and not self.is_closed:
            # What ends a head may also be anywhere in a body, which is not cut into tiny steps.
            end = self.unparsed.find(HEAD_END, 0 if self.is_before_head else SHORTEST_STEP)
            size = len(self.unparsed) if end < 0 else end + len(HEAD_END)
            step, rest = self.unparsed[:size], self.unparsed[size:]
            if end >= 0 and self.is_before_head:
                self.is_before_head, self.room = False, MAX_FRAMING_BYTES - len(rest)
            self.unparsed, self.is_parsing = rest, True
            self.inner.data_received(step)
            self.is_parsing = False

    def check_room(self) -> None:
        """Read on if there is room, refuse the request if the app cannot make any."""
        self.check = None
        if self.is_closed:
            return
        if self.room >= 0:
            if not self.is_paused:
                self.transport.resume_reading()
        elif not self.scope:
            self.refuse(build_size_error(431, "head of the request", MAX_HEAD_BYTES))
        elif self.is_awaited:
            self.refuse(
                build_size_error(
                    431, "framing of the body (heads of chunks, trailers)", MAX_FRAMING_BYTES
                )
            )

    def refuse(self, error: ApiError) -> None:
        """Answer a request that reaches no app, or no further, and close the connection."""
        if not self.is_answered:
            request_id, status = self.create_request_id(), error.status
            self.connections.refusals.write(
                {"request_id": request_id, "status": status, "reason": str(error)}
            )
            body = format_error_body(error, self.connections.docs)
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n".encode(),
                b"content-type: application/json\r\ncache-control: no-store\r\n",
                b"content-length: %d\r\nconnection: close\r\n" % len(body),
                *(b"%b: %b\r\n" % header for header in ANY_ORIGIN_HEADERS),
                b"x-request-id: %b\r\n\r\n" % request_id.encode(),
            )
            self.transport.write(b"".join((*head, body)))
        self.is_read = False
        self.close()

    def create_request_id(self) -> str:
        """Return an id for a request of this connection."""
        self.request_count += 1
        return f"{self.id_prefix}-{self.request_count:04x}"

    def begin(self, scope: Scope, headers: HeaderMap) -> None:
        """Note that the app begins to run on a request."""
        self.scope, self.is_before_head, self.is_answered = scope, False, False
        self.room = min(self.room, MAX_FRAMING_BYTES)
        self.is_read = b"content-length" not in headers and b"transfer-encoding" not in headers
        self.wait_anew()

    def await_body(self) -> None:
        """Note that the app waits for more of the body."""
        self.is_awaited = True
        if self.room < 0:
            self.plan_check()

    def take_body(self, size: int, *, is_last: bool) -> None:
        """Note that the app has read a part of the body, and whether it was the last one."""
        self.is_awaited, self.is_read = False, is_last
        self.room += size

    def end(self, unread_bytes: int) -> None:
        """Note that the app has ended; `unread_bytes` of its request may still come."""
        if self.room < 0:
            self.plan_check()
        self.scope, self.is_before_head = {}, unread_bytes == 0
        self.send_head()
        self.head, self.is_answered, self.is_awaited = None, False, False
        self.room = MAX_HEAD_BYTES + unread_bytes
        self.wait_anew()

    def wait_anew(self) -> None:
        """Count the time from now on, unless the connection is closed already."""
        if self in self.connections.waiting:
            self.connections.waiting[self] = self.loop.time()
            self.connections.waiting.move_to_end(self)

    # What uvicorn calls on its transport.

    def write(self, data: Any) -> None:
        """Write a part of a response. Its head waits for the body: each write is a system call."""
        if self.is_parsing:
            # The app writes at other times; this is uvicorn's refusal of bytes that are no request.
            self.refuse(http_error(400, "Invalid HTTP request received."))
        elif self.is_answered and self.head is None:
            self.head = data
        elif self.head and not self.is_closed:
            if len(data) > MAX_COPIED_BYTES:
                self.send_head()
            # `writelines` of asyncio's own loop never pauses the protocol.
            self.transport.write(self.head + data)
            self.head = b""
        elif not self.is_closed:
            self.transport.write(data)

    def send_head(self) -> None:
        """Send the head of a response that has no further part."""
        if self.head and not self.is_closed:
            self.transport.write(self.head)
            self.head = b""

    def close(self) -> None:
        """Close the connection; if more of the request may come, discard it for a moment first."""
        if self.is_closed:
            return
        self.send_head()
        self.is_closed = True
        if self.is_read:
            self.transport.close()
            return
        # Closing a socket with unread bytes resets it, and the client could lose the response.
        self.transport.write_eof()
        self.transport.resume_reading()
        self.loop.call_later(LINGER_S, self.transport.abort)

    def is_closing(self) -> bool:
        """Return whether the connection is closed, or about to be."""
        return self.is_closed

    def pause_reading(self) -> None:
        """Stop reading the rest of a body, or requests ahead of their responses."""
        self.is_paused = True
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on."""
        self.is_paused = False
        self.loop.call_soon(self.parse)
        self.transport.resume_reading()


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
    # The lookup encodes the name, and not every text can be encoded.
    except (OSError, UnicodeError) as error:
        if listener is not None:
            listener.close()
        why = error.strerror if isinstance(error, OSError) else "it is no host name"
        raise SettingsError(
            f"cannot listen on {host} port {port}: {why}; "
            f"set {setting_prefix}PORT or {setting_prefix}HOST to another value"
        ) from None
    return listener


def _resolve(host: str, port: int) -> tuple[int, Any]:
    """Return the family and the address to listen on, of IPv4 if there is one."""
    family, _, _, _, address = min(
        getaddrinfo(host, port, type=SOCK_STREAM), key=lambda entry: entry[0] != AF_INET
    )
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


class Exchanges:
    """ASGI app: gives each request an id, logs its end, and tells its connection of both."""

    def __init__(self, app: ASGIApp, refusals: RefusalLog) -> None:
        self._app = app
        self._refusals = refusals
        self._failures = FailureLog()
        # Asking structlog costs as much as checking a Host.
        self._logs_all = log.is_enabled_for(logging.DEBUG)
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
            if not status and gate.is_closed:
                # uvicorn would log an error for each request but the newest.
                await respond(scope, send_event, CLIENT_CLOSED_REQUEST, [])
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
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    usable = files - RESERVED_DESCRIPTORS - UNCOUNTED_DESCRIPTORS
    fitting = MAX_CONNECTIONS if files == resource.RLIM_INFINITY else min(MAX_CONNECTIONS, usable)
    limit = max_connections or max(1, fitting)
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
