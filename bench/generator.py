"""Our own load generator, which runs in a separate process on raw asyncio connections.

`python -m bench.generator` reads options as JSON from standard input and prints the results. If a
rate is given, calls are due on a fixed schedule and latency counts from the due time, so that a
stall of the server delays every call due in it. If not, each call follows the previous response.
"""

import asyncio
import itertools
import json
import selectors
import sys
import time
from typing import Any
from urllib.parse import urlsplit

from bench.load import Call


class Connection(asyncio.Protocol):
    """Sends one request at a time and reads its response, with a known length or chunked."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._pending: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._pending is not None and is_complete(self._received):
            self._resolve(bytes(self._received))

    def connection_lost(self, exc: Exception | None) -> None:
        self._resolve(b"")

    async def send(self, request: bytes) -> bytes:
        """Return the response with its head, or empty bytes if the connection ended."""
        if self.transport.is_closing():
            return b""
        self._received.clear()
        self._pending = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._pending

    def _resolve(self, answer: bytes) -> None:
        if self._pending is not None and not self._pending.done():
            self._pending.set_result(answer)
        self._pending = None


def is_complete(received: bytearray) -> bool:
    """Return true if the received bytes are a complete response."""
    end = received.find(b"\r\n\r\n")
    if end < 0:
        return False
    head = bytes(received[: end + 2]).lower()
    if b"\r\ntransfer-encoding: chunked\r\n" in head:
        return received.endswith(b"\r\n0\r\n\r\n")
    _, found, rest = head.partition(b"\r\ncontent-length: ")
    length = int(rest.partition(b"\r\n")[0]) if found else 0
    # A 304 has the length of the full response, but no body.
    return head.startswith(b"http/1.1 304") or len(received) >= end + 4 + length


def encode_request(call: Call, host: str) -> bytes:
    headers = {"Host": host, **call.headers}
    if call.body and "Transfer-Encoding" not in headers:
        headers["Content-Length"] = str(len(call.body.encode()))
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{call.method} {call.path} HTTP/1.1\r\n{head}\r\n{call.body}".encode()


class Generator:
    """Makes calls for some seconds; `times` has each call's due time (epoch s) and its seconds."""

    def __init__(self, url: str, call: Call, first: int, seconds: float, rate: float | None):
        address = urlsplit(url)
        self._host, self._port = address.hostname or "", address.port or 80
        self._host_header = address.netloc
        self._call, self._first, self._rate = call, first, rate
        self._seconds, self._numbers = seconds, itertools.count()
        self.times: list[tuple[float, float]] = []
        self.bytes = self.failed = 0

    async def run(self, connections: int) -> float:
        """Make the calls and return the seconds they took, without opening the connections."""
        opened = [await self._connect() for _ in range(connections)]
        self._began = time.time()
        self._until = self._began + self._seconds
        await asyncio.gather(*map(self._run_on, opened))
        return time.time() - self._began

    async def _run_on(self, connection: Connection) -> None:
        """Make calls on a connection; if it breaks, continue on a new one."""
        for number in self._numbers:
            due = time.time() if self._rate is None else self._began + number / self._rate
            if due >= self._until:
                break
            if (early := due - time.time()) > 0:
                await asyncio.sleep(early)
            request = encode_request(
                self._call.with_number(self._first + number), self._host_header
            )
            answer = await connection.send(request)
            self._record(due, answer)
            if not answer:
                connection = await self._connect()
        connection.transport.close()

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(Connection, self._host, self._port))[1]

    def _record(self, due: float, answer: bytes) -> None:
        self.times.append((due, time.time() - due))
        self.bytes += len(answer)
        self.failed += not answer or int(answer[9:12]) >= 400


async def generate_load(options: dict[str, Any]) -> dict[str, Any]:
    connections, call = options.pop("connections"), Call(**options.pop("call"))
    generator = Generator(call=call, **options)
    return {
        "took_s": await generator.run(connections),
        "times": generator.times,
        "bytes": generator.bytes,
        "failed": generator.failed,
    }


def main() -> None:
    # asyncio's usual epoll wakes at whole milliseconds, which would be the latency measured here;
    # select wakes to the microsecond.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    print(json.dumps(loop.run_until_complete(generate_load(json.load(sys.stdin)))))
    loop.close()


if __name__ == "__main__":
    main()
