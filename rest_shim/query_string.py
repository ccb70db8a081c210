"""Query strings read strictly: nothing is guessed, repeated or dropped in silence."""

import re
from typing import Any
from urllib.parse import unquote_to_bytes

from pydantic import BaseModel

from schemas.errors import invalid_parameter
from serving.arguments import accepted, shown

BAD_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")
INTEGER = re.compile(r"-?[0-9]{1,40}")


def raw_arguments(
    query_string: bytes, query: type[BaseModel], *, only_known: bool = False
) -> dict[str, Any]:
    """Return the arguments of a query string, those that look like integers as such.

    ApiError where a parameter is repeated or its escapes are broken; all else is left to
    `validated`, whose messages both faces share. `only_known` passes over what the query lacks.
    """
    schemas = accepted(query)
    raw: dict[str, Any] = {}
    for part in query_string.split(b"&"):
        name, _, value = part.partition(b"=")
        if part and not (only_known and name.decode("latin-1") not in schemas):
            key = _decoded(name)
            if key in raw:
                raise invalid_parameter(f"{shown(key)}: is repeated; give it once.")
            is_integer = schemas.get(key, {}).get("type") == "integer"
            raw[key] = _integer(_decoded(value)) if is_integer else _decoded(value)
    return raw


def _integer(text: str) -> int | str:
    return int(text) if INTEGER.fullmatch(text) else text


def _decoded(part: bytes) -> str:
    try:
        text = part.decode("ascii").replace("+", " ")
        if BAD_PERCENT.search(text):
            raise ValueError("a percent sign without two hexadecimal digits")
        return unquote_to_bytes(text).decode("utf-8")
    except ValueError:
        given = shown(part.decode("utf-8", "replace"))
        raise invalid_parameter(
            f"{given}: the query string is not percent-encoded UTF-8; encode it, a percent sign "
            "itself as %25."
        ) from None
