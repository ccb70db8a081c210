"""Answers as bytes: rendered once, kept while they are true, in each form that callers ask for."""

import gzip
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

from serving.json_text import to_json

MOST_KEPT_BYTES = 24_000_000
# An answer is held as it is, in a tool result twice, and compressed.
FORMS = 4


class Answer:
    """One answer as JSON text in UTF-8; its other forms are made when they are first asked for."""

    def __init__(self, text: bytes) -> None:
        self.text = text

    @cached_property
    def result(self) -> bytes:
        """The members of a tool result but `_meta`: the answer twice, for hosts pass on one."""
        return _result(to_json(self.text.decode())[1:-1].encode(), self.text)

    @cached_property
    def refusal(self) -> bytes:
        """The same of an Error object, which stands in the text alone."""
        text = to_json(self.text.decode()).encode()
        return b'"content":[{"type":"text","text":%b}],"isError":true' % text

    @cached_property
    def etag(self) -> bytes:
        """The tag of this text, the same on every machine; weak, for it stays when compressed."""
        return b'W/"%b"' % blake2b(self.text, digest_size=12).hexdigest().encode()

    @cached_property
    def gzipped(self) -> bytes:
        """The text as gzip."""
        return gzip.compress(self.text, compresslevel=6, mtime=0)


class QuotaTemplate:
    """An answer that is the same for many calls but for the quota in it."""

    def __init__(self, text: bytes) -> None:
        """`text` has null for the quota; within JSON text no value can look like that."""
        self._parts = text.split(b'"quota":null')
        self._written = [to_json(part.decode())[1:-1].encode() for part in self._parts]

    def answer(self, quota: str) -> Answer:
        """Return the answer with a quota, which is JSON text without escapes."""
        member = b'"quota":' + quota.encode()
        answer = Answer(member.join(self._parts))
        written = member.replace(b'"', b'\\"').join(self._written)
        answer.result = _result(written, answer.text)
        return answer


def _result(written: bytes, text: bytes) -> bytes:
    """Return the members of a tool result but `_meta`, from a text and that text as a string."""
    content = b'"content":[{"type":"text","text":"%b"}]' % written
    return b'%b,"structuredContent":%b,"isError":false' % (content, text)


@dataclass(frozen=True, slots=True)
class Rendered:
    """An answer and the times (epoch ms) in which it tells the truth; without an end ever after."""

    answer: Answer
    begins_at: int
    ends_at: int | None

    def holds_at(self, now: int) -> bool:
        """Tell whether the answer is true at a time."""
        return self.begins_at <= now and (self.ends_at is None or now < self.ends_at)


class KeptAnswers:
    """The answers that rest on one board, as many as fit; the first kept makes room."""

    def __init__(self, most_bytes: int = MOST_KEPT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: dict[str, Rendered] = {}

    def at(self, place: str, now: int) -> Answer | None:
        """Return the answer of a place that is true at a time (epoch ms), None without one."""
        rendered = self._kept.get(place)
        return rendered.answer if rendered is not None and rendered.holds_at(now) else None

    def keep(self, place: str, rendered: Rendered) -> None:
        """Keep an answer in the stead of the one that its place has."""
        self._drop(place)
        self._kept[place] = rendered
        self._bytes += FORMS * len(rendered.answer.text)
        while self._bytes > self._most_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, place: str) -> None:
        dropped = self._kept.pop(place, None)
        if dropped is not None:
            self._bytes -= FORMS * len(dropped.answer.text)
