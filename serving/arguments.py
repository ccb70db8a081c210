"""Validates arguments, alike for both transports; one error names every bad argument."""

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
    """Return a value's repr on one line, shortened to 60 characters."""
    text = " ".join(_short_repr.repr(value).split())
    return text if len(text) <= MAX_QUOTED_CHARS else text[: MAX_QUOTED_CHARS - 3] + "..."


def find_nearest(text: str, candidates: Mapping[str, str]) -> str | None:
    """Return the candidate whose key is most similar to a text; None if none is similar.

    The keys are folded names, the values the names to suggest.
    """
    # difflib takes quadratic time, so an overlong text is cut.
    target = fold_name(text[:MAX_QUOTED_CHARS])
    matches = difflib.get_close_matches(target, candidates, 5, 0.6)

    # Of equally similar names, the one with the longer common prefix wins.
    def measure_similarity(name: str) -> tuple[float, int]:
        ratio = difflib.SequenceMatcher(None, name, target).ratio()
        common_prefix = takewhile(lambda pair: pair[0] == pair[1], zip(name, target, strict=False))
        return ratio, len(list(common_prefix))

    return candidates[max(matches, key=measure_similarity)] if matches else None


def format_suggestion(text: str, names: Iterable[str]) -> str:
    """Return ` (did you mean X?)` for the nearest name, or an empty string if none is near."""
    match = find_nearest(text, {fold_name(name): name for name in names})
    return f" (did you mean {match}?)" if match else ""


@cache
def get_argument_schemas(query: type[BaseModel]) -> dict[str, Schema]:
    """Return the JSON schema of each argument of a query, by name."""
    properties: dict[str, Schema] = build_input_schema(query)["properties"]
    return properties


def parse_arguments(query: type[QueryT], raw: Mapping[str, Any]) -> QueryT:
    """Build the query from raw arguments; raise one ApiError that names each bad argument."""
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
        # Only the location is used: pydantic's messages are written for programmers.
        for detail in error.errors(include_url=False, include_context=False, include_input=False):
            name = str(detail["loc"][0])
            problems[name] = describe_rejected_value(name, schemas[name], raw[name])
    unknown = [name for name in raw if name not in schemas]
    if parsed is None or problems or unknown:
        raise _argument_error(problems, unknown, raw, schemas)
    return parsed


def unknown_indicator_error(text: str, names: Iterable[str]) -> ApiError:
    """Return the error for an indicator that does not exist; for `dexter` it points to enzo."""
    names = list(names)
    message = f"indicator: {quote_value(text)} is not an indicator; accepted: {', '.join(names)}"
    if fold_name(text[:MAX_QUOTED_CHARS]) == "dexter":
        return ApiError("unknown_indicator", f"{message}. {DEXTER_HINT}.", 400)
    return ApiError("unknown_indicator", f"{message}{format_suggestion(text, names)}.", 400)


def _find_blank_problem(name: str, schema: Schema, raw: Mapping[str, Any]) -> str | None:
    """Return a message if an argument is null or blank, else None.

    pydantic would accept null for an optional argument, and blank text.
    """
    if name not in raw:
        return None
    value = raw[name]
    if value is None:
        problem = "null is not accepted, omit it"
    elif isinstance(value, str) and not value.strip():
        problem = "is empty, omit it or give a value"
    else:
        return None
    return f"{name}: {problem}; accepted: {describe_accepted_values(schema)}"


def _to_integer(value: Any) -> Any:
    """Convert 50.0 to 50, because JSON Schema accepts both as an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def describe_rejected_value(name: str, schema: Schema, value: Any) -> str:
    """Return a message that quotes a rejected value and lists the accepted ones."""
    hint = format_suggestion(value, schema.get("enum", ())) if isinstance(value, str) else ""
    accepted = describe_accepted_values(schema)
    return f"{name}: {quote_value(value)} is not accepted{hint}; accepted: {accepted}"


def describe_accepted_values(schema: Schema) -> str:
    """Describe the values that an argument's schema accepts."""
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
    # A response has one error code, so the specific one is used only if it is the sole problem.
    only_indicator = list(problems) == ["indicator"] and not unknown
    if only_indicator and isinstance(indicator, str) and indicator.strip():
        return unknown_indicator_error(indicator, schemas["indicator"]["enum"])
    return invalid_parameter_error(
        ". ".join([*problems.values(), *describe_unknown_names(unknown, schemas, "argument")]) + "."
    )


def describe_unknown_names(names: list[str], schemas: Mapping[str, Schema], kind: str) -> list[str]:
    """Return a message on unknown names with suggestions, or an empty list if `names` is empty."""
    if not names:
        return []
    parts = [
        f"{quote_value(name)}{format_suggestion(name, schemas)}"
        for name in names[:MAX_LISTED_ITEMS]
    ]
    more = f" and {len(names) - MAX_LISTED_ITEMS} more" if len(names) > MAX_LISTED_ITEMS else ""
    accepted_text = f"accepted: {', '.join(schemas)}" if schemas else "this call takes no arguments"
    return [f"unknown {kind} {', '.join(parts)}{more}; {accepted_text}"]
