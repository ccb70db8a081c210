"""The HTTP/1.1 server: uvicorn with bounded exchanges, request heads and number of connections.

uvicorn itself waits without end for the rest of a request and for a client that reads no response,
accepts a head of any length, and parses requests far ahead of its responses.
tests/service/http/test_uvicorn_internals.py lists every internal of uvicorn that this module and
the supervisor rely on.
"""

import asyncio
import os
import re
import resource
from asyncio import Transport
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import copy_context
from functools import partial
from time import perf_counter
from typing import Any

import uvicorn
from httptools import HttpParserError
from starlette.types import Message
from structlog.contextvars import bind_contextvars
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from schemas.errors import ApiError
from service.http.listener import Listener
from service.http.request_log import (
    RefusalLog,
    is_every_request_logged,
    log_abandoned,
    log_response,
)
from serving.cors import ANY_ORIGIN_HEADERS
from serving.http import (
    CLOSE_CONNECTION,
    ERROR_KEY,
    EXCHANGE_KEY,
    MAX_HEAD_BYTES,
    MAX_TARGET_BYTES,
    REQUEST_ID_KEY,
    HeaderList,
    InlineExchange,
    build_size_error,
    http_error,
    read_headers,
)
from serving.tool_runner import format_error_body
from store.failure_log import FailureLog

EXCHANGE_TIMEOUT_S = 60.0
# Descriptors kept for stores, sources and the payment processor.
RESERVED_DESCRIPTORS = 128
MAX_CONNECTIONS = 10_000
# asyncio accepts this many connections before it runs anything else, and takes three more turns to
# close the connections that they replace.
MAX_ACCEPTS_PER_TURN = 16
MAX_UNCOUNTED_CONNECTIONS = 4 * MAX_ACCEPTS_PER_TURN
# A header takes about 150 bytes of memory besides its text.
MAX_HEADERS = 1000
# Pieces of a chunked body: each one costs the event loop some microseconds, also one of a byte.
MAX_PIECES = 1000
END_OF_HEAD = b"\r\n\r\n"
ABSOLUTE_FORM = re.compile(rb"^https?://[^/?#]*", re.IGNORECASE)
# asyncio would read 256 KiB at once, four times as much as a head or a body can have.
READ_BYTES = 16 * 1024
GRACEFUL_SHUTDOWN_S = 3
# Time for a client to read a refusal and close, while the rest of its request is discarded.
LINGER_S = 2.0
# An id that a client may give its request; it is written to logs, headers and JSON unescaped.
REQUEST_ID_PATTERN = re.compile(rb"[A-Za-z0-9._-]{1,64}")


def calculate_max_connections() -> int:
    """Return how many connections fit within the process's limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    usable = soft - RESERVED_DESCRIPTORS - MAX_UNCOUNTED_CONNECTIONS
    return max(1, min(MAX_CONNECTIONS, usable))


class ServerConfig(uvicorn.Config):
    """A config with the logs that all connections share; `docs` is named in refusals."""

    failures: FailureLog
    refusals: RefusalLog
    docs: str


class Server(uvicorn.Server):
    """Leaves signals to `ShutdownSignal`."""

    # uvicorn would raise a captured signal again before the stores are closed.

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture nothing."""
        yield


@asynccontextmanager
async def serve_in_background(
    config: uvicorn.Config, listener: Listener
) -> AsyncIterator[asyncio.Task[None]]:
    """Serve during the block; at its end, finish the requests in flight first."""
    server = Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield serving
    finally:
        server.should_exit = True
        await serving


class DirectExchange:
    """An `InlineExchange` over a connection, which logs the end of each exchange."""

    __slots__ = ("_connection", "_cycle", "_started_at", "_status", "on_disconnect")

    def __init__(self, connection: "BoundedProtocol", cycle: RequestResponseCycle) -> None:
        self._connection = connection
        self._cycle = cycle
        self._started_at = perf_counter()
        self._status = 0
        self.on_disconnect: Callable[[], object] | None = None
        # Every response passes here: those of `try_send`, those sent as ASGI events, and uvicorn's
        # own 500.
        cycle.send = self.send_event  # type: ignore[assignment,method-assign]
        cycle.on_response = self.complete

    async def send_event(self, event: Message) -> None:
        """Send an ASGI event, and remember the status of the response."""
        if event["type"] == "http.response.start":
            self._status = event["status"]
        await RequestResponseCycle.send(self._cycle, event)  # type: ignore[arg-type]

    def complete(self) -> None:
        """Log the request after its response, and begin the connection's next exchange."""
        scope: Any = self._cycle.scope
        status = self._status
        if status >= 400 or ERROR_KEY in scope or self._connection.logs_every_request:
            seconds = perf_counter() - self._started_at
            config = self._connection.config
            log_response(scope, status, seconds, config.refusals, config.failures)
        self._connection.on_response_complete()

    def abandon(self) -> None:
        """Report and log a request whose connection has ended before its response."""
        if self.on_disconnect is not None:
            self.on_disconnect()
        if self._connection.logs_every_request:
            scope: Any = self._cycle.scope
            log_abandoned(scope, perf_counter() - self._started_at)

    def take_body(self) -> bytes | None:
        """Return the whole body, once; None if it has not arrived or the client has left."""
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected:
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        return body

    def try_send(self, status: int, headers: HeaderList, parts: Sequence[bytes]) -> bool:
        """Send a whole response, head and body in one write; return False if it would block."""
        # uvicorn writes head and body separately, and searches each header by regular expression
        # for characters that ours never contain.
        cycle, connection = self._cycle, self._connection
        if connection.flow.write_paused or cycle.disconnected:
            return False
        cycle.response_started = cycle.response_complete = True
        self._status = status
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
            connection.close(is_request_read=not cycle.more_body)
        cycle.on_response()
        return True

    def _write(self, parts: Sequence[bytes]) -> None:
        """Write as much as the socket accepts at once, and leave the rest to the transport."""
        # A transport would join the parts first. For an unfiltered state that copy takes as long
        # as sending it: three writes took 141 microseconds, one takes 129.
        transport, written = self._connection.transport, 0
        if not (transport.is_closing() or transport.get_write_buffer_size()):
            # The transport finds and reports a broken connection itself.
            with suppress(OSError):
                written = os.writev(transport.get_extra_info("socket").fileno(), parts)
        for part in parts:
            if written < len(part):
                transport.write(part[written:])
            written = max(0, written - len(part))


class BoundedProtocol(HttpToolsProtocol):
    """A connection that ends if one exchange, from its wait to its response, takes too long.

    If there are too many connections, the one whose exchange has lasted longest is closed for the
    newest, so idle clients cannot keep others out. A request is parsed only after the response to
    the previous one, so a client that sends many at once and reads nothing takes little memory.
    """

    exchange_s = EXCHANGE_TIMEOUT_S
    config: ServerConfig
    max_connections = staticmethod(calculate_max_connections)
    logs_every_request = False
    _awaits_head = _is_parsing = True
    _step_count = _head_bytes = _body_bytes = _pieces_left = _request_count = 0
    url = _unparsed = _part_end = b""

    def __init__(self, *args: Any, waiting: "WaitingConnections", **named: Any) -> None:
        """Join the connections of a server, which share `waiting`."""
        super().__init__(*args, **named)
        self._waiting = waiting

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Accept a connection; if there are too many, close the one that has waited longest."""
        super().connection_made(transport)
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]
        self._id_prefix = os.urandom(8).hex().encode()
        # Read once per connection: per request it would cost more than the rest of the logging.
        self.logs_every_request = is_every_request_logged()
        self.exchange_began_at = self.loop.time()
        self._deadline = self.loop.call_later(self.exchange_s, self._expire)
        self._waiting[self] = None
        if len(self._waiting) > self.max_connections():
            self._waiting.popitem(last=False)[0].transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline, and log a request that is in progress."""
        self._deadline.cancel()
        self._waiting.pop(self, None)
        if self.cycle is not None and not self.cycle.response_complete:
            scope: Any = self.cycle.scope
            exchange: DirectExchange = scope[EXCHANGE_KEY]
            exchange.abandon()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Begin the next exchange; its deadline also covers what the client has yet to read."""
        # This replaces the keep-alive timer that uvicorn would set after each response.
        self.exchange_began_at = self.loop.time()
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self._waiting.move_to_end(self)
            self._parse(self._unparsed)
            if not self._unparsed:
                self.flow.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Parse the data up to the end of a request that has no response yet."""
        self._parse(self._unparsed + data if self._unparsed else data)

    def _parse(self, data: bytes) -> None:
        """Feed the parser part by part; stop reading while the next request has to wait."""
        start = 0
        while start < len(data) and self._is_ready_to_parse():
            end = start + self._measure_part(data, start)
            self._feed(data[start:end])
            start = end
        self._unparsed = data[start:] if self._is_parsing else b""
        if self._unparsed:
            self.flow.pause_reading()

    def _is_ready_to_parse(self) -> bool:
        if not self._is_parsing or self.transport.is_closing():
            return False
        return not self._awaits_head or self.cycle is None or self.cycle.response_complete

    def _measure_part(self, data: bytes, start: int) -> int:
        """Return the size of a part that contains no end of a request, except as its last byte."""
        # The parser does not report at which byte a request ended, and the next one begins there.
        if self._body_bytes:
            return min(len(data) - start, self._body_bytes)
        # Chunks end with the same bytes as a head. These may have arrived in two pieces.
        offset = len(self._part_end)
        end = (self._part_end + data[start : start + 3]).find(END_OF_HEAD)
        if end < 0:
            end, offset = data.find(END_OF_HEAD, start), start
        size = len(data) - start if end < 0 else end + len(END_OF_HEAD) - offset
        return min(size, MAX_HEAD_BYTES - self._head_bytes)

    def _feed(self, data: bytes) -> None:
        """Parse a part; refuse a head that is too long, and trailers or a chunk's head."""
        # The parser itself accepts all of them at any length.
        previous_step_count = self._step_count
        self._body_bytes = max(0, self._body_bytes - len(data))
        part_end = (self._part_end + data[-4:])[-4:]
        self._part_end = b"" if part_end == END_OF_HEAD else part_end[-3:]
        super().data_received(data)
        is_head = previous_step_count == self._step_count
        self._head_bytes = self._head_bytes + len(data) if is_head else 0
        if self._head_bytes >= MAX_HEAD_BYTES or len(self.headers or ()) > MAX_HEADERS:
            self._refuse_head()

    def _refuse_head(self) -> None:
        # A target that is too long can fill the head.
        if len(self.url) > MAX_TARGET_BYTES:
            self._refuse(build_size_error(414, "path with its query", MAX_TARGET_BYTES))
        elif len(self.headers or ()) > MAX_HEADERS:
            parts = "headers" if self._awaits_head else "headers and trailers"
            self._refuse(http_error(431, f"The request has more than {MAX_HEADERS} {parts}."))
        else:
            # Past its head, a request has only a chunk's head or trailers left to be too long.
            part = "head of the request" if self._awaits_head else "chunk's head or trailer"
            self._refuse(build_size_error(431, part, MAX_HEAD_BYTES))

    def send_400_response(self, msg: str) -> None:
        """Refuse bytes that are not a request."""
        self._refuse(http_error(400, msg))

    def _refuse(self, error: ApiError) -> None:
        """Refuse a request that reaches no app, log the refusal and close the connection."""
        if not self._is_parsing or self.transport.is_closing():
            return
        if not self._awaits_head and self.cycle.response_complete:
            # The request has its response already.
            self.close(is_request_read=False)
            return
        request_id = self._create_request_id()
        fields = {"request_id": request_id.decode(), "status": error.status}
        self.config.refusals.write({**fields, "reason": str(error)})
        body = format_error_body(error, self.config.docs)
        head = (
            STATUS_LINE[error.status],
            b"content-type: application/json\r\ncache-control: no-store\r\n",
            b"content-length: %d\r\n" % len(body),
            *(b"%b: %b\r\n" % header for header in ANY_ORIGIN_HEADERS),
            b"x-request-id: %b\r\nconnection: close\r\n\r\n" % request_id,
        )
        self.transport.write(b"".join(head) + body)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.close(is_request_read=False)

    def close(self, *, is_request_read: bool) -> None:
        """Close the connection; if more of the request may come, discard it for a moment first."""
        if is_request_read:
            self.transport.close()
            return
        # Closing a socket with unread bytes resets it, and the client could lose the response.
        self._is_parsing = False
        self._deadline.cancel()
        self._deadline = self.loop.call_later(LINGER_S, self.transport.abort)
        self.flow.resume_reading()
        self.transport.write_eof()

    def on_headers_complete(self) -> None:
        """Start a request; one in absolute form, as for a proxy, gets the path in it."""
        if len(self.headers) > MAX_HEADERS:
            self._refuse_head()
            raise HttpParserError
        self._step_count, self._awaits_head = self._step_count + 1, False
        if not self.url.startswith(b"/"):
            self.url = ABSOLUTE_FORM.sub(b"", self.url)
            self.url = self.url if self.url.startswith(b"/") else b"/" + self.url
        super().on_headers_complete()
        scope: Any = self.cycle.scope
        length = read_headers(scope).get(b"content-length", b"")
        self._body_bytes = int(length[:20]) if length.isdigit() else 0
        self._pieces_left = MAX_PIECES

    def on_body(self, body: bytes) -> None:
        """Note that the parser is past a head; refuse a body of too many chunks."""
        self._step_count += 1
        scope: Any = self.scope
        self._pieces_left -= b"content-length" not in read_headers(scope)
        if self._pieces_left < 0:
            self._refuse(
                http_error(400, f"The body has more than {MAX_PIECES} chunks; send larger ones.")
            )
            raise HttpParserError
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Wait for the next head."""
        self._step_count, self._awaits_head, self._body_bytes = self._step_count + 1, True, 0
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        """Run the app on a request, with an `InlineExchange` for bodies that are ready.

        The response carries the request's id, and so does whatever is logged meanwhile.
        """
        scope: Any = cycle.scope
        # Annotated so that mypy compares the two: a scope holds anything.
        exchange: InlineExchange = DirectExchange(self, cycle)
        scope[EXCHANGE_KEY] = exchange
        scope[REQUEST_ID_KEY] = request_id = self._choose_request_id(scope)
        cycle.default_headers = [*cycle.default_headers, (b"x-request-id", request_id)]
        # A context of its own: this may run within the task of the previous request.
        context = copy_context()
        context.run(bind_contextvars, request_id=request_id.decode())
        context.run(super()._start_asgi_task, cycle, app)

    def _choose_request_id(self, scope: Any) -> bytes:
        """Return the id of a request: the client's if it sent a plain one."""
        sent = read_headers(scope).get(b"x-request-id")
        if sent is not None and REQUEST_ID_PATTERN.fullmatch(sent):
            return sent
        return self._create_request_id()

    def _create_request_id(self) -> bytes:
        self._request_count += 1
        return b"%b-%04x" % (self._id_prefix, self._request_count)

    def _unsupported_upgrade_warning(self) -> None:
        """Close after this response: the parser leaves what follows to another protocol."""
        self.cycle.keep_alive = self._is_parsing = False

    def _expire(self) -> None:
        """Close the connection, or check again when the current exchange runs out of time."""
        remaining_s = self.exchange_began_at + self.exchange_s - self.loop.time()
        if remaining_s <= 0:
            self.transport.abort()
        else:
            self._deadline = self.loop.call_later(remaining_s, self._expire)


# The connections of a server, by how long their exchange has lasted; the longest is first.
WaitingConnections = OrderedDict[BoundedProtocol, None]


def build_server_config(
    app: Any,
    protocol: type[BoundedProtocol] = BoundedProtocol,
    *,
    base_url: str = "http://localhost",
) -> ServerConfig:
    """Return uvicorn's config: no other parser, no WebSocket, no banner, no access log.

    `base_url` is the service's address, for the refusals of requests that reach no app.
    """
    # uvicorn's own log would quote paths and queries. The loop is asyncio's because
    # `DirectExchange` writes past its transport, and uvloop gained nothing for tool calls.
    config = ServerConfig(
        app,
        http=partial(protocol, waiting=WaitingConnections()),  # type: ignore[arg-type]
        backlog=MAX_ACCEPTS_PER_TURN,
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
    config.failures, config.refusals = FailureLog(), RefusalLog()
    config.docs = f"{base_url}/api/v1"
    return config
