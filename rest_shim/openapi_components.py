"""What the operations of the OpenAPI document refer to: schemas, refusals, headers, key schemes."""

from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema
from pydantic_core import core_schema

from rest_shim.endpoints import ENDPOINTS, JSON
from rest_shim.error_catalog import NO_LIVE_KEY, QUOTA_HEADERS, Refusal
from rest_shim.sample import sample
from schemas.errors import ErrorBody
from schemas.jsonrpc import RpcFailure
from schemas.vocabulary import INSTANT

Part = dict[str, Any]

INTEGER = {"type": "integer", "minimum": 0}
HEADERS: dict[str, tuple[str, Part]] = {
    "X-RateLimit-Limit": ("Calls a day; present when a quota snapshot exists.", INTEGER),
    "X-RateLimit-Remaining": (
        "Calls left today; present when a quota snapshot exists, absence does not mean zero.",
        INTEGER,
    ),
    "X-RateLimit-Reset": (
        "When the count starts anew; present when a quota snapshot exists.",
        INSTANT,
    ),
    "Retry-After": ("Seconds after which to come back.", INTEGER),
    "WWW-Authenticate": ("The scheme of a key.", {"type": "string", "const": "Bearer"}),
    "ETag": ("Names the answer, for If-None-Match.", {"type": "string"}),
    "Allow": ("The methods that the path takes.", {"type": "string"}),
}
SECURITY_SCHEMES = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "Authorization: Bearer <API_KEY>; keys begin with ek_.",
    },
    "apiKey": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Api-Key",
        "description": "The same key in a header of its own.",
    },
}
SAMPLE = "SignalsSample"


class _ComponentSchemas(GenerateJsonSchema):
    """pydantic's schemas without made-up titles; what may be left out has no default of null."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        made = super().default_schema(schema)
        if made.get("default", 0) is None:
            del made["default"]
        return made


def components() -> Part:
    """Return every component of the document."""
    return {
        "schemas": _schemas(),
        "responses": {
            refusal.name: _response(refusal)
            for endpoint in ENDPOINTS
            for refusal in endpoint.refusals
        },
        "headers": {
            name: {
                "description": description,
                "required": name not in QUOTA_HEADERS,
                "schema": schema,
            }
            for name, (description, schema) in HEADERS.items()
        },
        "examples": {SAMPLE: {"value": sample().model_dump(mode="json", by_alias=True)}},
        "securitySchemes": SECURITY_SCHEMES,
    }


def ref(kind: str, name: str) -> Part:
    """Return a reference to a component."""
    return {"$ref": f"#/components/{kind}/{name}"}


def headers(names: tuple[str, ...]) -> Part:
    """Return the headers of a response."""
    return {name: ref("headers", name) for name in names}


@cache
def _schemas() -> Part:
    _, made = models_json_schema(
        [(model, "serialization") for model in _answers()]
        + [(endpoint.body, "validation") for endpoint in ENDPOINTS if endpoint.body],
        by_alias=True,
        ref_template="#/components/schemas/{model}",
        schema_generator=_ComponentSchemas,
    )
    schemas: Part = made["$defs"]
    return schemas


def _answers() -> list[type[BaseModel]]:
    successes = [success.model for e in ENDPOINTS for success in e.successes if success.model]
    return list(dict.fromkeys([*successes, ErrorBody, RpcFailure]))


def _response(refusal: Refusal) -> Part:
    schema = ref("schemas", refusal.body.__name__)
    if refusal is NO_LIVE_KEY:
        schema = {"allOf": [schema, {"required": ["how_to_get_access"]}]}
    response = {
        "description": refusal.description,
        "content": {JSON: {"schema": schema}},
    }
    return response | ({"headers": headers(refusal.headers)} if refusal.headers else {})
