"""The MCP endpoint: stateless Streamable HTTP with JSON answers over a dispatcher of our own.

The SDK's HTTP app cannot keep SPEC.md (docs/decisions.md); its wire types serve here.
"""

from collections.abc import Iterable

import mcp_types
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mcp_server.arguments import shown
from mcp_server.calls import AnyTool, Calls, quota_headers
from mcp_server.dispatch import Dispatcher
from mcp_server.jsonrpc import RpcError, error_bytes, parsed, result_bytes
from mcp_server.transport import check_headers, read_body, refused
from schemas.errors import ApiError

PATHS = ("/api/v1/mcp", "/api/v1/mcp/")
SERVED_VERSIONS = ("2025-03-26", "2025-06-18", "2025-11-25")


class McpEndpoint:
    """ASGI app of one path; it keeps nothing between requests."""

    def __init__(self, calls: Calls, tools: Iterable[AnyTool]) -> None:
        self._calls = calls
        self._dispatcher = Dispatcher(calls, tools)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        try:
            response = await self._response(scope, receive)
        except ClientDisconnect:
            return
        await response(scope, receive, send)

    async def _response(self, scope: Scope, receive: Receive) -> Response:
        headers = Headers(scope=scope)
        try:
            if scope["method"] != "POST":
                raise refused(405, "The MCP endpoint takes POST alone; it opens no stream.")
            check_headers(headers)
            body = await read_body(receive, headers)
        except ApiError as error:
            allow = {"Allow": "POST"} if error.status == 405 else None
            return _json(self._calls.refusal(error).encode(), error.status, allow)
        return await self._answered(body, headers)

    async def _answered(self, body: bytes, headers: Headers) -> Response:
        if (refusal := _unserved_version(headers)) is not None:
            return _json(error_bytes(refusal), 400)
        try:
            message = parsed(body)
            if message.is_notification:
                return Response(status_code=202)
            answer = await self._dispatcher.dispatched(message, headers)
        except RpcError as error:
            return _json(error_bytes(error))
        body = result_bytes(message.request_id, answer.result)
        return _json(body, headers=quota_headers(answer.quota))


def _unserved_version(headers: Headers) -> RpcError | None:
    requested = headers.get("mcp-protocol-version")
    if requested is None or requested in SERVED_VERSIONS:
        return None
    return RpcError(
        mcp_types.INVALID_PARAMS,
        f"Unsupported MCP-Protocol-Version {shown(requested)}; "
        f"supported: {', '.join(SERVED_VERSIONS)}.",
        data={"supported": list(SERVED_VERSIONS), "requested": requested[:60]},
    )


def _json(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status, headers, media_type="application/json")
