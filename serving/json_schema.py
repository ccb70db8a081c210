"""JSON Schema of queries and results, simplified to the subset that every MCP client reads."""

from collections.abc import Collection
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from schemas.coverage import Coverage

Schema = dict[str, Any]


class ClientSchemas(GenerateJsonSchema):
    """pydantic's schemas without generated titles and null defaults, and open for responses.

    A client validates a response against the schema that it listed before, so a closed one would
    make it refuse the first field that is added to v1. Tests validate against the closed form.
    """

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Return false: a generated title repeats the name."""
        return False

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        """Return the schema of a model: closed for a request, open for a response."""
        json_schema = super().model_schema(schema)
        json_schema.pop("title", None)
        if self.mode == "serialization" and json_schema.get("additionalProperties") is False:
            del json_schema["additionalProperties"]
        return json_schema

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        """Return a schema whose default, if any, is one that a request may rely on."""
        # Null contradicts a type that excludes null, which at least one client library rejects. A
        # response has no defaults at all: an optional field is there or absent.
        json_schema = super().default_schema(schema)
        if self.mode == "serialization" or json_schema.get("default", 0) is None:
            json_schema.pop("default", None)
        return json_schema


def build_input_schema(query: type[BaseModel], coverage: Coverage | None = None) -> Schema:
    """Return the flat, closed object schema of a query: no $ref, no unions.

    If `coverage` is given, the enums of asset_class and indicator list only covered values.
    """
    schema = query.model_json_schema(schema_generator=ClientSchemas)
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
    """Return the open schema of a serialized result, with every $ref inlined."""
    schema = result.model_json_schema(
        by_alias=True, mode="serialization", schema_generator=ClientSchemas
    )
    definitions = schema.pop("$defs", {})
    return _inline_refs(schema, definitions)


def _limit_enum(properties: dict[str, Schema], name: str, allowed: Collection[str]) -> None:
    argument = properties.get(name, {})
    if "enum" in argument:
        argument["enum"] = [value for value in argument["enum"] if value in allowed]


def _flatten_argument(part: Schema) -> Schema:
    """Replace `X | None` by X: an optional argument is omitted, never null."""
    rest = {key: value for key, value in part.items() if key != "anyOf"}
    branches = [branch for branch in part.get("anyOf", []) if branch != {"type": "null"}]
    for branch in branches:
        rest = {**branch, **rest}
    return rest


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
