"""How the service takes connections: HTTP/1.1 by httptools, each exchange and their number bounded.

uvicorn itself waits without end for the rest of a request and for a client that reads no answer,
and takes a head of any length.
"""

import asyncio
import os
import re
import resource
from asyncio import Transport
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import copy_context
from multiprocessing.reduction import DupFd
from operator import attrgetter
from socket import (
    AF_INET,
    IPPROTO_TCP,
    SO_REUSEADDR,
    SOCK_STREAM,
    SOL_SOCKET,
    getaddrinfo,
    socket,
)
from typing import Any

import uvicorn
from structlog.contextvars import bind_contextvars
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from service.config.settings import SettingsError
from serving.http import CLOSE_CONNECTION, EXCHANGE_KEY, REQUEST_ID_KEY, HeaderList, read_headers

# Who connects while the service starts, or is busy, waits in it.
LISTEN_BACKLOG = 1024
EXCHANGE_TIMEOUT_S = 60.0
# Descriptors that stores, sources and the payment processor need.
RESERVED_DESCRIPTORS = 128
MAX_CONNECTIONS = 10_000
MAX_HEAD_BYTES = 64 * 1024
GRACEFUL_SHUTDOWN_S = 3
# What a client may name its request; it is written into logs, headers and JSON as it stands.
REQUEST_ID_PATTERN = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class Listener(socket):
    """A socket whose queue stays as long whoever listens to it anew, in any process.

    asyncio takes as many connections a turn as it would make the queue long.
    """

    def listen(self, backlog: int = LISTEN_BACKLOG, /) -> None:
        """Listen with a queue of a length of its own."""
        super().listen(LISTEN_BACKLOG)

    def __reduce__(self) -> Any:
        """Return what makes it again in a process that is being started."""
        return _rebuild_listener, (self.family, self.type, self.proto, DupFd(self.fileno()))


def _rebuild_listener(family: int, kind: int, protocol: int, duplicated_fd: Any) -> Listener:
    return Listener(family, kind, protocol, duplicated_fd.detach())


def calculate_max_connections() -> int:
    """Return how many connections the process's limit of open files leaves room for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(1, min(MAX_CONNECTIONS, soft - RESERVED_DESCRIPTORS))


def open_listener(host: str, port: int, setting_prefix: str = "SIGNALS_") -> Listener:
    """Take a port before any work, so that an occupied one is told at once.

    SettingsError names the two settings, which begin with `settings`.
    """
    listener: Listener | None = None
    try:
        found = getaddrinfo(host, port, type=SOCK_STREAM)
        family, _, _, _, address = min(found, key=lambda entry: entry[0] != AF_INET)
        # asyncio disables Nagle's delay only on sockets that name their protocol.
        listener = Listener(family, SOCK_STREAM, IPPROTO_TCP)
        listener.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as error:
        if listener is not None:
            listener.close()
        raise SettingsError(
            f"cannot listen on {host} port {port}: {error.strerror}; "
            f"set {setting_prefix}PORT or {setting_prefix}HOST"
        ) from None
    return listener


class Server(uvicorn.Server):
    """Leaves signals to `Stop`: uvicorn raises them again at its end, before the stores close."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture nothing."""
        yield


@asynccontextmanager
async def serve_in_background(
    config: uvicorn.Config, listener: Listener
) -> AsyncIterator[asyncio.Task[None]]:
    """Serve beside the block; at its end, what is in flight is answered first."""
    server = Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield serving
    finally:
        server.should_exit = True
        await serving


class DirectExchange:
    """An `Exchange` over a connection."""

    __slots__ = ("_connection", "_cycle")

    def __init__(self, connection: "BoundedProtocol", cycle: RequestResponseCycle) -> None:
        self._connection = connection
        self._cycle = cycle

    def take_body(self) -> bytes | None:
        """Return the whole body, once; None where it has not come, or nobody waits any more."""
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected:
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        return body

    def try_send(self, status: int, headers: HeaderList, parts: Sequence[bytes]) -> bool:
        """Send a whole answer, its head and body in one write; return False where it must wait.

        uvicorn writes them apart and searches each header for what ours never hold.
        """
        cycle, connection = self._cycle, self._connection
        if connection.flow.write_paused or cycle.disconnected:
            return False
        cycle.response_started = cycle.response_complete = True
        head = [STATUS_LINE[status]]
        for name, value in (*cycle.default_headers, *headers):
            head += (name, b": ", value, b"\r\n")
        if CLOSE_CONNECTION in headers:
            cycle.keep_alive = False
        elif not cycle.keep_alive:
            head.append(b"connection: close\r\n")
        head.append(b"\r\n")
        self._write([b"".join(head), *(() if cycle.scope["method"] == "HEAD" else parts)])
        cycle.message_event.set()
        if not cycle.keep_alive:
            connection.transport.close()
        cycle.on_response()
        return True

    def _write(self, parts: Sequence[bytes]) -> None:
        """Write what the socket takes at once, and leave the rest to the transport.

        A transport would join the parts first, and joining a large answer takes as long as sending.
        """
        transport, written = self._connection.transport, 0
        if not (transport.is_closing() or transport.get_write_buffer_size()):
            # What ails the connection, the transport finds and tells.
            with suppress(OSError):
                written = os.writev(transport.get_extra_info("socket").fileno(), parts)
        for part in parts:
            if written < len(part):
                transport.write(part[written:])
            written = max(0, written - len(part))


class BoundedProtocol(HttpToolsProtocol):
    """A connection that ends where one exchange, from its wait to its answer, takes too long.

    Where there are too many, the one whose exchange has lasted longest makes room for the newest,
    so idle ones cannot keep others out.
    """

    exchange_s = EXCHANGE_TIMEOUT_S
    max_connections = staticmethod(calculate_max_connections)
    _awaits_head = True
    _head_count = _head_bytes = _request_count = 0

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Take a connection, at the cost of the longest waiting one where there are too many."""
        super().connection_made(transport)
        self._id_prefix = os.urandom(8).hex().encode()
        self.exchange_began_at = self.loop.time()
        self._deadline = self.loop.call_later(self.exchange_s, self._expire)
        open_connections = [
            connection for connection in self.connections if not connection.transport.is_closing()
        ]
        if len(open_connections) > self.max_connections():
            min(open_connections, key=attrgetter("exchange_began_at")).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._deadline.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Begin the next exchange; what the client has not read yet falls under its deadline.

        So does its wait, for which uvicorn would set a timer after each answer.
        """
        self.exchange_began_at = self.loop.time()
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            if self.pipeline:
                self._start_asgi_task(*self.pipeline.pop())

    def data_received(self, data: bytes) -> None:
        """Parse what comes; the parser itself would hold a head of any length."""
        awaited_head, previous_head_count = self._awaits_head, self._head_count
        super().data_received(data)
        is_head = awaited_head and previous_head_count == self._head_count
        self._head_bytes = self._head_bytes + len(data) if is_head else 0
        if self._head_bytes > MAX_HEAD_BYTES:
            self.send_400_response("The head of the request is too long.")

    def on_headers_complete(self) -> None:
        """Pass a request on; one for another server than this, in absolute form, has no path."""
        self._head_count, self._awaits_head = self._head_count + 1, False
        if not self.url.startswith(b"/"):
            self.url = b"/" + self.url
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Wait for the next head."""
        self._awaits_head = True
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Begin to answer a request, with shorter ways for a body and an answer that are ready.

        Whoever answers it, the answer has its id, and so has what is logged meanwhile.
        """
        scope: Any = cycle.scope
        scope[EXCHANGE_KEY] = DirectExchange(self, cycle)
        scope[REQUEST_ID_KEY] = request_id = self._choose_request_id(scope)
        cycle.default_headers = [*cycle.default_headers, (b"x-request-id", request_id)]
        # Of its own: it may begin within the task of the one before, which may go on.
        context = copy_context()
        context.run(bind_contextvars, request_id=request_id.decode())
        context.run(super()._start_asgi_task, cycle, app)

    def _choose_request_id(self, scope: Any) -> bytes:
        """Return the id of a request: its own where it brings a plain one."""
        sent = read_headers(scope).get(b"x-request-id")
        if sent is not None and REQUEST_ID_PATTERN.fullmatch(sent):
            return sent
        self._request_count += 1
        return b"%b-%04x" % (self._id_prefix, self._request_count)

    def _unsupported_upgrade_warning(self) -> None:
        """Let the answer be the last: the parser leaves what follows to another protocol."""
        self.cycle.keep_alive = False

    def _expire(self) -> None:
        """End the connection, or come back when the exchange that goes on has had its time."""
        remaining_s = self.exchange_began_at + self.exchange_s - self.loop.time()
        if remaining_s <= 0:
            self.transport.abort()
        else:
            self._deadline = self.loop.call_later(remaining_s, self._expire)


def build_server_config(
    app: Any, protocol: type[BoundedProtocol] = BoundedProtocol
) -> uvicorn.Config:
    """Return how an app is served: no other parser, no WebSocket, no banner, no log of requests.

    Malformed requests are answered and not logged: whoever can connect could fill a disk.
    """
    return uvicorn.Config(
        app,
        http=protocol,
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=GRACEFUL_SHUTDOWN_S,
    )
