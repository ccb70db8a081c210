"""Validation of arguments, the same for both faces: one refusal that names everything wrong."""

import difflib
import reprlib
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import takewhile
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from schemas.errors import ApiError, invalid_parameter
from schemas.vocabulary import folded
from serving.json_schema import Schema, input_schema

SHOWN_CHARACTERS = 60
SHOWN_ITEMS = 5
DEXTER_HINT = "dexter is the former name of enzo and is no longer updated; use enzo"

QueryT = TypeVar("QueryT", bound=BaseModel)

_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = _brief.maxlong = SHOWN_CHARACTERS
_brief.maxlevel = 2


def shown(value: Any) -> str:
    """Quote what was given on one line of at most 60 characters."""
    text = " ".join(_brief.repr(value).split())
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def nearest(given: str, candidates: Mapping[str, str]) -> str | None:
    """Return the name whose folded spelling (the mapping's key) is closest, None if none is."""
    wanted = folded(given[:SHOWN_CHARACTERS])
    close = difflib.get_close_matches(wanted, candidates, 5, 0.6)

    def nearness(name: str) -> tuple[float, int]:
        likeness = difflib.SequenceMatcher(None, name, wanted).ratio()
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(name, wanted, strict=False))
        return likeness, len(list(alike))

    return candidates[max(close, key=nearness)] if close else None


def suggestion(given: str, names: Iterable[str]) -> str:
    """Return ` (did you mean X?)` for the nearest name, nothing where none is near."""
    match = nearest(given, {folded(name): name for name in names})
    return f" (did you mean {match}?)" if match else ""


@cache
def accepted(query: type[BaseModel]) -> dict[str, Schema]:
    """Return the schema of each argument that a query takes."""
    properties: dict[str, Schema] = input_schema(query)["properties"]
    return properties


def validated(query: type[QueryT], raw: Mapping[str, Any]) -> QueryT:
    """Return the query that raw arguments make; one ApiError naming each bad argument."""
    schemas = accepted(query)
    problems = {name: problem for name in schemas if (problem := _early(name, schemas[name], raw))}
    known = {name: _whole(raw[name]) for name in schemas if name in raw and name not in problems}
    made: QueryT | None = None
    try:
        made = query.model_validate(known)
    except ValidationError as error:
        for bad in error.errors(include_url=False, include_context=False, include_input=False):
            name = str(bad["loc"][0])
            problems[name] = not_accepted(name, schemas[name], raw[name])
    unknown = [name for name in raw if name not in schemas]
    if made is None or problems or unknown:
        raise _refusal(problems, unknown, raw, schemas)
    return made


def unknown_indicator(given: str, names: Iterable[str]) -> ApiError:
    """Return the refusal of an indicator that does not exist, `dexter` pointing to enzo."""
    names = list(names)
    message = f"indicator: {shown(given)} is not an indicator; accepted: {', '.join(names)}"
    if folded(given[:SHOWN_CHARACTERS]) == "dexter":
        return ApiError("unknown_indicator", f"{message}. {DEXTER_HINT}.", 400)
    return ApiError("unknown_indicator", f"{message}{suggestion(given, names)}.", 400)


def _early(name: str, schema: Schema, raw: Mapping[str, Any]) -> str | None:
    """Return what is wrong with an argument that pydantic would let pass or explain badly."""
    if name not in raw:
        return None
    value = raw[name]
    if value is None:
        return f"{name}: null is not accepted, leave it out; accepted: {accepted_values(schema)}"
    if isinstance(value, str) and not value.strip():
        return (
            f"{name}: is empty, leave it out or give a value; accepted: {accepted_values(schema)}"
        )
    return None


def _whole(value: Any) -> Any:
    """Turn 50.0 into 50: JSON Schema calls both an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def not_accepted(name: str, schema: Schema, value: Any) -> str:
    """Say that a value is not accepted, and what is."""
    hint = suggestion(value, schema.get("enum", ())) if isinstance(value, str) else ""
    return f"{name}: {shown(value)} is not accepted{hint}; accepted: {accepted_values(schema)}"


def accepted_values(schema: Schema) -> str:
    """Say what an argument's schema accepts."""
    if "enum" in schema:
        return ", ".join(schema["enum"])
    if schema["type"] == "integer":
        top = f" to {schema['maximum']}" if "maximum" in schema else ""
        return f"an integer from {schema['minimum']}{top}"
    return f"text ({schema['description']})"


def _refusal(
    problems: Mapping[str, str],
    unknown: list[str],
    raw: Mapping[str, Any],
    schemas: Mapping[str, Schema],
) -> ApiError:
    given = raw.get("indicator")
    only_indicator = list(problems) == ["indicator"] and not unknown
    if only_indicator and isinstance(given, str) and given.strip():
        return unknown_indicator(given, schemas["indicator"]["enum"])
    return invalid_parameter(
        ". ".join([*problems.values(), *unknown_names(unknown, schemas, "argument")]) + "."
    )


def unknown_names(names: list[str], schemas: Mapping[str, Schema], what: str) -> list[str]:
    """Say which names are unknown, with the nearest known ones; nothing where none is."""
    if not names:
        return []
    parts = [f"{shown(name)}{suggestion(name, schemas)}" for name in names[:SHOWN_ITEMS]]
    more = f" and {len(names) - SHOWN_ITEMS} more" if len(names) > SHOWN_ITEMS else ""
    taken = f"accepted: {', '.join(schemas)}" if schemas else "this call takes no arguments"
    return [f"unknown {what} {', '.join(parts)}{more}; {taken}"]
