"""The OAuth routes that programs call: metadata, registration, tokens and revocation.

Errors have the bodies of RFC 6749 and RFC 7591, not the one error body of the API.
"""

import json
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote_plus, urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from access.oauth.clients import ClientRegistry, describe_registration
from access.oauth.parameters import (
    RESOURCE_PATH,
    SCOPE,
    OAuthClientError,
    OAuthError,
    find_repeated,
)
from access.oauth.tokens import TokenIssuer
from access.throttle import Throttle
from mcp_server.protected_endpoint import RESOURCE_METADATA_PATH
from schemas.errors import ApiError
from serving.error_responses import Responder, guard_route
from serving.http import CACHE_ONE_MINUTE, MAX_FORM_BYTES, get_address, is_json, read_body
from serving.json_text import JSON_EXCESS, has_json_excess
from serving.tool_runner import ToolRunner

AUTHORIZE_PATH = "/oauth/authorize"
TOKEN_PATH = "/oauth/token"
REGISTER_PATH = "/oauth/register"
REVOKE_PATH = "/oauth/revoke"
SERVER_METADATA_PATH = "/.well-known/oauth-authorization-server"
MAX_FORM_FIELDS = 30
FORM = "application/x-www-form-urlencoded"
BAD_METADATA: Final = "invalid_client_metadata"
# RFC 6749 requires both.
NO_STORE_HEADERS = {"Cache-Control": "no-store", "Pragma": "no-cache"}


@dataclass(frozen=True, slots=True)
class OAuthEndpoints:
    """The endpoints; `failures` limits the refused requests of a client address."""

    clients: ClientRegistry
    tokens: TokenIssuer
    failures: Throttle

    async def exchange(self, request: Request) -> Response:
        """Exchange a code or a refresh token for tokens (RFC 6749)."""
        try:
            form = await _read_form(request)
            tokens = await self.tokens.exchange(form)
        except OAuthError as error:
            return await self._refuse(request, error)
        return JSONResponse(tokens, headers=NO_STORE_HEADERS)

    async def revoke(self, request: Request) -> Response:
        """Revoke the connection of a token (RFC 7009)."""
        try:
            await self.tokens.revoke(await _read_form(request))
        except OAuthError as error:
            return await self._refuse(request, error)
        return Response(headers=NO_STORE_HEADERS)

    async def register(self, request: Request) -> Response:
        """Register a client (RFC 7591)."""
        body = await read_body(request.scope, request.receive)
        try:
            if not is_json(request.headers.get("content-type", "").encode("latin-1")):
                raise OAuthClientError(BAD_METADATA, "Send the metadata as JSON.")
            if has_json_excess(body):
                raise OAuthClientError(BAD_METADATA, f"The body has {JSON_EXCESS}.")
            try:
                metadata = json.loads(body.decode())
            except ValueError:
                message = "The body must be a JSON object in UTF-8."
                raise OAuthClientError(BAD_METADATA, message) from None
            client = await self.clients.register(metadata, get_address(request))
        except OAuthClientError as error:
            return _render_error(400, error.error, error.message)
        return JSONResponse(describe_registration(client), 201, NO_STORE_HEADERS)

    async def _refuse(self, request: Request, error: OAuthError) -> Response:
        # Only refused requests count: one host may refresh the tokens of many members.
        await self.failures.take_attempt(get_address(request))
        response = _render_error(error.status, error.error, error.message)
        if error.status == 401 and "authorization" in request.headers:
            response.headers["WWW-Authenticate"] = "Basic"
        return response


def build_oauth_routes(endpoints: OAuthEndpoints, runner: ToolRunner) -> list[Route]:
    """Return the routes of the metadata documents and of the endpoints."""
    base_url = runner.context.base_url
    # Below a path of its own, the documents of a service are at paths that end with that path.
    base_path = urlsplit(base_url).path
    # RFC 8414.
    server: dict[str, object] = {
        "issuer": base_url,
        "authorization_endpoint": f"{base_url}{AUTHORIZE_PATH}",
        "token_endpoint": f"{base_url}{TOKEN_PATH}",
        "registration_endpoint": f"{base_url}{REGISTER_PATH}",
        "revocation_endpoint": f"{base_url}{REVOKE_PATH}",
        "scopes_supported": [SCOPE],
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": ["authorization_code", "refresh_token"],
        # Without `none`, one large host does not use metadata documents of clients.
        "token_endpoint_auth_methods_supported": ["none"],
        "revocation_endpoint_auth_methods_supported": ["none"],
        "code_challenge_methods_supported": ["S256"],
        "authorization_response_iss_parameter_supported": True,
        "client_id_metadata_document_supported": endpoints.clients.documents is not None,
        "service_documentation": f"{base_url}/api/v1",
    }
    # RFC 9728.
    resource: dict[str, object] = {
        "resource": f"{base_url}{RESOURCE_PATH}",
        "authorization_servers": [base_url],
        "scopes_supported": [SCOPE],
        "bearer_methods_supported": ["header"],
        "resource_name": "Signals",
        "resource_documentation": f"{base_url}/api/v1",
    }
    documents = {f"{SERVER_METADATA_PATH}{path}": server for path in ("", base_path)}
    for path in ("", RESOURCE_PATH, f"{base_path}{RESOURCE_PATH}"):
        documents[f"{RESOURCE_METADATA_PATH}{path}"] = resource
    for path in (RESOURCE_PATH, f"{base_path}{RESOURCE_PATH}"):
        slashed = {**resource, "resource": f"{resource['resource']}/"}
        documents[f"{RESOURCE_METADATA_PATH}{path}/"] = slashed
    posts: dict[str, Responder] = {
        TOKEN_PATH: endpoints.exchange,
        REVOKE_PATH: endpoints.revoke,
        REGISTER_PATH: endpoints.register,
    }
    return [
        *(
            Route(
                path,
                JSONResponse(each, headers={"Cache-Control": CACHE_ONE_MINUTE}),
                methods=["GET"],
            )
            for path, each in documents.items()
        ),
        *(
            Route(path, guard_route(path, runner, post, on_error=_render_failure), methods=["POST"])
            for path, post in posts.items()
        ),
    ]


async def _read_form(request: Request) -> Mapping[str, str]:
    """Return the parameters of a form, and the client id of Basic authentication as one."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != FORM:
        raise OAuthError("invalid_request", f"Content-Type: must be {FORM}")
    body = await read_body(request.scope, request.receive, MAX_FORM_BYTES)
    try:
        # Parameters without a value count as omitted (RFC 6749, section 3.2).
        pairs = parse_qsl(body.decode("ascii"), max_num_fields=MAX_FORM_FIELDS, errors="strict")
    except ValueError:
        raise OAuthError(
            "invalid_request", f"the body must be a form of at most {MAX_FORM_FIELDS} parameters"
        ) from None
    if find_repeated(pairs):
        raise OAuthError("invalid_request", "a parameter is repeated: send each one once")
    form = dict(pairs)
    authorization = request.headers.get("authorization")
    if authorization is not None and "client_id" not in form:
        scheme, _, encoded = authorization.strip().partition(" ")
        try:
            text = b64decode(encoded, validate=True).decode() if scheme.lower() == "basic" else None
        except (Base64Error, UnicodeDecodeError):
            text = None
        if text is None:
            message = "Authorization: send client_id in the body instead"
            raise OAuthError("invalid_client", message)
        # The secret means nothing, as none is issued.
        form["client_id"] = unquote_plus(text.partition(":")[0])
    return form


def _render_error(status: int, error: str, message: str) -> Response:
    # RFC 6749 (section 5.2) excludes other characters, which a quoted value could contain.
    text = "".join(char if " " <= char <= "~" and char not in '"\\' else "'" for char in message)
    return JSONResponse(
        {"error": error, "error_description": text}, status, headers=NO_STORE_HEADERS
    )


def _render_failure(request: Request, error: ApiError) -> Response:
    """Return the response of a request that failed for a reason outside OAuth."""
    codes = {429: "temporarily_unavailable", 500: "server_error", 503: "temporarily_unavailable"}
    response = _render_error(
        error.status, codes.get(error.status, "invalid_request"), error.message
    )
    response.headers.update(error.retry_headers)
    return response
