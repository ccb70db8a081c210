"""The MCP endpoint: stateless Streamable HTTP with JSON answers over a dispatcher of our own.

The SDK's HTTP app cannot keep SPEC.md (docs/decisions.md); its wire types serve here.
"""

from collections.abc import Iterable

import mcp_types
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from mcp_server.dispatcher import Dispatcher
from mcp_server.jsonrpc import RpcError, error_bytes, parsed, result_parts
from schemas.errors import ApiError
from serving.arguments import shown
from serving.http import (
    JSON_TYPE,
    REQUEST_ID,
    Fields,
    body_at_hand,
    check_media,
    fields,
    quota_headers,
    read_body,
    refused,
    respond,
)
from serving.tool_runner import AnyTool, Calls

PATHS = ("/api/v1/mcp", "/api/v1/mcp/")
SERVED_VERSIONS = ("2025-03-26", "2025-06-18", "2025-11-25")
_SERVED = frozenset(version.encode() for version in SERVED_VERSIONS)


class McpEndpoint:
    """ASGI app of one path; it keeps nothing between requests."""

    def __init__(self, calls: Calls, tools: Iterable[AnyTool]) -> None:
        self._calls = calls
        self._dispatcher = Dispatcher(calls, tools)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        given = fields(scope)
        try:
            if scope["method"] != "POST":
                raise refused(405, "The MCP endpoint takes POST alone; it opens no stream.")
            check_media(given)
            body = body_at_hand(scope) or await read_body(scope, receive)
        except ClientDisconnect:
            return
        except ApiError as error:
            headers = [JSON_TYPE, (b"allow", b"POST")] if error.status == 405 else [JSON_TYPE]
            await respond(scope, send, error.status, headers, self._calls.refusal(error))
            return
        status, headers = 200, [JSON_TYPE]
        parts: tuple[bytes, ...] = ()
        try:
            _check_version(given)
            message = parsed(body)
            if message.is_notification:
                status, headers = 202, []
            else:
                request_id = scope.get(REQUEST_ID)
                answer = await self._dispatcher.dispatched(message, given, request_id)
                headers += quota_headers(answer.quota)
                parts = result_parts(message.request_id, answer.result)
        except RpcError as error:
            status, parts = error.status, (error_bytes(error),)
        await respond(scope, send, status, headers, *parts)


def _check_version(given: Fields) -> None:
    version = given.get(b"mcp-protocol-version")
    if version is None or version in _SERVED:
        return
    requested = version.decode("latin-1")
    raise RpcError(
        mcp_types.INVALID_PARAMS,
        f"Unsupported MCP-Protocol-Version {shown(requested)}; "
        f"supported: {', '.join(SERVED_VERSIONS)}.",
        status=400,
        data={"supported": list(SERVED_VERSIONS), "requested": requested[:60]},
    )
