"""Responses as bytes: rendered once, cached while they are valid, in each form that is needed."""

import gzip
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

from serving.json_text import to_json

MAX_CACHE_BYTES = 24_000_000
# A response is held as it is, twice in a tool result, and compressed.
COPIES_PER_RESPONSE = 4


class ResponseBody:
    """One response as JSON text in UTF-8; its other forms are built on first use."""

    def __init__(self, text: bytes) -> None:
        self.text = text

    @cached_property
    def result_members(self) -> bytes:
        """The members of a tool result except `_meta`: the response twice, as hosts pass on one."""
        return _build_result_members(to_json(self.text.decode())[1:-1].encode(), self.text)

    @cached_property
    def error_members(self) -> bytes:
        """The same for an Error object, which only the text holds."""
        text = to_json(self.text.decode()).encode()
        return b'"content":[{"type":"text","text":%b}],"isError":true' % text

    @cached_property
    def etag(self) -> bytes:
        """The tag of this text, the same on every machine; weak, as compressing keeps it."""
        return b'W/"%b"' % blake2b(self.text, digest_size=12).hexdigest().encode()

    @cached_property
    def gzip_bytes(self) -> bytes:
        """The text as gzip."""
        return gzip.compress(self.text, compresslevel=6, mtime=0)


class QuotaTemplate:
    """A response that differs between calls only in its quota."""

    def __init__(self, text: bytes) -> None:
        """`text` has null for the quota; within JSON text no value can look like that."""
        self._parts = text.split(b'"quota":null')
        self._escaped_parts = [to_json(part.decode())[1:-1].encode() for part in self._parts]

    def render(self, quota_json: str) -> ResponseBody:
        """Return the response with a quota, which is JSON text without escapes."""
        member = b'"quota":' + quota_json.encode()
        response = ResponseBody(member.join(self._parts))
        escaped = member.replace(b'"', b'\\"').join(self._escaped_parts)
        response.result_members = _build_result_members(escaped, response.text)
        return response


def _build_result_members(escaped: bytes, text: bytes) -> bytes:
    """Return the members of a tool result except `_meta`, from a text and its escaped form."""
    content = b'"content":[{"type":"text","text":"%b"}]' % escaped
    return b'%b,"structuredContent":%b,"isError":false' % (content, text)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A response and when it is valid (epoch ms); without an end, forever."""

    response: ResponseBody
    valid_from: int
    valid_until: int | None

    def is_valid_at(self, now: int) -> bool:
        """Tell whether the response is valid at a time."""
        return self.valid_from <= now and (self.valid_until is None or now < self.valid_until)


class ResponseCache:
    """The responses that depend on one snapshot; the oldest entries make room for new ones."""

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._entries: dict[str, CacheEntry] = {}

    def get(self, key: str, now: int) -> ResponseBody | None:
        """Return the response of a key if it is valid at a time (epoch ms), else None."""
        entry = self._entries.get(key)
        return entry.response if entry is not None and entry.is_valid_at(now) else None

    def put(self, key: str, entry: CacheEntry) -> None:
        """Store an entry, replacing the one of the same key."""
        self._evict(key)
        self._entries[key] = entry
        self._size_bytes += COPIES_PER_RESPONSE * len(entry.response.text)
        while self._size_bytes > self._max_bytes:
            self._evict(next(iter(self._entries)))

    def _evict(self, key: str) -> None:
        evicted = self._entries.pop(key, None)
        if evicted is not None:
            self._size_bytes -= COPIES_PER_RESPONSE * len(evicted.response.text)
