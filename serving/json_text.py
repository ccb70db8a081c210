"""JSON as both transports write it: minified, in UTF-8."""

import json
from typing import Any

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def to_json(value: Any) -> str:
    """Return minified JSON text."""
    return _encode(value)


def to_utf8(text: str) -> bytes:
    """Encode JSON text; a lone surrogate becomes its JSON escape."""
    return text.encode("utf-8", "backslashreplace")
