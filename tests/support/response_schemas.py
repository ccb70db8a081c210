"""The closed form of published response schemas, and responses with fields added to them."""

import re
from typing import Any

ADDED_FIELD = "added_to_v1"


def close_schema(schema: Any) -> Any:
    """Return a schema, or a document of schemas, that rejects undocumented fields at any depth."""
    if isinstance(schema, list):
        return [close_schema(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: close_schema(part) for key, part in schema.items()}
    # A field may itself be named "properties", so only the keyword's own value counts.
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict):
        closed.setdefault("additionalProperties", False)
    return closed


def add_fields(value: Any, schema: Any) -> Any:
    """Return a response with one more field in every object that has fields."""
    if isinstance(value, list):
        return [add_fields(item, schema["items"]) for item in value]
    if not isinstance(value, dict):
        return value
    (schema,) = [part for part in schema.get("anyOf", [schema]) if part.get("type") == "object"]
    if "properties" not in schema:
        return {
            key: add_fields(part, schema["additionalProperties"]) for key, part in value.items()
        }
    known = schema["properties"]
    return {key: add_fields(part, known[key]) for key, part in value.items()} | {ADDED_FIELD: 1}


def parse_size(description: str, before: str = "bout") -> int:
    """Return the number of characters in a description that stands after some words."""
    (number,) = re.findall(rf"{before} ([\d,]+\d)", description)
    return int(number.replace(",", ""))


def parse_largest_size(description: str) -> int:
    return max(int(size.replace(",", "")) for size in re.findall(r"[\d,]*\d", description))
