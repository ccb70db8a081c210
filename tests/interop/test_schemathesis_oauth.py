"""Schemathesis sends valid and invalid requests to the OAuth routes.

The document here describes them. The API's own OpenAPI document leaves them out, because OAuth
clients read the metadata documents instead.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from access.throttle import Limit
from store.sql.database import fetch_value
from tests.support.example_market import make_coverage
from tests.support.running_service import run_service
from tools.client_environments import get_python_environment

pytestmark = [pytest.mark.prove, pytest.mark.clause("interop", "11.8")]

Schema = dict[str, Any]

SEED, EXAMPLES, ENDS_WITHIN_S = 1, 100, 500
UNLIMITED = Limit(10**9, 1)
# Without those on bad values: a parameter that means nothing to a grant is ignored.
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "unsupported_method",
)
FORM, JSON = "application/x-www-form-urlencoded", "application/json"
TEXT: Schema = {"type": "string"}
URIS: Schema = {"type": "array", "items": {"type": "string", "format": "uri"}}
ERROR: Schema = {
    "type": "object",
    "properties": {
        "error": {"type": "string", "pattern": "^[a-z_]+$"},
        "error_description": {"type": "string", "pattern": r"^[ !#-\[\]-~]+$"},
    },
    "required": ["error", "error_description"],
    "additionalProperties": False,
}
REGISTRATION: Schema = {
    "type": "object",
    "properties": {
        "client_id": TEXT,
        "client_id_issued_at": {"type": "integer"},
        "client_name": {"type": "string", "minLength": 1, "maxLength": 80},
        "redirect_uris": {**URIS, "minItems": 1},
        "grant_types": {"const": ["authorization_code", "refresh_token"]},
        "response_types": {"const": ["code"]},
        "token_endpoint_auth_method": {"const": "none"},
    },
    "additionalProperties": False,
}
REGISTRATION["required"] = list(REGISTRATION["properties"])
METADATA: Schema = {
    "type": "object",
    "properties": {
        "redirect_uris": {
            "type": "array",
            "items": {
                "enum": [
                    "http://localhost/callback",
                    "https://claude.ai/api/mcp/auth_callback",
                    "cursor://anysphere.cursor-mcp/oauth/callback",
                    "javascript:alert(1)",
                ]
            },
        },
        "client_name": TEXT,
        "token_endpoint_auth_method": {"enum": ["none", "client_secret_post", "tls_client_auth"]},
        "grant_types": {"type": "array", "items": {"enum": ["authorization_code", "implicit"]}},
        "response_types": {"type": "array", "items": {"enum": ["code", "token"]}},
    },
    "required": ["redirect_uris"],
}
GRANT: Schema = {
    "type": "object",
    "properties": {
        "grant_type": {"enum": ["authorization_code", "refresh_token", "password"]},
        **dict.fromkeys(
            ("client_id", "code", "code_verifier", "redirect_uri", "refresh_token"), TEXT
        ),
        "resource": {"type": "string", "format": "uri"},
    },
    "required": ["grant_type"],
}
REVOCATION: Schema = {"type": "object", "properties": {"token": TEXT}, "required": ["token"]}
AUTHORIZATION = (
    ("response_type", {"enum": ["code", "token"]}),
    ("client_id", TEXT),
    ("redirect_uri", TEXT),
    ("state", TEXT),
    ("code_challenge", TEXT),
    ("code_challenge_method", {"enum": ["S256", "plain"]}),
    ("resource", TEXT),
)


def build_post(media: str, body: Schema, responses: dict[str, Schema]) -> Schema:
    """Return the operation of a POST route; errors are the same for all."""
    refusals = {status: describe(ERROR) for status in ("400", "401", "413", "429")}
    return {
        "post": {
            "requestBody": {"required": True, "content": {media: {"schema": body}}},
            "responses": {**responses, **refusals},
        }
    }


def describe(schema: Schema) -> Schema:
    """Return a response with a JSON body."""
    return {"description": "A body", "content": {JSON: {"schema": schema}}}


def build_document() -> Schema:
    """Return the OpenAPI document of the OAuth routes."""
    page = {"description": "A page", "content": {"text/html": {}}}
    found = {"get": {"responses": {"200": describe({"type": "object"})}}}
    parameters = [
        {"name": name, "in": "query", "schema": schema, "required": name == "client_id"}
        for name, schema in AUTHORIZATION
    ]
    return {
        "openapi": "3.1.0",
        "info": {"title": "OAuth", "version": "1"},
        "paths": {
            "/.well-known/oauth-authorization-server": found,
            "/.well-known/oauth-protected-resource": found,
            "/.well-known/oauth-protected-resource/mcp": found,
            "/oauth/register": build_post(JSON, METADATA, {"201": describe(REGISTRATION)}),
            "/oauth/token": build_post(FORM, GRANT, {}),
            "/oauth/revoke": build_post(FORM, REVOCATION, {"200": {"description": "Revoked"}}),
            "/oauth/authorize": {
                "get": {"parameters": parameters, "responses": {"400": page, "303": page}}
            },
        },
    }


async def test_no_response_of_an_oauth_route_violates_its_description(tmp_path: Path) -> None:
    document = build_document()
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    python = await asyncio.to_thread(get_python_environment, "schemathesis")
    async with run_service(tmp_path, make_coverage(), attempt_limit=UNLIMITED) as served:
        process = await asyncio.create_subprocess_exec(
            *(str(python.parent / "st"), "run", "openapi.json", "--url", served.base_url),
            *("--checks", ",".join(CHECKS), "--phases", "coverage,fuzzing", "--seed", str(SEED)),
            *("--max-examples", str(EXAMPLES), "--continue-on-failure", "--no-color"),
            *("--generation-database", "none", "--report-json-path", "report.json"),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await asyncio.wait_for(process.communicate(), ENDS_WITHIN_S)
        async with served.access._engine.acquire_connection() as db:
            registered = await fetch_value(db, "SELECT count(*) FROM oauth_clients")
    assert process.returncode == 0, said.decode()[-8000:]
    assert registered > 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["operations"]["tested"] == len(document["paths"])
