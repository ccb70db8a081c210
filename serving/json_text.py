"""Writes JSON for both transports: minified, in UTF-8."""

import json
from typing import Any

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def to_json(value: Any) -> str:
    """Return minified JSON text."""
    return _encode(value)


def to_utf8(text: str) -> bytes:
    """Encode JSON text as UTF-8."""
    # A lone surrogate, as in a request id, has no UTF-8 form. Python's backslash escape of it,
    # \udXXX, is also its JSON escape.
    return text.encode("utf-8", "backslashreplace")
