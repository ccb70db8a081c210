"""JSON Schema of queries and results, simplified to the subset that every MCP client reads."""

from collections.abc import Collection
from typing import Any

from pydantic import BaseModel

from schemas.coverage import Coverage

Schema = dict[str, Any]


def build_input_schema(query: type[BaseModel], coverage: Coverage | None = None) -> Schema:
    """Return the flat, closed object schema of a query: no $ref, no unions.

    If `coverage` is given, the enums of asset_class and indicator list only covered values.
    """
    schema = query.model_json_schema()
    properties = {n: _flatten_argument(part) for n, part in schema.get("properties", {}).items()}
    if coverage is not None:
        _limit_enum(properties, "asset_class", {asset.asset_class for asset in coverage.tracked})
        _limit_enum(properties, "indicator", {indicator.id for indicator in coverage.indicators})
    return {
        "type": "object",
        "properties": properties,
        # Present even if it is empty, because some clients require the key.
        "required": list(schema.get("required", [])),
        "additionalProperties": False,
    }


def build_output_schema(result: type[BaseModel]) -> Schema:
    """Return the schema of a serialized result, with every $ref inlined."""
    schema = result.model_json_schema(by_alias=True, mode="serialization")
    definitions = schema.pop("$defs", {})
    return _inline_refs(schema, definitions)


def _limit_enum(properties: dict[str, Schema], name: str, allowed: Collection[str]) -> None:
    argument = properties.get(name, {})
    if "enum" in argument:
        argument["enum"] = [value for value in argument["enum"] if value in allowed]


def _flatten_argument(part: Schema) -> Schema:
    """Replace `X | None` by X: an optional argument is omitted, never null."""
    rest = {key: value for key, value in part.items() if key not in {"anyOf", "title"}}
    if rest.get("default", 0) is None:
        del rest["default"]
    branches = [branch for branch in part.get("anyOf", []) if branch != {"type": "null"}]
    for branch in branches:
        rest = {**branch, **rest}
    return rest


def _inline_refs(part: Schema, definitions: dict[str, Schema]) -> Schema:
    """Inline references, and drop the titles that pydantic generates."""
    if "$ref" in part:
        part = definitions[part["$ref"].rsplit("/", 1)[-1]]
    return {
        key: _inline_value(key, value, definitions) for key, value in part.items() if key != "title"
    }


def _inline_value(key: str, value: Any, definitions: dict[str, Schema]) -> Any:
    if key == "properties":
        return {name: _inline_refs(part, definitions) for name, part in value.items()}
    if key in {"anyOf", "oneOf", "allOf"}:
        return [_inline_refs(part, definitions) for part in value]
    if key in {"items", "additionalProperties", "propertyNames"} and isinstance(value, dict):
        return _inline_refs(value, definitions)
    return value
