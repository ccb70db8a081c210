"""Builds the components of the OpenAPI document: schemas, errors, headers and security schemes."""

from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from rest_shim.endpoints import Endpoint, list_endpoints
from rest_shim.error_catalog import NO_LIVE_KEY, QUOTA_HEADERS, Refusal
from rest_shim.sample import build_sample
from schemas.errors import ErrorBody
from schemas.jsonrpc import RpcFailure
from schemas.vocabulary import INSTANT_SCHEMA
from serving.http import JSON
from serving.json_schema import ClientSchemas

JsonObject = dict[str, Any]

COUNT_SCHEMA = {"type": "integer", "minimum": 0}
HEADER_DEFINITIONS: dict[str, tuple[str, JsonObject]] = {
    "X-RateLimit-Limit": ("Calls per day; present when a quota snapshot exists.", COUNT_SCHEMA),
    "X-RateLimit-Remaining": (
        "Calls left today; present when a quota snapshot exists. Absence does not mean zero.",
        COUNT_SCHEMA,
    ),
    "X-RateLimit-Reset": (
        "When the count returns to zero; present when a quota snapshot exists.",
        INSTANT_SCHEMA,
    ),
    "Retry-After": ("Seconds to wait before retrying.", COUNT_SCHEMA),
    "WWW-Authenticate": ("Authentication scheme.", {"type": "string", "const": "Bearer"}),
    "ETag": ("Tag of the response, for If-None-Match.", {"type": "string"}),
    "Allow": ("Methods that the path accepts.", {"type": "string"}),
}
SECURITY_SCHEMES = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "Authorization: Bearer <API_KEY>. Keys begin with ek_.",
    },
    "apiKey": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Api-Key",
        "description": "The same key in X-Api-Key.",
    },
}
SAMPLE_NAME = "SignalsSample"


def build_components(*, sells_keys: bool) -> JsonObject:
    """Return every component of the document."""
    return {
        "schemas": _build_schemas(sells_keys=sells_keys),
        "responses": {
            refusal.name: _build_response(refusal, sells_keys=sells_keys)
            for endpoint in list_endpoints(sells_keys=sells_keys)
            for refusal in endpoint.refusals
        },
        "headers": {
            name: {
                "description": description,
                # Without a live key there is no quota snapshot, and no quota header.
                "required": name not in QUOTA_HEADERS,
                "schema": schema,
            }
            for name, (description, schema) in HEADER_DEFINITIONS.items()
        },
        "examples": {SAMPLE_NAME: {"value": build_sample().model_dump(mode="json", by_alias=True)}},
        "securitySchemes": SECURITY_SCHEMES,
    }


def build_ref(kind: str, name: str) -> JsonObject:
    """Return a $ref to a component."""
    return {"$ref": f"#/components/{kind}/{name}"}


def build_header_refs(names: tuple[str, ...]) -> JsonObject:
    """Return references to the definitions of response headers."""
    return {name: build_ref("headers", name) for name in names}


@cache
def _build_schemas(*, sells_keys: bool) -> JsonObject:
    # One call for all models, so that equal names become one shared component. Responses and
    # request bodies differ in mode: a default is optional in a request, always there in a response.
    endpoints = list_endpoints(sells_keys=sells_keys)
    _, generated = models_json_schema(
        [(model, "serialization") for model in _list_response_models(endpoints)]
        + [(endpoint.body, "validation") for endpoint in endpoints if endpoint.body],
        by_alias=True,
        ref_template="#/components/schemas/{model}",
        schema_generator=ClientSchemas,
    )
    schemas: JsonObject = generated["$defs"]
    return schemas


def _list_response_models(endpoints: tuple[Endpoint, ...]) -> list[type[BaseModel]]:
    successes = [success.model for e in endpoints for success in e.successes if success.model]
    return list(dict.fromkeys([*successes, ErrorBody, RpcFailure]))


def _build_response(refusal: Refusal, *, sells_keys: bool) -> JsonObject:
    schema = build_ref("schemas", refusal.body.__name__)
    # how_to_get_access is optional in the shared Error model, but a 401 has it if keys are sold.
    if refusal is NO_LIVE_KEY and sells_keys:
        schema = {"allOf": [schema, {"required": ["how_to_get_access"]}]}
    response = {
        "description": _describe_refusal(refusal),
        "content": {JSON: {"schema": schema}},
    }
    return response | ({"headers": build_header_refs(refusal.headers)} if refusal.headers else {})


def _describe_refusal(refusal: Refusal) -> str:
    if refusal.body is not ErrorBody:
        return refusal.description
    return f"{refusal.description} error: {', '.join(refusal.errors)}."
