"""Reads the log of a service: its checkpoint, its key, its tiles and its leaves."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import takewhile

from verifier.client import API_PATH, Json, ServiceClient, ServiceError, parse_served_time
from verifier.notes import NoteError, decode_base64
from verifier.report import VerifyError
from verifier.tree import HASH_BYTES, TILE_WIDTH, Hashes, format_tile_path, split_tile

LOG_PATH = API_PATH + "/log"
PARALLEL_TILES = 8
MAX_LEAVES = 1000


@dataclass(frozen=True)
class Leaf:
    """A leaf of the log as the service lists it; its time and salt are checked by its hash."""

    index: int
    created_at: str
    salt: bytes


class LogReader:
    """Reads the log of one service, unchecked; every failure is a VerifyError."""

    def __init__(self, client: ServiceClient) -> None:
        self._client = client
        self._tile_slots = asyncio.Semaphore(PARALLEL_TILES)

    async def read_text(self, name: str) -> str:
        """Return the signed `checkpoint`, or the `key` that the service states for its log."""
        path = f"{LOG_PATH}/{name}"
        content = (await self._client.read(path, is_open=True)).content
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise self._build_error(f"answered {path} without text") from None

    async def fetch_tile(self, level: int, number: int, width: int) -> Hashes:
        """Return the first `width` hashes of a tile."""
        async with self._tile_slots:
            try:
                content = await self._read_tile(level, number, width)
            except ServiceError as error:
                # A log may drop a partial tile once it has the whole one.
                if error.status != 404:
                    raise
                content = await self._read_tile(level, number, TILE_WIDTH)
        hashes = split_tile(content)
        if len(hashes) < width or len(content) % HASH_BYTES:
            path = format_tile_path(level, number, width)
            raise self._build_error(f"sent {len(content)} bytes as {path}")
        return hashes[:width]

    async def _read_tile(self, level: int, number: int, width: int) -> bytes:
        path = f"{LOG_PATH}/{format_tile_path(level, number, width)}"
        return (await self._client.read(path, is_open=True)).content

    async def read_leaves(self, start: int, count: int) -> list[Leaf]:
        """Return `count` leaves from an index on, at most 1000."""
        answer = await self._client.read_view("log/leaves", {"start": start, "limit": count})
        try:
            leaves = [_parse_leaf(one) for one in answer.body["leaves"]]
        except (KeyError, TypeError, ValueError, NoteError) as error:
            raise self._build_error(f"sent malformed leaves ({error!r})") from None
        if [leaf.index for leaf in leaves] != list(range(start, start + count)):
            last = start + count - 1
            raise self._build_error(f"did not list the leaves {start} to {last}")
        return leaves

    def _build_error(self, text: str) -> VerifyError:
        return VerifyError(self._client.format_line(f"{self._client.address} {text}"))


def _parse_leaf(leaf: Json) -> Leaf:
    parse_served_time(leaf["created_at"])
    if type(leaf["index"]) is not int:
        raise ValueError("the index of a leaf is not an integer")
    return Leaf(leaf["index"], leaf["created_at"], decode_base64(leaf["salt"]))


class LeafSearch:
    """Finds leaves of a tree by the times of their rows, in pages that are read once."""

    def __init__(self, size: int, log: LogReader) -> None:
        self._size = size
        self._log = log
        self._page_count = -(-size // MAX_LEAVES)
        self._pages: dict[int, list[Leaf]] = {}

    async def find(self, created_at: str) -> Leaf | None:
        """Return the leaf of a time, None if there is none."""
        page = await self._read_page(await self._find_page(created_at))
        return next((leaf for leaf in page if leaf.created_at == created_at), None)

    async def iterate_after(self, created_at: str) -> AsyncIterator[Leaf]:
        """Yield the leaves after a time."""
        first = await self._find_page(created_at)
        for number in range(first, self._page_count):
            page = await self._read_page(number)
            # Later pages are whole, so that the leaves have no gap whatever times are stated.
            before = takewhile(lambda leaf: leaf.created_at <= created_at, page)
            for leaf in page[len(list(before)) if number == first else 0 :]:
                yield leaf

    async def _find_page(self, created_at: str) -> int:
        """Return the last page that begins at or before a time, 0 if none does."""
        low, high = 0, max(self._page_count, 1)
        while high - low > 1:
            middle = (low + high) // 2
            page = await self._read_page(middle)
            if page[0].created_at <= created_at:
                low = middle
            else:
                high = middle
        return low

    async def _read_page(self, number: int) -> list[Leaf]:
        if number not in self._pages:
            start = number * MAX_LEAVES
            count = min(MAX_LEAVES, self._size - start)
            self._pages[number] = await self._log.read_leaves(start, count) if count > 0 else []
        return self._pages[number]
