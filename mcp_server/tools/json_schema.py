"""JSON Schema of queries and results, flattened so that every MCP client can read it."""

from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]


def input_schema(query: type[BaseModel]) -> Schema:
    """Return a flat, closed object schema: no $ref, no unions, `required` always present."""
    schema = query.model_json_schema()
    properties = schema.get("properties", {})
    return {
        "type": "object",
        "properties": {name: _plain_argument(part) for name, part in properties.items()},
        "required": list(schema.get("required", [])),
        "additionalProperties": False,
    }


def output_schema(result: type[BaseModel]) -> Schema:
    """Return the schema of an answer as it is written, with every $ref inlined."""
    schema = result.model_json_schema(by_alias=True, mode="serialization")
    definitions = schema.pop("$defs", {})
    return _inlined(schema, definitions)


def _plain_argument(part: Schema) -> Schema:
    """Merge `X | None` into X; an optional argument is left out, never null."""
    rest = {key: value for key, value in part.items() if key not in {"anyOf", "title"}}
    if rest.get("default", 0) is None:
        del rest["default"]
    branches = [branch for branch in part.get("anyOf", []) if branch != {"type": "null"}]
    for branch in branches:
        rest = {**branch, **rest}
    return rest


def _inlined(part: Schema, definitions: dict[str, Schema]) -> Schema:
    """Replace references by what they name and drop the titles that pydantic makes up."""
    if "$ref" in part:
        part = definitions[part["$ref"].rsplit("/", 1)[-1]]
    return {
        key: _inlined_value(key, value, definitions)
        for key, value in part.items()
        if key != "title"
    }


def _inlined_value(key: str, value: Any, definitions: dict[str, Schema]) -> Any:
    if key == "properties":
        return {name: _inlined(part, definitions) for name, part in value.items()}
    if key in {"anyOf", "oneOf", "allOf"}:
        return [_inlined(part, definitions) for part in value]
    if key in {"items", "additionalProperties", "propertyNames"} and isinstance(value, dict):
        return _inlined(value, definitions)
    return value
