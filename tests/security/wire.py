"""Sends requests as raw bytes, which HTTP clients would refuse to send, and reads the response.

And stops the collection of garbage, to see what a request leaves behind.
"""

import asyncio
import gc
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import urlsplit

import pytest

WITHIN_S = 20
HOST = b"Host: localhost\r\n"
LAST = b"GET /api/v1/signals/sample HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n"
STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3}) ")

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
def collector_off() -> Iterator[None]:
    """Collect what there is, and nothing more until the end of the test."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@asynccontextmanager
async def open_raw_connection(base_url: str) -> AsyncIterator[Connection]:
    address = urlsplit(base_url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def read_until_closed(reader: asyncio.StreamReader) -> bytes:
    """Read until the server closes the connection."""
    received = bytearray()
    with suppress(ConnectionError):
        async with asyncio.timeout(WITHIN_S):
            while part := await reader.read(65_536):
                received += part
    return bytes(received)


async def exchange_bytes(base_url: str, sent: bytes) -> bytes:
    async with open_raw_connection(base_url) as (reader, writer):
        writer.write(sent)
        return await read_until_closed(reader)


def parse_statuses(received: bytes) -> list[int]:
    return [int(status) for status in STATUS.findall(received)]
