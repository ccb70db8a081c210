"""Answers as bytes: rendered once, kept while they are true, in each form that callers ask for."""

import gzip
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

from serving.json_text import to_json

MAX_CACHE_BYTES = 24_000_000
# An answer is held as it is, in a tool result twice, and compressed.
COPIES_PER_RESPONSE = 4


class ResponseBody:
    """One answer as JSON text in UTF-8; its other forms are made when they are first asked for."""

    def __init__(self, text: bytes) -> None:
        self.text = text

    @cached_property
    def result_members(self) -> bytes:
        """The members of a tool result but `_meta`: the answer twice, for hosts pass on one."""
        return _build_result_members(to_json(self.text.decode())[1:-1].encode(), self.text)

    @cached_property
    def error_members(self) -> bytes:
        """The same of an Error object, which stands in the text alone."""
        text = to_json(self.text.decode()).encode()
        return b'"content":[{"type":"text","text":%b}],"isError":true' % text

    @cached_property
    def etag(self) -> bytes:
        """The tag of this text, the same on every machine; weak, for it stays when compressed."""
        return b'W/"%b"' % blake2b(self.text, digest_size=12).hexdigest().encode()

    @cached_property
    def gzip_bytes(self) -> bytes:
        """The text as gzip."""
        return gzip.compress(self.text, compresslevel=6, mtime=0)


class QuotaTemplate:
    """An answer that is the same for many calls but for the quota in it."""

    def __init__(self, text: bytes) -> None:
        """`text` has null for the quota; within JSON text no value can look like that."""
        self._parts = text.split(b'"quota":null')
        self._escaped_parts = [to_json(part.decode())[1:-1].encode() for part in self._parts]

    def render(self, quota_json: str) -> ResponseBody:
        """Return the answer with a quota, which is JSON text without escapes."""
        member = b'"quota":' + quota_json.encode()
        response = ResponseBody(member.join(self._parts))
        escaped = member.replace(b'"', b'\\"').join(self._escaped_parts)
        response.result_members = _build_result_members(escaped, response.text)
        return response


def _build_result_members(escaped: bytes, text: bytes) -> bytes:
    """Return the members of a tool result but `_meta`, from a text and that text as a string."""
    content = b'"content":[{"type":"text","text":"%b"}]' % escaped
    return b'%b,"structuredContent":%b,"isError":false' % (content, text)


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """An answer and the times (epoch ms) in which it tells the truth; without an end ever after."""

    response: ResponseBody
    valid_from: int
    valid_until: int | None

    def is_valid_at(self, now: int) -> bool:
        """Tell whether the answer is true at a time."""
        return self.valid_from <= now and (self.valid_until is None or now < self.valid_until)


class ResponseCache:
    """The answers that rest on one board, as many as fit; the first kept makes room."""

    def __init__(self, max_bytes: int = MAX_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._entries: dict[str, CacheEntry] = {}

    def get(self, key: str, now: int) -> ResponseBody | None:
        """Return the answer of a place that is true at a time (epoch ms), None without one."""
        entry = self._entries.get(key)
        return entry.response if entry is not None and entry.is_valid_at(now) else None

    def put(self, key: str, entry: CacheEntry) -> None:
        """Keep an answer in the stead of the one that its place has."""
        self._evict(key)
        self._entries[key] = entry
        self._size_bytes += COPIES_PER_RESPONSE * len(entry.response.text)
        while self._size_bytes > self._max_bytes:
            self._evict(next(iter(self._entries)))

    def _evict(self, key: str) -> None:
        evicted = self._entries.pop(key, None)
        if evicted is not None:
            self._size_bytes -= COPIES_PER_RESPONSE * len(evicted.response.text)
