"""Reads the log and the feed of a service over HTTP, as a customer's program would.

The key is sent only to the service's own address and only to calls that need it.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx2

from verifier.bounded_answers import fetch, parse_object
from verifier.errors import LogUnavailableError, MissingError, VerifyError, format_one_line
from verifier.notes import NoteError, decode_base64
from verifier.tiles import TILE_WIDTH, Hashes, format_tile_path, split_tile
from verifier.times import parse_served_time
from verifier.tree import HASH_BYTES

API_PATH = "/api/v1"
LOG_PATH = API_PATH + "/log"
TIMEOUT = httpx2.Timeout(60.0, connect=10.0)
PARALLEL_TILES = 8
PAGE_ROWS = 200
MAX_LEAVES = 1000

Json = dict[str, Any]
OnCall = Callable[[], None]


@dataclass(frozen=True)
class Leaf:
    """A leaf of the log as the service lists it; its time and salt are checked by its hash."""

    index: int
    created_at: str
    salt: bytes


class ServiceClient:
    """Reads one service; every failure is a VerifyError. `calls` counts those with the key."""

    def __init__(self, address: str, api_key: str) -> None:
        self.address = address
        self.calls = 0
        self._api_key = api_key
        self._tile_slots = asyncio.Semaphore(PARALLEL_TILES)
        self._client = httpx2.AsyncClient(
            base_url=address,
            headers={"User-Agent": "signals-verify"},
            follow_redirects=False,
            timeout=TIMEOUT,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    async def read_checkpoint(self) -> str:
        """Return the signed checkpoint; LogUnavailableError if the service has none now."""
        return await self._read_text(f"{LOG_PATH}/checkpoint")

    async def read_key(self) -> str:
        """Return the verifier key that the service states for its log."""
        return (await self._read_text(f"{LOG_PATH}/key")).strip()

    async def fetch_tile(self, level: int, number: int, width: int) -> Hashes:
        """Return the first `width` hashes of a tile, unchecked."""
        async with self._tile_slots:
            try:
                content = await self._read_tile(level, number, width)
            except MissingError:
                # A log may drop a partial tile once it has the whole one.
                content = await self._read_tile(level, number, TILE_WIDTH)
        hashes = split_tile(content)
        if len(hashes) < width or len(content) % HASH_BYTES:
            path = format_tile_path(level, number, width)
            raise self._build_error(f"{self.address} sent {len(content)} bytes as {path}")
        return hashes[:width]

    async def read_leaves(self, start: int, count: int) -> list[Leaf]:
        """Return `count` leaves from an index on, at most 1000."""
        body = await self._read_json(f"{LOG_PATH}/leaves", start=start, limit=count)
        try:
            leaves = [_parse_leaf(one) for one in body["leaves"]]
        except (KeyError, TypeError, ValueError, NoteError) as error:
            raise self._build_error(f"{self.address} sent malformed leaves ({error!r})") from None
        if [leaf.index for leaf in leaves] != list(range(start, start + count)):
            raise self._build_error(
                f"{self.address} did not list the leaves {start} to {start + count - 1}"
            )
        return leaves

    async def read_rows(self, **arguments: object) -> tuple[list[Json], Json]:
        """Return a page of the feed of both tiers, and its `meta`."""
        body = await self._read_json(
            f"{API_PATH}/signals", tier="all", **{"limit": PAGE_ROWS, **arguments}
        )
        rows, meta = body.get("signals"), body.get("meta")
        if not isinstance(rows, list) or not isinstance(meta, dict):
            raise self._build_error(f"{self.address} sent a page of the feed without rows or meta")
        if not all(isinstance(row, dict) for row in rows):
            raise self._build_error(f"{self.address} sent a row that is no object")
        return rows, meta

    async def _read_text(self, path: str) -> str:
        response = await self._get(path, {}, {})
        if response.status_code == 503:
            raise LogUnavailableError(
                format_one_line(_describe_refusal(self.address, path, response))
            )
        return self._decode(path, self._require_success(path, response))

    async def _read_tile(self, level: int, number: int, width: int) -> bytes:
        path = f"{LOG_PATH}/{format_tile_path(level, number, width)}"
        return self._require_success(path, await self._get(path, {}, {}))

    async def _read_json(self, path: str, **arguments: object) -> Json:
        if not self._api_key:
            raise VerifyError("SIGNALS_API_KEY is not set: set it to your API key")
        self.calls += 1
        headers = {"Authorization": f"Bearer {self._api_key}", "Accept": "application/json"}
        content = self._require_success(path, await self._get(path, arguments, headers))
        body = parse_object(content)
        if body is None:
            raise self._build_error(f"{self.address} answered {path} without a JSON object")
        return body

    async def _get(
        self, path: str, arguments: Mapping[str, object], headers: Mapping[str, str]
    ) -> httpx2.Response:
        try:
            return await fetch(
                self._client, "GET", path, params=dict(arguments), headers=dict(headers)
            )
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            reason = f"{type(error).__name__} {error}".strip()
            raise self._build_error(f"{self.address} did not answer {path}: {reason}") from None

    def _require_success(self, path: str, response: httpx2.Response) -> bytes:
        if response.status_code == 200:
            return response.content
        text = format_one_line(_describe_refusal(self.address, path, response), self._api_key)
        raise MissingError(text) if response.status_code == 404 else VerifyError(text)

    def _decode(self, path: str, content: bytes) -> str:
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise self._build_error(f"{self.address} answered {path} without text") from None

    def _build_error(self, text: str) -> VerifyError:
        return VerifyError(format_one_line(text, self._api_key))


def _parse_leaf(leaf: Json) -> Leaf:
    parse_served_time(leaf["created_at"])
    if type(leaf["index"]) is not int:
        raise ValueError("the index of a leaf is not an integer")
    return Leaf(leaf["index"], leaf["created_at"], decode_base64(leaf["salt"]))


def _describe_refusal(address: str, path: str, response: httpx2.Response) -> str:
    """Return status, code and message of an error, and when to try again."""
    error = parse_object(response.content) or {}
    code, message = error.get("error", "no error code"), error.get("message", "no message")
    text = f"{address} refused {path} with {response.status_code} ({code})"
    if "retry-after" in response.headers:
        text += f"; retry after {response.headers['retry-after']} seconds"
    if response.status_code in (401, 403):
        text += "; check the key in SIGNALS_API_KEY"
    return f"{text}: {message}"
