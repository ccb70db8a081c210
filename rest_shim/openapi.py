"""The OpenAPI 3.1 document, made from the table of endpoints and the models of `schemas`."""

from functools import lru_cache
from typing import Any

from mcp_server.endpoint import SERVED_VERSIONS
from rest_shim.endpoints import CALL_MCP, CLAIM, ENDPOINTS, GET_LEGAL, JSON, Endpoint, Success
from rest_shim.error_catalog import QUOTA_HEADERS
from rest_shim.manifest import DESCRIPTION, DISCLAIMER
from rest_shim.openapi_components import SAMPLE, components, headers, ref
from schemas.coverage import Coverage
from schemas.purchase import CheckoutResponse
from schemas.signals import SignalsResponse
from serving.json_schema import input_schema
from serving.json_text import to_json

Part = dict[str, Any]

TAGS = {
    "reads": "Reads that need an API key and count against its daily quota, refused arguments too.",
    "open": "Reads that need no key, ignore unknown parameters and are never counted.",
    "access": "Buying access: check out, pay, claim the key.",
    "mcp": "The same reads as MCP tools.",
}
KEYED: list[Part] = [{"bearer": []}, {"apiKey": []}]
# Every item of a list is a name. Said here alone: not every model provider takes a pattern.
NAMES = "^[^,]*[A-Za-z0-9][^,]*(,[^,]*[A-Za-z0-9][^,]*)*$"
MCP_CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "signals_get_state", "arguments": {"ticker": "BTC"}},
}
NOT_MODIFIED = "The answer is still the one that If-None-Match names. A keyed call counts."
CLAIM_THE_KEY = {
    "operationId": CLAIM.operation_id,
    "description": "Once checkout_url is paid, the claim_token turns into the API key.",
    "requestBody": {"claim_token": "$response.body#/claim_token"},
}


@lru_cache(maxsize=2)
def openapi_text(base_url: str, coverage: Coverage | None) -> str:
    """Return the document as minified JSON, the same text until another coverage is published."""
    return to_json(openapi(base_url, coverage))


def openapi(base_url: str, coverage: Coverage | None) -> Part:
    """Return the document; a coverage cuts the enums of parameters to what it holds."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "signals",
            "version": "1.0.0",
            "summary": DISCLAIMER,
            "description": f"{DESCRIPTION} {DISCLAIMER} Every GET answers HEAD too.",
            "termsOfService": base_url + GET_LEGAL.path,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": base_url}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": {
            endpoint.path: {endpoint.method.lower(): _operation(endpoint, coverage)}
            for endpoint in ENDPOINTS
        },
        "components": components(),
    }


def _operation(endpoint: Endpoint, coverage: Coverage | None) -> Part:
    operation: Part = {
        "operationId": endpoint.operation_id,
        "tags": [endpoint.tag],
        "summary": endpoint.summary,
        "description": endpoint.description,
        "security": _security(endpoint),
    }
    if parameters := _parameters(endpoint, coverage):
        operation["parameters"] = parameters
    if endpoint.body:
        operation["requestBody"] = _request_body(endpoint, endpoint.body.__name__)
    operation["responses"] = _responses(endpoint)
    return operation


def _security(endpoint: Endpoint) -> list[Part]:
    """Return the alternatives; on the MCP endpoint it depends on the tool, so none is one."""
    if endpoint is CALL_MCP:
        return [{}, *KEYED]
    return KEYED if endpoint.auth == "api_key" else []


def _parameters(endpoint: Endpoint, coverage: Coverage | None) -> list[Part]:
    if endpoint is CALL_MCP:
        versions = {"type": "string", "enum": list(SERVED_VERSIONS)}
        return [_parameter("MCP-Protocol-Version", versions, "header")]
    if endpoint.tool is None:
        return []
    arguments: dict[str, Part] = input_schema(endpoint.tool.query, coverage)["properties"]
    return [_parameter(name, schema, "query") for name, schema in arguments.items()]


def _parameter(name: str, schema: Part, place: str) -> Part:
    rest = dict(schema)
    described = {"description": rest.pop("description")} if "description" in rest else {}
    if rest["type"] == "string" and not rest.keys() & {"enum", "format"}:
        rest["pattern"] = NAMES
    return {"name": name, "in": place, "required": False, **described, "schema": rest}


def _request_body(endpoint: Endpoint, model: str) -> Part:
    content: Part = {"schema": ref("schemas", model)}
    if endpoint is CALL_MCP:
        content["example"] = MCP_CALL
    return {"required": True, "content": {JSON: content}}


def _responses(endpoint: Endpoint) -> Part:
    quota = QUOTA_HEADERS if endpoint.auth == "api_key" else ()
    of_get = ("ETag",) if endpoint.method == "GET" else ()
    shown = (*of_get, *quota)
    successes = {str(success.status): _success(success, shown) for success in endpoint.successes}
    if of_get:
        successes["304"] = {"description": NOT_MODIFIED, "headers": headers(shown)}
    return successes | {
        str(refusal.status): ref("responses", refusal.name) for refusal in endpoint.refusals
    }


def _success(success: Success, shown: tuple[str, ...]) -> Part:
    response: Part = {"description": success.description}
    if shown and success.media_type:
        response["headers"] = headers(shown)
    if success.media_type:
        response["content"] = {success.media_type: _content(success)}
    if success.model is CheckoutResponse:
        response["links"] = {"ClaimTheKey": CLAIM_THE_KEY}
    return response


def _content(success: Success) -> Part:
    if success.model is None:
        return {"schema": {"type": "string"}}
    content: Part = {"schema": ref("schemas", success.model.__name__)}
    if success.model is SignalsResponse:
        content["examples"] = {"sample": ref("examples", SAMPLE)}
    return content
