"""Parses query strings strictly: repeated parameters and broken escapes are errors."""

import re
from typing import Any
from urllib.parse import unquote_to_bytes

from pydantic import BaseModel

from schemas.errors import invalid_parameter_error
from serving.arguments import get_argument_schemas, quote_value

BAD_PERCENT_PATTERN = re.compile(r"%(?![0-9A-Fa-f]{2})")
# Bounded: int() of a huge text is slow, and no argument has such a range. ASCII digits only, since
# int() also accepts those of other scripts.
INTEGER_PATTERN = re.compile(r"-?[0-9]{1,40}")


def parse_query_string(
    query_string: bytes, query: type[BaseModel], *, ignore_unknown: bool = False
) -> dict[str, Any]:
    """Return the arguments of a query string; values of integer arguments become int if possible.

    ApiError if a parameter is repeated or badly escaped. `parse_arguments` validates the values,
    with the same messages on both transports. `ignore_unknown` skips unknown names.
    """
    schemas = get_argument_schemas(query)
    raw: dict[str, Any] = {}
    for part in query_string.split(b"&"):
        name, _, value = part.partition(b"=")
        if part and not (ignore_unknown and name.decode("latin-1") not in schemas):
            key = _decode(name)
            if key in raw:
                raise invalid_parameter_error(f"{quote_value(key)} is repeated; send it once.")
            is_integer = schemas.get(key, {}).get("type") == "integer"
            raw[key] = _parse_integer(_decode(value)) if is_integer else _decode(value)
    return raw


def _parse_integer(text: str) -> int | str:
    return int(text) if INTEGER_PATTERN.fullmatch(text) else text


def _decode(part: bytes) -> str:
    try:
        text = part.decode("ascii").replace("+", " ")
        if BAD_PERCENT_PATTERN.search(text):
            raise ValueError("a percent sign without two hexadecimal digits")
        return unquote_to_bytes(text).decode("utf-8")
    except ValueError:
        quoted = quote_value(part.decode("utf-8", "replace"))
        raise invalid_parameter_error(
            f"{quoted} is not percent-encoded UTF-8; encode special characters, a percent sign "
            "as %25."
        ) from None
