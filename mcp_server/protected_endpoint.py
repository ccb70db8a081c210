"""The MCP endpoint for hosts that sign in with OAuth: without a live key or token it answers 401.

It passes each request on to `McpEndpoint`, so that both addresses give the same results.
"""

import re
from collections.abc import Callable, Sequence

from starlette.types import Receive, Scope, Send

from access.keys import identify_key, invalid_key_error
from access.oauth.access_tokens import AccessTokens
from access.oauth.parameters import RESOURCE_PATH, SCOPE
from mcp_server.endpoint import McpEndpoint
from schemas.errors import ApiError
from serving.http import (
    CORS_KEY,
    ERROR_KEY,
    EXCHANGE_KEY,
    JSON_TYPE,
    KEY_HASH_KEY,
    HeaderList,
    HeaderMap,
    InlineExchange,
    read_headers,
    respond,
    send_parts,
)
from serving.tool_runner import ToolRunner
from store.errors import StoreError

PATHS = (RESOURCE_PATH, f"{RESOURCE_PATH}/")
RESOURCE_METADATA_PATH = "/.well-known/oauth-protected-resource"
CREDENTIAL_CODES = frozenset({"missing_key", "invalid_key", "revoked_key"})
QUOTA_HEADER = b"x-ratelimit-limit"

_TOKEN_PATTERN = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +(at_[A-Za-z0-9_-]{43}) *")


class ProtectedMcpEndpoint:
    """ASGI app: identifies the caller by access token or key, and runs `McpEndpoint` for it."""

    def __init__(self, endpoint: McpEndpoint, tokens: AccessTokens, runner: ToolRunner) -> None:
        self._endpoint = endpoint
        self._tokens = tokens
        self._runner = runner
        metadata = f"{runner.context.base_url}{RESOURCE_METADATA_PATH}{RESOURCE_PATH}"
        self._challenge = f'Bearer resource_metadata="{metadata}", scope="{SCOPE}"'

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one HTTP request."""
        try:
            key_hash = scope[KEY_HASH_KEY] = await self._identify(read_headers(scope))
            answer = await self._run(scope, receive, send)
            if answer is None:
                return
            await self._check_key(scope, answer, key_hash)
        except ApiError as error:
            await self._refuse(scope, send, error)
        except StoreError as failure:
            outage = self._runner.log_store_failure(failure, RESOURCE_PATH)
            await self._refuse(scope, send, outage)
        else:
            await send_parts(scope, send, answer.status, answer.headers, answer.parts)

    async def _identify(self, headers: HeaderMap) -> bytes:
        """Return the hash of the caller's key; ApiError 401 if there is none."""
        authorization = headers.get(b"authorization")
        if authorization is not None and (match := _TOKEN_PATTERN.fullmatch(authorization)):
            return await self._tokens.find_key_hash(match[1].decode())
        api_key = headers.get(b"x-api-key")
        return identify_key(
            None if authorization is None else authorization.decode("latin-1"),
            None if api_key is None else api_key.decode("latin-1"),
        )

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> "HeldResponse | None":
        """Return the endpoint's response; None if the client disconnected."""
        inner, cors = scope.get(EXCHANGE_KEY), scope.pop(CORS_KEY, None)
        held = scope[EXCHANGE_KEY] = HeldResponse(inner)
        try:
            await self._endpoint(scope, receive, send)
        finally:
            scope[EXCHANGE_KEY] = inner
            if cors is not None:
                scope[CORS_KEY] = cors
        return held if held.status else None

    async def _check_key(self, scope: Scope, answer: "HeldResponse", key_hash: bytes) -> None:
        """Raise ApiError if the key of a request is not live."""
        # Counting a call has checked its key, and put the quota into the headers. Other requests,
        # such as tools/list, are not counted, so their key is looked up.
        error = scope.get(ERROR_KEY)
        if isinstance(error, ApiError) and error.code in CREDENTIAL_CODES:
            raise error
        is_counted = any(name == QUOTA_HEADER for name, _ in answer.headers)
        if not is_counted and not await self._tokens.is_live(key_hash):
            raise invalid_key_error("The API key or connection is unknown or was revoked.")

    async def _refuse(self, scope: Scope, send: Send, error: ApiError) -> None:
        scope[ERROR_KEY] = error
        headers, status = [JSON_TYPE], error.status
        if error.code in CREDENTIAL_CODES:
            status = 401
            reason = "" if error.code == "missing_key" else ', error="invalid_token"'
            headers.append((b"www-authenticate", f"{self._challenge}{reason}".encode()))
        await respond(scope, send, status, headers, self._runner.format_error(error))


class HeldResponse:
    """An `InlineExchange` that keeps the response back, so that it can still be replaced."""

    __slots__ = ("_inner", "headers", "parts", "status")

    def __init__(self, inner: InlineExchange | None) -> None:
        self._inner = inner
        self.status = 0
        self.headers: HeaderList = []
        self.parts: Sequence[bytes] = ()

    @property
    def on_disconnect(self) -> Callable[[], object] | None:
        """Called if the client disconnects before the response."""
        return None if self._inner is None else self._inner.on_disconnect

    @on_disconnect.setter
    def on_disconnect(self, call: Callable[[], object] | None) -> None:
        if self._inner is not None:
            self._inner.on_disconnect = call

    def take_body(self) -> bytes | None:
        """Return the whole body, or None if it has not arrived yet."""
        return None if self._inner is None else self._inner.take_body()

    def try_send(self, status: int, headers: HeaderList, parts: Sequence[bytes]) -> bool:
        """Keep a response."""
        self.status, self.headers, self.parts = status, headers, parts
        return True
