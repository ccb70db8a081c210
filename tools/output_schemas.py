"""The schema of a result with every $ref inlined, for documents and tests that walk its fields."""

from typing import Any

from pydantic import BaseModel

from serving.json_schema import ClientSchemas, Schema


def build_output_schema(result: type[BaseModel]) -> Schema:
    """Return the open schema of a serialized result, with every $ref inlined."""
    schema = result.model_json_schema(
        by_alias=True, mode="serialization", schema_generator=ClientSchemas
    )
    return _inline_refs(schema, schema.pop("$defs", {}))


def _inline_refs(part: Schema, definitions: dict[str, Schema]) -> Schema:
    """Return a schema with its references inlined."""
    if "$ref" in part:
        part = definitions[part["$ref"].rsplit("/", 1)[-1]]
    return {key: _inline_value(key, value, definitions) for key, value in part.items()}


def _inline_value(key: str, value: Any, definitions: dict[str, Schema]) -> Any:
    if key == "properties":
        return {name: _inline_refs(part, definitions) for name, part in value.items()}
    if key in {"anyOf", "oneOf", "allOf"}:
        return [_inline_refs(part, definitions) for part in value]
    if key in {"items", "additionalProperties", "propertyNames"} and isinstance(value, dict):
        return _inline_refs(value, definitions)
    return value
