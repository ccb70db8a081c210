"""Builds the OpenAPI 3.1 document from the table of endpoints and the models in `schemas`."""

import json
from functools import cache, lru_cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from mcp_server.protocol_legs import LEGACY_VERSIONS, MODERN_VERSION
from rest_shim.endpoints import (
    CALL_MCP,
    CLAIM_KEY,
    GET_LEGAL,
    Endpoint,
    list_endpoints,
)
from rest_shim.error_catalog import NO_LIVE_KEY, QUOTA_HEADERS, Refusal
from rest_shim.manifest import DESCRIPTION, DISCLAIMER
from rest_shim.sample import render_sample
from schemas.coverage import Coverage
from schemas.errors import ErrorBody
from schemas.operator import UNNAMED_OPERATOR, Operator
from schemas.purchase import CheckoutResponse
from schemas.rpc_messages import RpcFailure
from schemas.signals import SignalsResponse
from schemas.vocabulary import DAY_MS, INSTANT_SCHEMA, format_instant
from serving.http import JSON
from serving.json_schema import ClientSchemas, build_input_schema
from serving.json_text import to_json

JsonObject = dict[str, Any]

TAGS = {
    "reads": "Reads that need an API key. Each counts against its quota.",
    "open": "Reads that need no key, ignore unknown parameters and are never counted.",
    "access": "Access to the service: how to get a key, and custom terms.",
    "mcp": "The same reads as MCP tools.",
}
KEY_SECURITY: list[JsonObject] = [{"bearer": []}, {"apiKey": []}]
# Free texts must have a letter or digit. Only this document says so,
# because not every model provider accepts `pattern` in a tool schema.
NAMES_PATTERN = "[A-Za-z0-9]"
MCP_CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "signals_get_state", "arguments": {"ticker": "BTC"}},
}
MCP_HEADERS: dict[str, JsonObject] = {
    "MCP-Protocol-Version": {"type": "string", "enum": [*LEGACY_VERSIONS, MODERN_VERSION]},
    "Mcp-Method": {
        "type": "string",
        "description": f"The method of the body. Revision {MODERN_VERSION} requires it.",
    },
    "Mcp-Name": {
        "type": "string",
        "description": "The name of the tool that tools/call calls. "
        f"Revision {MODERN_VERSION} requires it.",
    },
}
MCP_EXAMPLES = (LEGACY_VERSIONS[-1], "tools/call", "signals_get_state")
# Of arguments without a default. A program that imports the document sends all of them at once.
EXAMPLES = {
    "ticker": "BTC,ETH",
    "asset_class": "crypto",
    "timeframe": "4h",
    "indicator": "enzo",
    "direction": "bullish",
    "hours": 6,
    "limit": 10,
}
NOT_MODIFIED_TEXT = "The response still matches If-None-Match. The call counts if it needs a key."
CLAIM_LINK = {
    "operationId": CLAIM_KEY.operation_id,
    "description": "After payment at checkout_url, the claim_token is exchanged for the API key.",
    "requestBody": {"claim_token": "$response.body#/claim_token"},
}


@lru_cache(maxsize=2)
def render_openapi(
    base_url: str,
    coverage: Coverage | None,
    *,
    sells_keys: bool,
    operator: Operator = UNNAMED_OPERATOR,
) -> str:
    """Return the document as minified JSON, cached until another coverage is published."""
    return to_json(build_openapi(base_url, coverage, sells_keys=sells_keys, operator=operator))


def build_openapi(
    base_url: str,
    coverage: Coverage | None,
    *,
    sells_keys: bool = True,
    operator: Operator = UNNAMED_OPERATOR,
) -> JsonObject:
    """Build the document; if `coverage` is given, enums of parameters list only covered values."""
    page = None if operator.contact_email else operator.contact_url
    fields = {"name": operator.name, "email": operator.contact_email, "url": page}
    contact = {name: value for name, value in fields.items() if value is not None}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "signals",
            "version": "1.0.0",
            "summary": DISCLAIMER,
            "description": f"{DESCRIPTION} {DISCLAIMER} Every GET answers HEAD too.",
            "termsOfService": operator.terms_url or base_url + GET_LEGAL.path,
            **({"contact": contact} if contact else {}),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": base_url}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": {
            endpoint.path: {endpoint.method.lower(): build_operation(endpoint, coverage)}
            for endpoint in list_endpoints(sells_keys=sells_keys)
        },
        "components": {
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
            "examples": {SAMPLE_NAME: {"value": json.loads(render_sample(SAMPLE_ROWS))}},
            "securitySchemes": SECURITY_SCHEMES,
        },
    }


def build_operation(endpoint: Endpoint, coverage: Coverage | None) -> JsonObject:
    """Build the operation of one endpoint; see `build_openapi`."""
    # Programs that import actions accept no longer text, so it has the sentences that fit.
    text = endpoint.description
    operation: JsonObject = {
        "operationId": endpoint.operation_id,
        "tags": [endpoint.tag],
        "summary": endpoint.summary,
        "description": text if len(text) <= 300 else text[: text.rfind(". ", 0, 300) + 1],
        # Whether the MCP endpoint needs a key depends on the tool, so {} (no key) is possible.
        "security": [{}, *KEY_SECURITY]
        if endpoint is CALL_MCP
        else KEY_SECURITY
        if endpoint.auth == "api_key"
        else [],
    }
    if parameters := _build_parameters(endpoint, coverage):
        operation["parameters"] = parameters
    if endpoint.body:
        content: JsonObject = {"schema": build_ref("schemas", endpoint.body.__name__)}
        if endpoint is CALL_MCP:
            content["example"] = MCP_CALL
        operation["requestBody"] = {"required": True, "content": {JSON: content}}
    operation["responses"] = _build_responses(endpoint)
    return operation


def _build_parameters(endpoint: Endpoint, coverage: Coverage | None) -> list[JsonObject]:
    if endpoint is CALL_MCP:
        return [
            _build_parameter(name, schema, "header", example)
            for (name, schema), example in zip(MCP_HEADERS.items(), MCP_EXAMPLES, strict=True)
        ]
    if endpoint.tool is None:
        return []
    arguments: dict[str, JsonObject] = build_input_schema(endpoint.tool.query, coverage)[
        "properties"
    ]
    published_at = 0 if coverage is None else coverage.published_at
    examples = {
        **EXAMPLES,
        **endpoint.required,
        # There are readings of every time since coverage is published.
        **dict.fromkeys(("as_of", "until"), format_instant(published_at)),
        "since": format_instant(published_at - DAY_MS),
    }
    return [
        _build_parameter(
            name,
            schema,
            "query",
            schema["default"] if "default" in schema else examples[name],
            is_required=name in endpoint.required,
        )
        for name, schema in arguments.items()
    ]


def _build_parameter(
    name: str, schema: JsonObject, location: str, example: object, *, is_required: bool = False
) -> JsonObject:
    value_schema = dict(schema)
    description = (
        {"description": value_schema.pop("description")} if "description" in value_schema else {}
    )
    is_free_text = value_schema["type"] == "string" and not (
        value_schema.keys() & {"enum", "format", "pattern"}
    )
    # Headers that a request does not need are ignored, whatever their value.
    if is_free_text and location == "query":
        value_schema["pattern"] = NAMES_PATTERN
    return {
        "name": name,
        "in": location,
        "required": is_required,
        **description,
        "schema": value_schema,
        "example": example,
    }


def _build_responses(endpoint: Endpoint) -> JsonObject:
    quota = QUOTA_HEADERS if endpoint.auth == "api_key" else ()
    get_headers = ("ETag",) if endpoint.method == "GET" else ()
    header_names = (*get_headers, *quota)
    successes = dict[str, JsonObject]()
    for success in endpoint.successes:
        model, content = success.model, JsonObject({"schema": {"type": "string"}})
        if model is not None:
            content["schema"] = build_ref("schemas", model.__name__)
        if model is SignalsResponse:
            content["examples"] = {"sample": build_ref("examples", SAMPLE_NAME)}
        response: JsonObject = {"description": success.description}
        if success.media_type:
            headers = {"headers": build_header_refs(header_names)} if header_names else {}
            response |= {**headers, "content": {success.media_type: content}}
        if model is CheckoutResponse:
            response["links"] = {"ClaimTheKey": CLAIM_LINK}
        successes[str(success.status)] = response
    if get_headers:
        successes["304"] = {
            "description": NOT_MODIFIED_TEXT,
            "headers": build_header_refs(header_names),
        }
    return successes | {
        str(refusal.status): build_ref("responses", refusal.name) for refusal in endpoint.refusals
    }


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
SAMPLE_ROWS = 6


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
    models: list[type[BaseModel]] = [
        success.model for e in endpoints for success in e.successes if success.model
    ]
    models += [ErrorBody, RpcFailure]
    _, generated = models_json_schema(
        [(model, "serialization") for model in dict.fromkeys(models)]
        + [(endpoint.body, "validation") for endpoint in endpoints if endpoint.body],
        by_alias=True,
        ref_template="#/components/schemas/{model}",
        schema_generator=ClientSchemas,
    )
    schemas: JsonObject = generated["$defs"]
    return schemas


def _build_response(refusal: Refusal, *, sells_keys: bool) -> JsonObject:
    schema = build_ref("schemas", refusal.body.__name__)
    # how_to_get_access is optional in the shared Error model, but a 401 has it if keys are sold.
    if refusal is NO_LIVE_KEY and sells_keys:
        schema = {"allOf": [schema, {"required": ["how_to_get_access"]}]}
    codes = f" error: {', '.join(refusal.errors)}." if refusal.body is ErrorBody else ""
    response = {
        "description": refusal.description + codes,
        "content": {JSON: {"schema": schema}},
    }
    return response | ({"headers": build_header_refs(refusal.headers)} if refusal.headers else {})
