"""The MCP endpoint for hosts that sign in with OAuth: without a live key or token it answers 401.

It passes each request on to `McpEndpoint`, so that both addresses give the same results.
"""

import re

from starlette.types import Receive, Scope, Send

from access.keys_and_quota import identify_key, invalid_key_error
from access.oauth.parameters import RESOURCE_PATH, SCOPE
from access.oauth.tokens import AccessTokens
from mcp_server.endpoint import McpEndpoint
from schemas.errors import ApiError
from serving.http import (
    IS_KEY_LIVE,
    JSON_TYPE,
    KEY_HASH_KEY,
    keep_error,
    read_headers,
    respond,
)
from serving.tool_runner import ToolRunner
from store.store_errors import StoreError

PATHS = (RESOURCE_PATH, f"{RESOURCE_PATH}/")
RESOURCE_METADATA_PATH = "/.well-known/oauth-protected-resource"
CREDENTIAL_CODES = frozenset({"missing_key", "invalid_key", "revoked_key"})

_TOKEN_PATTERN = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +(at_[A-Za-z0-9_-]{43}) *")


class ProtectedMcpEndpoint:
    """ASGI app: identifies the caller by access token or key, and runs `McpEndpoint` for it."""

    def __init__(self, endpoint: McpEndpoint, tokens: AccessTokens, runner: ToolRunner) -> None:
        self._endpoint = endpoint
        self._tokens = tokens
        self._runner = runner
        self._metadata = f"{runner.context.base_url}{RESOURCE_METADATA_PATH}{RESOURCE_PATH}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one HTTP request."""
        headers = read_headers(scope)
        try:
            authorization, api_key = headers.get(b"authorization"), headers.get(b"x-api-key")
            if authorization is not None and (match := _TOKEN_PATTERN.fullmatch(authorization)):
                key_hash = await self._tokens.find_key_hash(match[1])
            else:
                key_hash = identify_key(
                    None if authorization is None else authorization.decode("latin-1"),
                    None if api_key is None else api_key.decode("latin-1"),
                )
            try:
                is_live = await self._tokens.is_live(key_hash)
            except StoreError:
                # The endpoint reports the outage, to models in a result: it can count no call.
                is_live = True
            if not is_live:
                raise invalid_key_error("The API key or connection is unknown or was revoked.")
        except ApiError as refusal:
            error = refusal
        except StoreError as failure:
            error = self._runner.log_store_failure(failure, RESOURCE_PATH)
        else:
            scope[KEY_HASH_KEY] = key_hash
            await self._endpoint(scope, receive, send)
            return
        keep_error(scope, error)
        fields, status = [JSON_TYPE], error.status
        if error.code in CREDENTIAL_CODES:
            status, scope[IS_KEY_LIVE] = 401, False
            reason = "" if error.code == "missing_key" else ', error="invalid_token"'
            # Some clients compare the resource of the document to the address they were given.
            slash = "/" if scope["path"].endswith("/") else ""
            challenge = f'Bearer resource_metadata="{self._metadata}{slash}", scope="{SCOPE}"'
            fields.append((b"www-authenticate", f"{challenge}{reason}".encode()))
        await respond(scope, send, status, fields, self._runner.format_error(error))
