"""The viewer of the OpenAPI document: its operations and schemas, linked with each other."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from serving.json_schema import Schema
from web.field_rows import format_accepted
from web.markdown import Heading

JsonObject = dict[str, Any]


class TypePart(NamedTuple):
    """A part of a type's name; `schema` is the schema that it links to, empty if none."""

    text: str
    schema: str


class ViewerRow(NamedTuple):
    """A parameter or a field; `place` is query, header or empty."""

    name: str
    place: str
    type: list[TypePart]
    accepted: str
    default: str
    is_required: bool
    description: str


class ViewerResponse(NamedTuple):
    """A response, with the names of its headers and its examples as JSON text."""

    status: str
    description: str
    headers: Sequence[str]
    type: list[TypePart]
    examples: Sequence[str]


class ViewerOperation(NamedTuple):
    """An operation."""

    method: str
    path: str
    id: str
    summary: str
    description: str
    needs_key: bool
    parameters: list[ViewerRow]
    body: list[TypePart]
    body_example: str
    responses: list[ViewerResponse]


class ViewerSchema(NamedTuple):
    """A schema: its fields, or its type if it is no object."""

    name: str
    description: str
    type: list[TypePart]
    rows: list[ViewerRow]


def build_viewer_values(document: JsonObject) -> dict[str, Any]:
    """Return the values of the page."""
    operations = list(_list_operations(document))
    groups = [
        (tag, [operation for tags, operation in operations if tag["name"] in tags])
        for tag in document["tags"]
    ]
    schemas = document["components"]["schemas"]
    return {
        "info": document["info"],
        "server": document["servers"][0]["url"],
        "groups": [(tag, members) for tag, members in groups if members],
        "security": document["components"]["securitySchemes"],
        "schemas": [_build_schema(name, schema) for name, schema in sorted(schemas.items())],
        "headings": [
            *(Heading(2, f"tag-{tag['name']}", tag["name"]) for tag, members in groups if members),
            Heading(2, "security", "Security"),
            Heading(2, "schemas", "Schemas"),
        ],
    }


def _list_operations(document: JsonObject) -> Iterator[tuple[list[str], ViewerOperation]]:
    """Yield the tags of each operation, and the operation."""
    for path, item in document["paths"].items():
        for method, operation in item.items():
            body = operation.get("requestBody", {}).get("content", {})
            content: JsonObject = next(iter(body.values()), {})
            yield (
                operation["tags"],
                ViewerOperation(
                    method.upper(),
                    path,
                    operation["operationId"],
                    operation["summary"],
                    operation["description"],
                    bool(operation["security"]),
                    [_build_parameter(one) for one in operation.get("parameters", [])],
                    _format_type(content["schema"]) if content else [],
                    _format_json(content["example"]) if "example" in content else "",
                    [
                        _build_response(status, _resolve(response, document), document)
                        for status, response in operation["responses"].items()
                    ],
                ),
            )


def _build_response(status: str, response: JsonObject, document: JsonObject) -> ViewerResponse:
    content: JsonObject = next(iter(response.get("content", {}).values()), {})
    examples = [
        _format_json(_resolve(example, document)["value"])
        for example in content.get("examples", {}).values()
    ]
    return ViewerResponse(
        status,
        response["description"],
        list(response.get("headers", {})),
        _format_type(content["schema"]) if content else [],
        examples,
    )


def _build_parameter(parameter: JsonObject) -> ViewerRow:
    schema = {**parameter["schema"], "description": parameter.get("description", "")}
    return _build_row(parameter["name"], schema, parameter["required"], parameter["in"])


def _build_schema(name: str, schema: Schema) -> ViewerSchema:
    properties: Mapping[str, Schema] = schema.get("properties", {})
    required = schema.get("required", ())
    rows = [_build_row(field, part, field in required) for field, part in properties.items()]
    type_ = [] if rows else _format_type(schema)
    return ViewerSchema(name, _flatten(schema.get("description", "")), type_, rows)


def _build_row(name: str, schema: Schema, is_required: bool, place: str = "") -> ViewerRow:
    default = schema.get("default")
    return ViewerRow(
        name,
        place,
        _format_type(schema),
        format_accepted(schema),
        "" if default is None else str(default),
        is_required,
        _flatten(schema.get("description", "")),
    )


def _format_type(schema: Schema) -> list[TypePart]:
    """Return the name of a type, in parts that link to the schemas it consists of."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return [TypePart(name, name)]
    if branches := schema.get("anyOf") or schema.get("oneOf"):
        first, *others = [_format_type(branch) for branch in branches]
        return first + [part for other in others for part in (TypePart(" or ", ""), *other)]
    if isinstance(schema.get("items"), dict):
        return [TypePart("list of ", ""), *_format_type(schema["items"])]
    if isinstance(schema.get("additionalProperties"), dict):
        return [TypePart("object of ", ""), *_format_type(schema["additionalProperties"])]
    return [TypePart(str(schema.get("type", "any value")), "")]


def _resolve(part: JsonObject, document: JsonObject) -> JsonObject:
    """Return a component in place of a reference to it."""
    if "$ref" not in part:
        return part
    found: Any = document
    for name in part["$ref"].removeprefix("#/").split("/"):
        found = found[name]
    resolved: JsonObject = found
    return resolved


def _format_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _flatten(text: str) -> str:
    return " ".join(text.split())
