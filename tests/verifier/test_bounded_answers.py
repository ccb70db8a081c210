"""An answer of a hostile service is cut off by size and by time, packed or not."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest

from verifier.bounded_answers import MAX_ANSWER_BYTES, fetch

pytestmark = pytest.mark.clause("verify")

HEAD = b"HTTP/1.1 200 OK\r\n"


@asynccontextmanager
async def answer_with(*parts: bytes, then_hangs: bool = False) -> AsyncIterator[str]:
    """Answer each request on loopback with these bytes, and then close, or send nothing more."""
    released = asyncio.Event()

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.writelines(parts)
        if then_hangs:
            await released.wait()
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        released.set()
        server.close()


async def get(address: str, deadline_s: float = 60) -> httpx2.Response:
    async with httpx2.AsyncClient() as client:
        return await fetch(client, "GET", address, deadline_s)


async def test_an_answer_is_read_whole_and_unpacked() -> None:
    async with answer_with(HEAD, b"Content-Length: 2\r\nX-A: 1\r\n\r\n{}") as address:
        plain = await get(address)
    packed = gzip.compress(b"[1]")
    head = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
    async with answer_with(HEAD, head, packed) as address:
        unpacked = await get(address)
    assert (plain.status_code, plain.headers["x-a"], plain.json()) == (200, "1", {})
    assert unpacked.json() == [1]


@pytest.mark.parametrize(
    ("head", "body", "reason"),
    [
        (b"\r\n", bytes(MAX_ANSWER_BYTES + 1), "exceeds 16 MB"),
        (b"Content-Encoding: gzip\r\n\r\n", gzip.compress(bytes(10 * MAX_ANSWER_BYTES)), "16 MB"),
        (b"Content-Encoding: gzip\r\n\r\n", b"not packed", "no gzip"),
        (b"Content-Encoding: br\r\n\r\n", b"{}", "was not asked for"),
    ],
    ids=["large", "packed", "damaged", "foreign"],
)
async def test_an_answer_that_is_too_large_or_badly_packed_is_refused(
    head: bytes, body: bytes, reason: str
) -> None:
    async with answer_with(HEAD, head, body) as address:
        with pytest.raises(httpx2.HTTPError, match=reason):
            await get(address)


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + b"Content-Length: 9\r\n\r\n{"])
async def test_an_answer_without_an_end_is_given_up(sent: bytes) -> None:
    async with answer_with(sent, then_hangs=True) as address:
        with pytest.raises(httpx2.ReadTimeout, match=r"no whole answer within 0\.05 seconds"):
            await get(address, 0.05)
