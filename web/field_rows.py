"""JSON Schemas as rows of a table: one a field, then those of its parts."""

from collections.abc import Iterator
from typing import NamedTuple

from pydantic import BaseModel

from serving.json_schema import Schema, output_schema


class FieldRow(NamedTuple):
    """One field; `[]` in its path stands for each item of a list, `*` for each key of an object."""

    path: str
    type: str
    accepted: str
    default: str
    is_required: bool
    description: str


class Shape(NamedTuple):
    """One form that an answer may have."""

    description: str
    rows: list[FieldRow]


def shapes(result: type[BaseModel]) -> list[Shape]:
    """Return the forms of an answer, with every field of each."""
    schema = output_schema(result)
    return [Shape(_text(form), list(field_rows(form))) for form in _branches(schema)]


def field_rows(schema: Schema, above: str = "") -> Iterator[FieldRow]:
    """Yield a row for every field of an object, however deep."""
    for name, part in schema.get("properties", {}).items():
        path = above + name
        is_required = name in schema.get("required", ())
        default = "" if part.get("default") is None else str(part["default"])
        yield FieldRow(path, _type(part), _accepted(part), default, is_required, _text(part))
        yield from _below(part, path)


def _below(part: Schema, path: str) -> Iterator[FieldRow]:
    for branch in _branches(part):
        yield from field_rows(branch, f"{path}.")
        for key, step in (("items", "[]"), ("additionalProperties", ".*")):
            if isinstance(branch.get(key), dict):
                yield from _below(branch[key], path + step)


def _branches(part: Schema) -> list[Schema]:
    """Return what a value may be: the part itself where there is no choice."""
    chosen: list[Schema] = part.get("anyOf") or part.get("oneOf") or [part]
    return chosen


def _text(part: Schema) -> str:
    """Return what is said of a part, else of the object that it, or each item of it, is."""
    objects = [each for branch in _branches(part) for each in (branch, branch.get("items", {}))]
    said = [one["description"] for one in (part, *objects) if "description" in one]
    return " ".join(said[0].split()) if said else ""


def _type(part: Schema) -> str:
    return " or ".join(dict.fromkeys(_type_of(branch) for branch in _branches(part)))


def _type_of(branch: Schema) -> str:
    if branch.get("type") == "array":
        return f"list of {_type(branch['items'])}s"
    return str(branch.get("type", "any value"))


def _accepted(part: Schema) -> str:
    """Return the values that are accepted, or occur, where the type leaves too many."""
    told = (_bounds(branch) for branch in _branches(part))
    return "; ".join(dict.fromkeys(filter(None, told)))


def _bounds(branch: Schema) -> str:
    if isinstance(branch.get("items"), dict):
        return _accepted(branch["items"])
    if isinstance(branch.get("additionalProperties"), dict):
        sides = (branch.get("propertyNames", {}), branch["additionalProperties"])
        return " to ".join(filter(None, map(_accepted, sides)))
    if "enum" in branch or "const" in branch:
        return ", ".join(map(str, branch.get("enum") or [branch["const"]]))
    if "format" in branch:
        return str(branch["format"])
    return _span(branch)


def _span(branch: Schema) -> str:
    if "maxLength" in branch:
        return f"at most {branch['maxLength']} characters"
    low, high = branch.get("minimum"), branch.get("maximum")
    if low is None or high is None:
        return "" if low is None else f"at least {low}"
    return f"{low} to {high}"
