"""The bounds of a connection: a protocol to the event loop, and a transport to uvicorn's protocol.

It uses only what asyncio documents and the scope of ASGI, whose `state` names the connection of a
request. The bytes of heads, of chunks' heads and of trailers are bounded here, bodies by the app.
"""

import asyncio
import os
from collections import OrderedDict
from http import HTTPStatus
from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from schemas.errors import ApiError
from service.http.request_log import RefusalLog
from serving.cors import ANY_ORIGIN_HEADERS
from serving.http import (
    MAX_HEAD_BYTES,
    ON_DISCONNECT_KEY,
    HeaderMap,
    build_size_error,
    http_error,
)
from serving.tool_runner import format_error_body

# The heads of chunks and the trailers of a body. Each chunk costs about a microsecond, and uvicorn
# keeps trailers of any length. A body of a megabyte in chunks of a kilobyte has 7 KB.
MAX_FRAMING_BYTES = 8 * 1024
# Time for a client to read a refusal and close, while the rest of its request is discarded.
LINGER_S = 2.0
# All connections read into it, one after the other. Small, because each end of a head in what was
# read costs a copy of the rest.
READ_BUFFER = memoryview(bytearray(4096))


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
        self.inner.connection_lost(error)

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
            head, end, rest = self.unparsed.partition(b"\r\n\r\n")
            if end and self.is_before_head:
                self.is_before_head, self.room = False, MAX_FRAMING_BYTES - len(rest)
            self.unparsed, self.is_parsing = rest, True
            self.inner.data_received(head + end)
            self.is_parsing = False

    def check_room(self) -> None:
        """Read on if there is room, refuse the request if the app cannot make any."""
        if self.is_closed:
            return
        if self.room >= 0:
            if not self.is_paused:
                self.transport.resume_reading()
        elif not self.scope:
            self.refuse(build_size_error(431, "head of the request", MAX_HEAD_BYTES))
        elif self.is_awaited:
            part = "framing of the body (heads of chunks, trailers)"
            self.refuse(build_size_error(431, part, MAX_FRAMING_BYTES))

    def refuse(self, error: ApiError) -> None:
        """Answer a request that reaches no app, or no further, and close the connection."""
        if not self.is_answered:
            request_id, status = self.create_request_id(), error.status
            fields = {"request_id": request_id, "status": status, "reason": str(error)}
            self.connections.refusals.write(fields)
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
        self.is_answered = self.is_awaited = False
        self.room = MAX_HEAD_BYTES + unread_bytes
        self.wait_anew()

    def wait_anew(self) -> None:
        """Count the time from now on, unless the connection is closed already."""
        if self in self.connections.waiting:
            self.connections.waiting[self] = self.loop.time()
            self.connections.waiting.move_to_end(self)

    # What uvicorn calls on its transport.

    def write(self, data: Any) -> None:
        """Write a part of a response; uvloop sends the parts of one turn together."""
        if self.is_parsing:
            # The app writes at other times; this is uvicorn's refusal of bytes that are no request.
            self.refuse(http_error(400, "Invalid HTTP request received."))
        elif not self.is_closed:
            self.transport.write(data)

    def close(self) -> None:
        """Close the connection; if more of the request may come, discard it for a moment first."""
        if self.is_closed:
            return
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
