"""Writes JSON for both transports: minified, in UTF-8."""

import json
import re
from typing import Any

MAX_VALUES, MAX_LEVELS = 2_000, 16
JSON_EXCESS = f"more than {MAX_VALUES:,} values or {MAX_LEVELS} levels"
# No byte is looked at twice, whatever the text: the loops never give back what they took, and the
# end of the text closes a string too.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.?[^"\\]*+)*+(?:"|\Z)', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def to_json(value: Any) -> str:
    """Return minified JSON text."""
    return _encode(value)


def to_utf8(text: str) -> bytes:
    """Encode JSON text as UTF-8."""
    # A lone surrogate, as in a request id, has no UTF-8 form. Python's backslash escape of it,
    # \udXXX, is also its JSON escape.
    return text.encode("utf-8", "backslashreplace")


def has_json_excess(body: bytes) -> bool:
    """Return true if a JSON text has more than 2,000 values or 16 levels; it may be invalid.

    An object or array of 60 KB takes milliseconds and megabytes to parse, this count far less.
    """
    # Text within strings only adds to these counts.
    opened = body.count(b"[") + body.count(b"{")
    if opened <= MAX_LEVELS and 1 + opened + body.count(b",") <= MAX_VALUES:
        return False
    structure = _STRING.sub(b"", body).translate(None, b" \t\r\n")
    opened = structure.count(b"[") + structure.count(b"{")
    empty = structure.count(b"[]") + structure.count(b"{}")
    if 1 + structure.count(b",") + opened - empty > MAX_VALUES:
        return True
    level = 0
    for bracket in structure.translate(None, _NO_BRACKETS):
        level += 1 if bracket in b"[{" else -1
        if level > MAX_LEVELS or level < 0:
            break
    return level > MAX_LEVELS
