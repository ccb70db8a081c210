"""Reads answers of a service that nobody has to trust: bounded in bytes, time and depth.

Besides this package, the other clients of `service` use it.
"""

import asyncio
import json
import zlib
from typing import Any

import httpx2

MAX_ANSWER_BYTES = 16_000_000
DEADLINE_S = 60.0
MAX_DEPTH = 64


async def fetch(
    client: httpx2.AsyncClient, method: str, url: str, deadline_s: float = DEADLINE_S, **sent: Any
) -> httpx2.Response:
    """Send a request and return its answer, whole and unpacked; `sent` is as for the client.

    An answer that is too large, too slow or not packed as asked for raises httpx2.HTTPError.
    """
    request = client.build_request(method, url, **sent)
    request.headers["Accept-Encoding"] = "gzip"
    try:
        async with asyncio.timeout(deadline_s):
            response = await client.send(request, stream=True)
            try:
                content = await _read(response)
            finally:
                await response.aclose()
    except TimeoutError:
        reason = f"no whole answer within {deadline_s:g} seconds"
        raise httpx2.ReadTimeout(reason, request=request) from None
    headers = [
        (name, value)
        for name, value in response.headers.multi_items()
        if name not in ("content-encoding", "content-length", "transfer-encoding")
    ]
    return httpx2.Response(response.status_code, headers=headers, content=content, request=request)


async def _read(response: httpx2.Response) -> bytes:
    """Return the unpacked body of a response."""
    packing = response.headers.get("content-encoding", "identity").strip().lower()
    if packing not in ("identity", "gzip", ""):
        raise httpx2.DecodingError("the answer has a Content-Encoding that was not asked for")
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16) if packing == "gzip" else None
    body = bytearray()
    async for chunk in response.aiter_raw():
        left = MAX_ANSWER_BYTES + 1 - len(body)
        try:
            body += chunk if unpacker is None else unpacker.decompress(chunk, left)
        except zlib.error:
            raise httpx2.DecodingError("the answer is no gzip") from None
        if len(body) > MAX_ANSWER_BYTES:
            raise httpx2.ReadError(f"the answer exceeds {MAX_ANSWER_BYTES // 1_000_000} MB")
    return bytes(body)


def parse_object(content: bytes) -> dict[str, Any] | None:
    """Return the JSON object in the body of an answer, None if there is none.

    One that is nested too deeply, or has text that is not Unicode, counts as none.
    """
    try:
        body = json.loads(content.decode())
        # An escape such as \ud800 can be half a character, which cannot be encoded or printed.
        if b"\\ud" in content.lower():
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    level = [body]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for one in level
            if isinstance(one, (dict, list))
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return body if isinstance(body, dict) else None
    return None
