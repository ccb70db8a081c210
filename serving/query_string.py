"""Parses query strings strictly: repeated parameters and broken escapes are errors."""

import re
from typing import Any
from urllib.parse import unquote_to_bytes

from pydantic import BaseModel

from serving.arguments import Rejected, get_argument_schemas

BAD_PERCENT_PATTERN = re.compile(r"%(?![0-9A-Fa-f]{2})")
REPEATED = Rejected("is repeated; send it once")
BADLY_ESCAPED = Rejected(
    "is not percent-encoded UTF-8; encode special characters, a percent sign as %25"
)


def parse_query_string(
    query_string: bytes, query: type[BaseModel], *, ignore_unknown: bool = False
) -> dict[str, Any]:
    """Return the arguments of a query string as text.

    The value of a repeated or badly escaped parameter is `Rejected`. `parse_arguments` validates
    the values, with the same messages on both transports. `ignore_unknown` skips unknown names.
    """
    schemas = get_argument_schemas(query)
    raw: dict[str, Any] = {}
    for part in query_string.split(b"&"):
        name, _, value = part.partition(b"=")
        if part and not (ignore_unknown and name.decode("latin-1") not in schemas):
            key = _decode(name) or name.decode("utf-8", "replace")
            raw[key] = REPEATED if key in raw else _parse_value(value)
    return raw


def _parse_value(value: bytes) -> str | Rejected:
    text = _decode(value)
    return BADLY_ESCAPED if text is None else text


def _decode(part: bytes) -> str | None:
    """Return a part unescaped, None if it is not percent-encoded UTF-8."""
    try:
        text = part.decode("ascii").replace("+", " ")
        if "%" not in text:
            return text
        return None if BAD_PERCENT_PATTERN.search(text) else unquote_to_bytes(text).decode("utf-8")
    except ValueError:
        return None
