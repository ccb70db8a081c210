"""JSON Schema of queries and results, simplified to the subset that every MCP client reads."""

from collections.abc import Collection
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from schemas.coverage import Coverage
from schemas.vocabulary import (
    AssetClass,
    Direction,
    IndicatorId,
    Reading,
    StoredKey,
    Timeframe,
)
from serving.json_text import to_json

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


# What schemas repeat most, by the name of its definition.
SHARED_PARTS: dict[str, Schema] = {
    "Instant": {"format": "date-time", "type": "string"},
    **{
        name: {"enum": list(get_args(values)), "type": "string"}
        for name, values in (
            ("AssetClass", AssetClass),
            ("Timeframe", Timeframe),
            ("Reading", Reading),
            ("Direction", Direction),
            ("Indicator", IndicatorId),
            ("StoredKey", StoredKey),
        )
    },
}
# tools/list leaves out what only people read, and what no client needs to accept a result.
UNLISTED = frozenset({"description", "pattern", "minimum", "maximum", "propertyNames"})
# These parts are listed as plain objects, and `meta` without what is absent from most results.
PLAIN_PARTS = frozenset(
    {"cadence", "rules", "tiers", "by_indicator", "by_timeframe", "by_direction"}
)
EXCEPTIONS = frozenset(
    {
        *("late_assets", "building_assets", "ended_assets", "missing_bars", "removed_assets"),
        *("most_delay_seconds", "last_bars", "not_covered", "legacy_keys", "stand_ins"),
        *("confluence", "timing"),
    }
)


def build_listed_schema(result: type[BaseModel]) -> Schema:
    """Return the open schema of a result as tools/list has it: short, with its parts in $defs."""
    schema = result.model_json_schema(
        by_alias=True, mode="serialization", schema_generator=ClientSchemas
    )
    used: set[str] = set()

    def shorten(part: Any) -> Any:
        if isinstance(part, list):
            return [shorten(each) for each in part]
        if not isinstance(part, dict):
            return part
        short = {
            # The keys of properties and definitions are names.
            key: {
                name: {"type": each.get("type", "object")} if name in PLAIN_PARTS else shorten(each)
                for name, each in value.items()
                if name not in EXCEPTIONS
            }
            if key in ("properties", "$defs")
            else shorten(value)
            for key, value in part.items()
            if key not in UNLISTED
        }
        for name, shared in SHARED_PARTS.items():
            if short == shared:
                used.add(name)
                return {"$ref": f"#/$defs/{name}"}
        return short

    listed: Schema = shorten(schema)
    parts = {
        **listed.pop("$defs", {}),
        **{name: SHARED_PARTS[name] for name in SHARED_PARTS if name in used},
    }
    # Those that were parts of what is not listed are left out, and then theirs.
    while True:
        text = to_json([listed, parts])
        named = {name: part for name, part in parts.items() if f'/{name}"' in text}
        if len(named) == len(parts):
            return {**listed, "$defs": parts}
        parts = named


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
