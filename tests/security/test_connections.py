"""Slow, idle and too many clients are disconnected, and other clients are still served."""

import asyncio
import gc
import os
import re
import socket
import struct
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from service.http import server
from service.http.server import RESERVED_DESCRIPTORS, Gate
from serving.http import MAX_BODY_BYTES
from tests.security.wire import (
    HOST,
    LAST,
    WITHIN_S,
    Connection,
    collector_off as collector_off,
    exchange_bytes,
    open_raw_connection,
    parse_statuses,
    read_until_closed,
)
from tests.service.commands.test_cli import write_bars
from tests.support.running_service import (
    RunningService,
    open_loopback_socket,
    run_app,
    serve_app,
)
from tests.support.signals_command import (
    COMMAND,
    RunningCommand,
    build_environment,
    find_free_port,
)

pytestmark = pytest.mark.clause("endpoint")

GET = b"GET /api/v1/openapi.json HTTP/1.1\r\n" + HOST
POST = b"POST /api/v1/mcp HTTP/1.1\r\n" + HOST
UNFINISHED = {
    "nothing": b"",
    "half a head": GET,
    "half a body": POST + b"Content-Length: 9\r\n\r\n{",
    "half a chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n9\r\n{",
    "no last chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
}


MORE_THAN_SOCKETS_HOLD = 12_000_000
ANSWER = re.compile(rb'{"jsonrpc".*?(?=HTTP/1.1 )', re.DOTALL)


@pytest.fixture
async def short_timeout_url(served: RunningService) -> AsyncIterator[str]:
    await served.client.get("/api/v1/openapi.json")  # Created once.
    async with serve_app(lambda _: served.app, idle_s=0.2) as address:
        yield address


@pytest.mark.parametrize("sent", UNFINISHED.values(), ids=UNFINISHED)
async def test_a_request_that_never_ends_is_aborted(short_timeout_url: str, sent: bytes):
    assert await exchange_bytes(short_timeout_url, sent) == b""


@pytest.mark.parametrize("more", [b"G", POST + b"Content-Length: 9\r\n\r\n"], ids=["byte", "head"])
async def test_the_time_limit_applies_to_each_request_of_a_connection(
    short_timeout_url: str, more: bytes
):
    refused = b"PUT" + POST[4:] + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    assert parse_statuses(await exchange_bytes(short_timeout_url, refused + more)) == [405]


async def test_a_refused_body_that_never_ends_is_not_read_for_ever(short_timeout_url: str):
    head = b"PUT" + POST[4:] + b"Transfer-Encoding: chunked\r\n\r\n"
    async with open_raw_connection(short_timeout_url) as (reader, writer):
        writer.write(head)
        with suppress(ConnectionError):
            async with asyncio.timeout(WITHIN_S):
                while True:
                    writer.write(b"1\r\nx\r\n")
                    await writer.drain()
                    await asyncio.sleep(0)
        assert parse_statuses(await read_until_closed(reader)) in ([405], [])


async def test_a_client_that_reads_no_response_is_disconnected(short_timeout_url: str):
    async with open_raw_connection(short_timeout_url) as (reader, writer):
        writer.transport.pause_reading()
        with suppress(ConnectionError):
            async with asyncio.timeout(WITHIN_S):
                while not writer.transport.is_closing():
                    writer.write((GET + b"\r\n") * 20)
                    await writer.drain()
        answered = parse_statuses(await read_until_closed(reader))
    assert set(answered) <= {200}
    assert len(answered) < 2000


def listing(number: int) -> bytes:
    body = b'{"jsonrpc":"2.0","id":%d,"method":"tools/list"}' % number
    return POST + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body


@pytest.mark.prove
async def test_a_client_that_reads_late_gets_every_response_complete(served: RunningService):
    (first,) = ANSWER.findall(await exchange_bytes(served.base_url, listing(1) + LAST))
    times = MORE_THAN_SOCKETS_HOLD // len(first)
    async with open_raw_connection(served.base_url) as (reader, writer):
        writer.transport.pause_reading()
        writer.write(b"".join(listing(number) for number in range(times)) + LAST)
        for _ in range(100):
            assert (await served.client.get("/api/v1")).status_code == 200
        writer.transport.resume_reading()
        received = await read_until_closed(reader)
    numbered = [first.replace(b'"id":1', b'"id":%d' % number, 1) for number in range(times)]
    assert ANSWER.findall(received) == numbered


async def asks_on(connection: Connection) -> list[int]:
    reader, writer = connection
    writer.write(LAST)
    return parse_statuses(await read_until_closed(reader))


# Sent on a connection before its client leaves.
SENT = {
    **UNFINISHED,
    "two requests": 2 * (b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"),
    "a request behind a refused one": (
        b"PUT" + POST[4:] + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + GET + b"\r\n"
    ),
    "a call without a key": b"GET /api/v1/state HTTP/1.1\r\n" + HOST + b"\r\n",
    "no request": b"nonsense\r\n\r\n",
    "a long head": GET + b"X-A: " + b"a" * 60_000,
}


@pytest.mark.usefixtures("collector_off")
@pytest.mark.parametrize("is_reset", [False, True])
@pytest.mark.parametrize("sent", SENT.values(), ids=SENT)
async def test_a_connection_that_has_ended_holds_no_memory(
    served: RunningService, monkeypatch: pytest.MonkeyPatch, sent: bytes, is_reset: bool
):
    """A stranger can open thousands a second, and the next collection may be minutes away."""
    monkeypatch.setattr(server, "LINGER_S", 0.01)
    await served.client.get("/healthz")

    def count_held() -> int:
        return sum(isinstance(one, Gate) for one in gc.get_objects())

    before = count_held()
    for _ in range(3):
        async with open_raw_connection(served.base_url) as (_, writer):
            if is_reset:
                writer.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
            with suppress(ConnectionError):
                writer.write(sent)
            # The next response shows that the server has read it.
            await served.client.get("/healthz")
    async with asyncio.timeout(WITHIN_S):
        while count_held() > before:
            await served.client.get("/healthz")


async def test_a_body_full_of_ends_of_heads_is_parsed_in_few_steps(
    served: RunningService, monkeypatch: pytest.MonkeyPatch
):
    """At each of them it took five times as long."""
    steps = list[int]()

    class Counting(server.HttpToolsProtocol):
        def data_received(self, data: bytes) -> None:
            steps.append(len(data))
            super().data_received(data)

    monkeypatch.setattr(server, "HttpToolsProtocol", Counting)
    body = b"\r\n\r\n" * (MAX_BODY_BYTES // 4)
    sent = POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    assert b'"code":-32700' in await exchange_bytes(served.base_url, sent)
    assert (sum(steps), len(steps) < 1200) == (len(sent), True)


async def test_above_the_limit_the_longest_exchange_is_aborted(served: RunningService):
    async with (
        serve_app(lambda _: served.app, max_connections=3) as address,
        AsyncExitStack() as opened,
    ):
        held = []
        for _ in range(3):
            held.append(await opened.enter_async_context(open_raw_connection(address)))
            assert (await served.client.get("/api/v1")).status_code == 200
        # The request of the first connection makes its exchange the youngest.
        held[0][1].write(GET + b"\r\n")
        await held[0][0].readuntil(b"\r\n\r\n")
        held.append(await opened.enter_async_context(open_raw_connection(address)))
        assert await read_until_closed(held[1][0]) == b""
        assert await asks_on(held[3]) == [200]
        assert await asks_on(held[2]) == [200]
        assert await asks_on(held[0]) == [200]


@pytest.mark.parametrize(
    ("files", "idle"),
    [(256, 300), pytest.param(1024, 1000, marks=pytest.mark.prove)],
)
@pytest.mark.prove
def test_others_are_served_while_idle_clients_fill_the_process(
    tmp_path: Path, files: int, idle: int
):
    with serve_limited(tmp_path, files) as (process, port):
        asyncio.run(crowded(f"http://127.0.0.1:{port}", idle))
    assert "Traceback" not in "".join(process.printed)
    assert "resource" not in "".join(process.printed)


@contextmanager
def serve_limited(folder: Path, files: int) -> Iterator[tuple[RunningCommand, int]]:
    """Run a service that may open so many files, and yield it with its port."""
    port, bars = find_free_port(), write_bars(folder / "bars")
    limited = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *COMMAND, "serve"]
    env = build_environment(folder, port=port, source=f"files:{bars}")
    with RunningCommand.start(folder, *limited, env=env) as process:
        process.wait_for_line("Register with")
        process.wait_until_caught_up()
        yield process, int(port)
        assert process.stop() == 0


async def crowded(address: str, idle: int) -> None:
    """Keep many unfinished requests open, and send requests on new connections meanwhile."""
    begun = list(UNFINISHED.values())
    async with AsyncExitStack() as opened:
        for number in range(idle):
            _, writer = await opened.enter_async_context(open_raw_connection(address))
            writer.write(begun[number % len(begun)])
            if number % 50 == 0:
                assert parse_statuses(await exchange_bytes(address, LAST)) == [200]
        for _ in range(20):
            assert parse_statuses(await exchange_bytes(address, LAST)) == [200]
        async with httpx.AsyncClient(base_url=address) as client:
            ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            assert (await client.post("/api/v1/mcp", json=ping)).json()["result"] == {}


async def test_a_response_that_nobody_reads_counts_as_a_connection(served: RunningService):
    with open_loopback_socket() as bound, ExitStack() as opened:
        # Small buffers keep the end of a response within the service.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        async with run_app(served.app, bound, max_connections=3):
            clients = []
            for _ in range(6):
                client = opened.enter_context(socket.socket())
                client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                client.setblocking(False)
                await asyncio.get_running_loop().sock_connect(client, bound.getsockname())
                client.send(GET + b"Connection: close\r\n\r\n")
                assert (await served.client.get("/api/v1")).status_code == 200
                clients.append(client)
            received = [await receive_all(client) for client in clients]
    is_complete = [parse_statuses(part) == [200] and part.endswith(b"}") for part in received]
    assert is_complete == [False] * 3 + [True] * 3


async def receive_all(client: socket.socket) -> bytes:
    """Read until the service closes or aborts the connection."""
    received = bytearray()
    with suppress(ConnectionError):
        async with asyncio.timeout(WITHIN_S):
            while part := await asyncio.get_running_loop().sock_recv(client, 65_536):
                received += part
    return bytes(received)


@pytest.mark.prove
async def test_requests_are_not_parsed_far_ahead_of_responses(served: RunningService):
    async with (
        serve_app(lambda _: served.app) as address,
        open_raw_connection(address) as (_, writer),
    ):
        writer.transport.pause_reading()
        # What is kept after a first response is no part of the measurement.
        tracemalloc.start()
        await served.client.get("/api/v1")
        try:
            before, _ = tracemalloc.get_traced_memory()
            writer.write(b"GET / HTTP/1.1\r\n\r\n" * 400_000)
            for _ in range(100):
                assert (await served.client.get("/api/v1")).status_code == 200
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        # What the client of this process still has to send is measured too.
        assert held - before - writer.transport.get_write_buffer_size() < 400_000
        writer.transport.abort()


@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
async def test_a_stalled_body_holds_little_memory(served: RunningService, is_chunked: bool):
    count, body = 60, b"x" * (MAX_BODY_BYTES - 1)
    framing = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % MAX_BODY_BYTES
    length = b"Content-Length: %d\r\n\r\n" % MAX_BODY_BYTES
    async with AsyncExitStack() as opened:
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(count):
                _, writer = await opened.enter_async_context(open_raw_connection(served.base_url))
                writer.write(POST + (framing if is_chunked else length) + body)
                await writer.drain()
            for _ in range(20):
                assert (await served.client.get("/api/v1")).status_code == 200
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    # The clients of this process are measured too.
    assert held - before < count * 140_000


@pytest.mark.clause("monitoring")
@pytest.mark.prove
@pytest.mark.parametrize("burst", [3000])
def test_a_burst_of_connections_leaves_files_to_the_stores_and_the_log(tmp_path: Path, burst: int):
    with serve_limited(tmp_path, 1024) as (process, port):
        files = f"/proc/{process.process.pid}/fd"
        idle_files = len(os.listdir(files))
        most = asyncio.run(open_burst(port, burst, files))
    assert most - idle_files <= 1024 - RESERVED_DESCRIPTORS
    assert len("".join(process.printed)) < 10_000


async def open_burst(port: int, burst: int, files: str) -> int:
    """Open many connections at once and send requests meanwhile; return the most open files."""
    most, api_key = 0, {"X-Api-Key": "ek_" + "A" * 43}
    with ExitStack() as opened:
        for number in range(burst):
            client = opened.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
            if number % 500 == 499:
                most = max(most, len(os.listdir(files)))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            for path, status in (("/healthz", 200), ("/readyz", 200), ("/api/v1/usage", 401)):
                answer = await client.get(path, headers=api_key, timeout=WITHIN_S)
                assert answer.status_code == status
                most = max(most, len(os.listdir(files)))
    return most
