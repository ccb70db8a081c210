"""Schemathesis sends requests that the OpenAPI document allows, and some that it does not.

All of its checks compare each response with the document. `python/schemathesis_hooks.py` lists the
excused failures, with reasons.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from access.throttle import Limit
from rest_shim.endpoints import CLAIM_KEY, ENDPOINTS
from store.sql.database import fetch_value
from tests.support.example_market import HOUR_MS, NOON, make_coverage
from tests.support.running_service import RunningService, run_service
from tests.support.tampering import sign_log
from tools.client_environments import INTEROP_FOLDER, get_python_environment

pytestmark = pytest.mark.prove


HOOKS = INTEROP_FOLDER / "python" / "schemathesis_hooks.py"
# A fixed seed gives the same cases on every machine. Each failure is reported with its request.
SEED = 1
PHASES = ("examples", "coverage", "fuzzing", "stateful")
ENDS_WITHIN_S = 600
PLENTY = 10**9
UNLIMITED = Limit(PLENTY, 1)


def settings(api_key: str | None) -> str:
    """Return the configuration of a run: real values for half of the parameters, and a key."""
    known = {
        "ticker": ["BTC", "eth", "MATIC"],
        "as_of": ["2026-09-30T10:03:00Z"],
        "id": [f"universe.ETH.enzo.1h.{(NOON - HOUR_MS) // HOUR_MS * 3600}.1"],
    }
    key = f"[auth.openapi]\nbearer = {{ bearer = {api_key!r} }}\n" if api_key else ""
    return "\n".join(
        [
            f"hooks = {str(HOOKS)!r}",
            key,
            *(f"[dictionaries.{name}]\nvalues = {values}" for name, values in known.items()),
            "[parameters]",
            *(f'"query.{name}" = {{ dictionary = "{name}", probability = 0.5 }}' for name in known),
        ]
    )


async def run_schemathesis(folder: Path, address: str, *options: str) -> Any:
    """Run it on `openapi.json` in a folder, and require that no check fails; return its report."""
    python = await asyncio.to_thread(get_python_environment, "schemathesis")
    process = await asyncio.create_subprocess_exec(
        *(str(python.parent / "st"), *options, "--url", address, "--seed", str(SEED)),
        *("--continue-on-failure", "--generation-database", "none", "--no-color"),
        *("--report-json-path", "report.json"),
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await asyncio.wait_for(process.communicate(), ENDS_WITHIN_S)
    assert process.returncode == 0, said.decode()[-8000:]
    return json.loads((folder / "report.json").read_text())


async def check_responses(
    served: RunningService, api_key: str | None, folder: Path, examples: int
) -> None:
    """Sign the log, and run all checks on every operation; the hooks write `hooks.json`."""
    await sign_log(served.market, folder / "log-key.json", served.clock)
    (folder / "openapi.json").write_bytes((await served.client.get("/api/v1/openapi.json")).content)
    (folder / "settings.toml").write_text(settings(api_key))
    report = await run_schemathesis(
        *(folder, served.base_url, "--config-file", "settings.toml", "run", "openapi.json"),
        *("--checks", "all", "--phases", ",".join(PHASES), "--max-examples", str(examples)),
    )
    assert report["operations"]["tested"] == len(ENDPOINTS)
    assert [report["phases"][phase]["status"] for phase in PHASES] == ["success"] * len(PHASES)


@pytest.mark.clause("interop")
async def test_no_response_to_a_live_key_violates_the_document(tmp_path):
    async with run_service(
        tmp_path, make_coverage(), daily_limit=PLENTY, attempt_limit=UNLIMITED
    ) as served:
        await check_responses(served, served.api_key, tmp_path, 150)
    hook_report = json.loads((tmp_path / "hooks.json").read_text())
    assert all(hook_report["excused"].values()), hook_report["excused"]
    for endpoint in ENDPOINTS:
        answered = hook_report["answered"][f"{endpoint.method} {endpoint.path}"]
        assert {success.status for success in endpoint.successes} <= set(answered)
    # The tokens that are claimed were never redeemed, so none is 409.
    assert {200, 400, 404} <= set(hook_report["answered"][f"POST {CLAIM_KEY.path}"])


@pytest.mark.clause("interop")
@pytest.mark.parametrize(
    ("caller", "status"),
    [("without a key", 401), ("with a revoked key", 403), ("with a spent quota", 429)],
)
async def test_no_refusal_of_a_key_violates_the_document(caller, status, tmp_path):
    async with run_service(
        tmp_path, make_coverage(), daily_limit=1, attempt_limit=UNLIMITED
    ) as served:
        await served.get_api("/state")
        if status == 403:
            await served.keys.revoke(max(key.id for key in await served.keys.list()))
        await check_responses(served, served.api_key if status != 401 else None, tmp_path, 5)
    hook_report = json.loads((tmp_path / "hooks.json").read_text())
    assert status in hook_report["answered"]["GET /api/v1/state"]
    assert 200 not in hook_report["answered"]["GET /api/v1/state"]


Schema = dict[str, Any]

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
    return {"description": "A body", "content": {JSON: {"schema": schema}}}


def build_document() -> Schema:
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


@pytest.mark.clause("interop", "11.8")
async def test_no_response_of_an_oauth_route_violates_its_description(tmp_path: Path) -> None:
    document = build_document()
    (tmp_path / "openapi.json").write_text(json.dumps(document))
    async with run_service(tmp_path, make_coverage(), attempt_limit=UNLIMITED) as served:
        report = await run_schemathesis(
            *(tmp_path, served.base_url, "run", "openapi.json", "--checks", ",".join(CHECKS)),
            *("--phases", "coverage,fuzzing", "--max-examples", "40"),
        )
        async with served.access._engine.acquire_connection() as db:
            registered = await fetch_value(db, "SELECT count(*) FROM oauth_clients")
    assert registered > 0
    assert report["operations"]["tested"] == len(document["paths"])
