"""Responses as bytes, in the forms that the transports need, cached while they are valid."""

import gzip
import math
from collections import OrderedDict
from collections.abc import Hashable
from functools import cached_property
from hashlib import blake2b

MAX_CACHE_BYTES = 24_000_000
# A cached response is counted with its key, and three times: plain, escaped and compressed.
COPIES_PER_RESPONSE = 3


class ResponseBody:
    """A response as JSON text in UTF-8; its other forms are built on first use."""

    def __init__(self, text: bytes) -> None:
        self.text = text

    @cached_property
    def escaped(self) -> bytes:
        """The text as it is written within a JSON string."""
        # Minified JSON has no control characters, so nothing else needs an escape.
        return self.text.replace(b"\\", b"\\\\").replace(b'"', b'\\"')

    @cached_property
    def etag(self) -> bytes:
        """The weak ETag of this text, the same on every machine and compressed."""
        return b'W/"%b"' % blake2b(self.text, digest_size=12).hexdigest().encode()

    @cached_property
    def gzip_bytes(self) -> bytes:
        """The text compressed with gzip."""
        return gzip.compress(self.text, 6, mtime=0)


class ResponseCache:
    """The responses to one snapshot; those that were requested longest ago are evicted first.

    All expire at the same time, when the clock changes what their `meta` says.
    """

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._bodies: OrderedDict[Hashable, ResponseBody] = OrderedDict()
        self._valid_from, self._valid_until = 0, 0.0

    def get(self, key: Hashable, now: int) -> ResponseBody | None:
        """Return the response stored under a key if it is valid at `now` (epoch ms), else None."""
        body = self._bodies.get(key) if self._is_valid_at(now) else None
        if body is not None:
            self._bodies.move_to_end(key)
        return body

    def put(self, key: Hashable, body: ResponseBody, now: int, expires_at: int | None) -> None:
        """Store a response that was rendered at `now`, both times in epoch ms.

        `expires_at` is when responses of that time expire, None for never.
        """
        until = expires_at or math.inf
        if until == self._valid_until:
            # A response that took longer than the first one of this time to be rendered.
            self._valid_from = min(self._valid_from, now)
        elif not self._is_valid_at(now):
            self._bodies.clear()
            self._size_bytes = 0
            self._valid_from, self._valid_until = now, until
        if (replaced := self._bodies.pop(key, None)) is not None:
            self._size_bytes -= _measure(key, replaced)
        self._bodies[key] = body
        self._size_bytes += _measure(key, body)
        while self._size_bytes > self._max_bytes:
            self._size_bytes -= _measure(*self._bodies.popitem(last=False))

    def _is_valid_at(self, now: int) -> bool:
        # `_valid_from` matters if the wall clock is set back.
        return self._valid_from <= now < self._valid_until


def _measure(key: Hashable, body: ResponseBody) -> int:
    return len(repr(key)) + COPIES_PER_RESPONSE * len(body.text)
