"""Flattens a JSON Schema into table rows, one per field; nested fields follow their parent."""

from collections.abc import Iterator
from typing import NamedTuple

from pydantic import BaseModel

from serving.json_schema import Schema, build_output_schema


class FieldRow(NamedTuple):
    """One field; `[]` in its path stands for each item of a list, `*` for each key of an object."""

    path: str
    type: str
    accepted: str
    default: str
    is_required: bool
    description: str


class Shape(NamedTuple):
    """One of the forms that a response can take."""

    description: str
    rows: list[FieldRow]


def list_shapes(result: type[BaseModel]) -> list[Shape]:
    """Return the forms of a response, each with all its fields."""
    schema = build_output_schema(result)
    return [
        Shape(_find_description(form), list(walk_field_rows(form)))
        for form in _list_branches(schema)
    ]


def walk_field_rows(schema: Schema, prefix: str = "") -> Iterator[FieldRow]:
    """Yield a row for every field of an object schema, at any depth."""
    for name, part in schema.get("properties", {}).items():
        path = prefix + name
        is_required = name in schema.get("required", ())
        default = "" if part.get("default") is None else str(part["default"])
        yield FieldRow(
            path,
            _format_type(part),
            format_accepted(part),
            default,
            is_required,
            _find_description(part),
        )
        yield from _walk_nested_rows(part, path)


def _walk_nested_rows(part: Schema, path: str) -> Iterator[FieldRow]:
    for branch in _list_branches(part):
        yield from walk_field_rows(branch, f"{path}.")
        for key, step in (("items", "[]"), ("additionalProperties", ".*")):
            if isinstance(branch.get(key), dict):
                yield from _walk_nested_rows(branch[key], path + step)


def _list_branches(part: Schema) -> list[Schema]:
    """Return the alternatives of a schema; the schema itself if it has none."""
    branches: list[Schema] = part.get("anyOf") or part.get("oneOf") or [part]
    return branches


def _find_description(part: Schema) -> str:
    """Return a schema's description, else that of its object or of its list items."""
    objects = [
        each for branch in _list_branches(part) for each in (branch, branch.get("items", {}))
    ]
    descriptions = [one["description"] for one in (part, *objects) if "description" in one]
    return " ".join(descriptions[0].split()) if descriptions else ""


def _format_type(part: Schema) -> str:
    return " or ".join(
        dict.fromkeys(_format_branch_type(branch) for branch in _list_branches(part))
    )


def _format_branch_type(branch: Schema) -> str:
    if branch.get("type") == "array":
        return f"list of {_format_type(branch['items'])}s"
    return str(branch.get("type", "any value"))


def format_accepted(part: Schema) -> str:
    """Return the allowed values or range, empty if the type says enough."""
    bounds = (_format_bounds(branch) for branch in _list_branches(part))
    return "; ".join(dict.fromkeys(filter(None, bounds)))


def _format_bounds(branch: Schema) -> str:
    if isinstance(branch.get("items"), dict):
        return format_accepted(branch["items"])
    if isinstance(branch.get("additionalProperties"), dict):
        sides = (branch.get("propertyNames", {}), branch["additionalProperties"])
        return " to ".join(filter(None, map(format_accepted, sides)))
    if "enum" in branch or "const" in branch:
        return ", ".join(map(str, branch.get("enum") or [branch["const"]]))
    if "format" in branch:
        return str(branch["format"])
    return _format_range(branch)


def _format_range(branch: Schema) -> str:
    if "maxLength" in branch:
        return f"at most {branch['maxLength']} characters"
    low, high = branch.get("minimum"), branch.get("maximum")
    if low is None or high is None:
        return "" if low is None else f"at least {low}"
    return f"{low} to {high}"
