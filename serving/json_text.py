"""Writes JSON for both transports: minified, in UTF-8."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def to_json(value: Any) -> str:
    """Return minified JSON text."""
    return _encode(value)


def to_utf8(text: str) -> bytes:
    """Encode JSON text as UTF-8."""
    # A lone surrogate, as in a request id, has no UTF-8 form. Python's backslash escape of it,
    # \udXXX, is also its JSON escape.
    return text.encode("utf-8", "backslashreplace")


class JsonText(NamedTuple):
    """Minified JSON in UTF-8; `escaped` is the same as it is written within a JSON string."""

    plain: bytes
    escaped: bytes

    @classmethod
    def escape(cls, plain: bytes) -> Self:
        """Return the text in both forms."""
        # Minified JSON has no control characters, so nothing else needs an escape.
        return cls(plain, plain.replace(b"\\", b"\\\\").replace(b'"', b'\\"'))

    def fill(self, *values: Self) -> Self:
        """Return the text with each `%b` replaced by a value."""
        plain, escaped = zip(*values, strict=True)
        return type(self)(self.plain % plain, self.escaped % escaped)


def join_with_commas(texts: Sequence[JsonText]) -> JsonText:
    """Return the items of a JSON array, without its brackets."""
    return JsonText(
        b",".join([text.plain for text in texts]), b",".join([text.escaped for text in texts])
    )
