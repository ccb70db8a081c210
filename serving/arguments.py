"""Validation of arguments, the same for both transports: one error names everything wrong."""

import difflib
import reprlib
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import takewhile
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from schemas.errors import ApiError, invalid_parameter_error
from schemas.vocabulary import fold_name
from serving.json_schema import Schema, build_input_schema

MAX_QUOTED_CHARS = 60
MAX_LISTED_ITEMS = 5
DEXTER_HINT = "dexter is the former name of enzo and is no longer updated; use enzo"

QueryT = TypeVar("QueryT", bound=BaseModel)

_short_repr = reprlib.Repr()
_short_repr.maxstring = _short_repr.maxother = _short_repr.maxlong = MAX_QUOTED_CHARS
_short_repr.maxlevel = 2


def quote_value(value: Any) -> str:
    """Quote what was given on one line of at most 60 characters."""
    text = " ".join(_short_repr.repr(value).split())
    return text if len(text) <= MAX_QUOTED_CHARS else text[: MAX_QUOTED_CHARS - 3] + "..."


def find_nearest(text: str, candidates: Mapping[str, str]) -> str | None:
    """Return the name whose folded spelling (the mapping's key) is closest, None if none is."""
    target = fold_name(text[:MAX_QUOTED_CHARS])
    matches = difflib.get_close_matches(target, candidates, 5, 0.6)

    def measure_similarity(name: str) -> tuple[float, int]:
        ratio = difflib.SequenceMatcher(None, name, target).ratio()
        common_prefix = takewhile(lambda pair: pair[0] == pair[1], zip(name, target, strict=False))
        return ratio, len(list(common_prefix))

    return candidates[max(matches, key=measure_similarity)] if matches else None


def format_suggestion(text: str, names: Iterable[str]) -> str:
    """Return ` (did you mean X?)` for the nearest name, nothing where none is near."""
    match = find_nearest(text, {fold_name(name): name for name in names})
    return f" (did you mean {match}?)" if match else ""


@cache
def get_argument_schemas(query: type[BaseModel]) -> dict[str, Schema]:
    """Return the schema of each argument that a query takes."""
    properties: dict[str, Schema] = build_input_schema(query)["properties"]
    return properties


def parse_arguments(query: type[QueryT], raw: Mapping[str, Any]) -> QueryT:
    """Return the query that raw arguments make; one ApiError naming each bad argument."""
    schemas = get_argument_schemas(query)
    problems = {
        name: problem
        for name in schemas
        if (problem := _find_blank_problem(name, schemas[name], raw))
    }
    cleaned = {
        name: _to_integer(raw[name]) for name in schemas if name in raw and name not in problems
    }
    parsed: QueryT | None = None
    try:
        parsed = query.model_validate(cleaned)
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_context=False, include_input=False):
            name = str(detail["loc"][0])
            problems[name] = describe_rejected_value(name, schemas[name], raw[name])
    unknown = [name for name in raw if name not in schemas]
    if parsed is None or problems or unknown:
        raise _argument_error(problems, unknown, raw, schemas)
    return parsed


def unknown_indicator_error(text: str, names: Iterable[str]) -> ApiError:
    """Return the refusal of an indicator that does not exist, `dexter` pointing to enzo."""
    names = list(names)
    message = f"indicator: {quote_value(text)} is not an indicator; accepted: {', '.join(names)}"
    if fold_name(text[:MAX_QUOTED_CHARS]) == "dexter":
        return ApiError("unknown_indicator", f"{message}. {DEXTER_HINT}.", 400)
    return ApiError("unknown_indicator", f"{message}{format_suggestion(text, names)}.", 400)


def _find_blank_problem(name: str, schema: Schema, raw: Mapping[str, Any]) -> str | None:
    """Return what is wrong with an argument that pydantic would let pass or explain badly."""
    if name not in raw:
        return None
    value = raw[name]
    if value is None:
        problem = "null is not accepted, leave it out"
    elif isinstance(value, str) and not value.strip():
        problem = "is empty, leave it out or give a value"
    else:
        return None
    return f"{name}: {problem}; accepted: {describe_accepted_values(schema)}"


def _to_integer(value: Any) -> Any:
    """Turn 50.0 into 50: JSON Schema calls both an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def describe_rejected_value(name: str, schema: Schema, value: Any) -> str:
    """Say that a value is not accepted, and what is."""
    hint = format_suggestion(value, schema.get("enum", ())) if isinstance(value, str) else ""
    accepted = describe_accepted_values(schema)
    return f"{name}: {quote_value(value)} is not accepted{hint}; accepted: {accepted}"


def describe_accepted_values(schema: Schema) -> str:
    """Say what an argument's schema accepts."""
    if "enum" in schema:
        return ", ".join(schema["enum"])
    if schema["type"] == "integer":
        top = f" to {schema['maximum']}" if "maximum" in schema else ""
        return f"an integer from {schema['minimum']}{top}"
    return f"text ({schema['description']})"


def _argument_error(
    problems: Mapping[str, str],
    unknown: list[str],
    raw: Mapping[str, Any],
    schemas: Mapping[str, Schema],
) -> ApiError:
    indicator = raw.get("indicator")
    only_indicator = list(problems) == ["indicator"] and not unknown
    if only_indicator and isinstance(indicator, str) and indicator.strip():
        return unknown_indicator_error(indicator, schemas["indicator"]["enum"])
    return invalid_parameter_error(
        ". ".join([*problems.values(), *describe_unknown_names(unknown, schemas, "argument")]) + "."
    )


def describe_unknown_names(names: list[str], schemas: Mapping[str, Schema], kind: str) -> list[str]:
    """Say which names are unknown, with the nearest known ones; nothing where none is."""
    if not names:
        return []
    parts = [
        f"{quote_value(name)}{format_suggestion(name, schemas)}"
        for name in names[:MAX_LISTED_ITEMS]
    ]
    more = f" and {len(names) - MAX_LISTED_ITEMS} more" if len(names) > MAX_LISTED_ITEMS else ""
    accepted_text = f"accepted: {', '.join(schemas)}" if schemas else "this call takes no arguments"
    return [f"unknown {kind} {', '.join(parts)}{more}; {accepted_text}"]
