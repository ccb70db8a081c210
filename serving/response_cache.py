"""Responses as bytes, in the forms that the transports need, cached while they are valid."""

import gzip
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

from serving.json_text import escape_json

MAX_CACHE_BYTES = 24_000_000
# The size of a cached response is counted three times: its text, plain, escaped and compressed.
COPIES_PER_RESPONSE = 3
CONTENT_START = b'"content":[{"type":"text","text":"'


class ResponseBody:
    """A response as JSON text in UTF-8; its other forms are built on first use."""

    def __init__(self, text: bytes) -> None:
        self.text = text

    @cached_property
    def escaped(self) -> bytes:
        """The text as it is written within a JSON string."""
        return escape_json(self.text)

    @cached_property
    def etag(self) -> bytes:
        """The weak ETag of this text, the same on every machine and compressed."""
        return b'W/"%b"' % blake2b(self.text, digest_size=12).hexdigest().encode()

    @cached_property
    def gzip_bytes(self) -> bytes:
        """The text compressed with gzip."""
        return gzip.compress(self.text, 6, mtime=0)

    @property
    def result_members(self) -> tuple[bytes, ...]:
        """The members of a tool result except `_meta`, with the response as text and as object."""
        # Hosts pass only one of the two to the model, and they disagree on which. The parts are
        # not joined here, because copying an unfiltered state takes longer than all the rest.
        between, end = b'"}],"structuredContent":', b',"isError":false'
        return CONTENT_START, self.escaped, between, self.text, end

    @property
    def error_members(self) -> tuple[bytes, ...]:
        """The members of a tool result with isError for an Error object, as text only."""
        # structuredContent has to match the tool's output schema, which an error does not.
        return CONTENT_START, self.escaped, b'"}],"isError":true'


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A response and its time of validity in epoch ms; no `valid_until` means forever."""

    response: ResponseBody
    valid_from: int
    valid_until: int | None

    def is_valid_at(self, now: int) -> bool:
        """Return true if the response is valid at a time (epoch ms)."""
        # `valid_from` matters if the wall clock is set back.
        return self.valid_from <= now and (self.valid_until is None or now < self.valid_until)


class ResponseCache:
    """Cache of the responses to one snapshot, which evicts the oldest entries first."""

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._entries: dict[Hashable, CacheEntry] = {}

    def get(self, key: Hashable, now: int) -> ResponseBody | None:
        """Return the response stored under a key if it is valid at `now` (epoch ms), else None."""
        entry = self.find(key, now)
        return None if entry is None else entry.response

    def find(self, key: Hashable, now: int) -> CacheEntry | None:
        """Return the entry stored under a key if it is valid at `now` (epoch ms), else None."""
        entry = self._entries.get(key)
        return entry if entry is not None and entry.is_valid_at(now) else None

    def put(self, key: Hashable, entry: CacheEntry) -> None:
        """Store an entry, replacing one with the same key."""
        self._evict(key)
        self._entries[key] = entry
        self._size_bytes += COPIES_PER_RESPONSE * len(entry.response.text)
        while self._size_bytes > self._max_bytes:
            self._evict(next(iter(self._entries)))

    def _evict(self, key: Hashable) -> None:
        evicted = self._entries.pop(key, None)
        if evicted is not None:
            self._size_bytes -= COPIES_PER_RESPONSE * len(evicted.response.text)
