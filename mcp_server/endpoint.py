"""The MCP endpoint: stateless Streamable HTTP with JSON responses.

It uses the wire types of the MCP SDK but not its HTTP app, which cannot meet the contract: quota
headers, the error body and the status codes of docs/contract.md.
"""

from collections.abc import Iterable, Sequence

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from mcp_server.chat_views import ChatViews
from mcp_server.dispatcher import Dispatcher
from mcp_server.jsonrpc import (
    RpcError,
    format_error_response,
    parse_message,
)
from mcp_server.protocol_legs import (
    LEGACY,
    MODERN,
    MODERN_HEADER,
    check_version,
    choose_leg,
    read_version,
)
from schemas.errors import ApiError
from serving.http import (
    JSON_TYPE,
    check_media_types,
    http_error,
    keep_error,
    read_body,
    read_headers,
    respond,
)
from serving.json_text import to_json, to_utf8
from serving.tool_runner import AnyTool, ToolRunner

# Both spellings are served, because not every client repeats a POST after a redirect.
PATHS = ("/api/v1/mcp", "/api/v1/mcp/")


class McpEndpoint:
    """ASGI app of the MCP endpoint. It keeps no state between requests."""

    def __init__(
        self, runner: ToolRunner, tools: Iterable[AnyTool], views: ChatViews | None = None
    ) -> None:
        self._runner = runner
        self._dispatcher = Dispatcher(runner, tools, views)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one HTTP request."""
        request_headers = read_headers(scope)
        try:
            # MCP allows 405 on GET and DELETE from a server without streams and sessions.
            if scope["method"] != "POST":
                raise http_error(405, "The MCP endpoint accepts only POST; it has no event stream.")
            names = b"content-type", b"accept", b"content-encoding"
            check_media_types(*[request_headers.get(name, b"") for name in names])
            body = await read_body(scope, receive)
        except ClientDisconnect:
            return
        except ApiError as error:
            keep_error(scope, error)
            headers = [JSON_TYPE, (b"allow", b"POST")] if error.status == 405 else [JSON_TYPE]
            await respond(scope, send, error.status, headers, self._runner.format_error(error))
            return
        status, headers = 200, [JSON_TYPE]
        parts: Sequence[bytes] = ()
        version = read_version(request_headers)
        # Until the body is read, by the headers.
        leg = MODERN if version == MODERN_HEADER else LEGACY
        try:
            try:
                message = parse_message(body)
            except RpcError:
                check_version(version)
                raise
            # The body of a 202 is empty. A malformed notification is accepted too: JSON-RPC never
            # answers one, and none is executed. A response answers no request of this server.
            if message is None or message.is_notification:
                check_version(version)
                status, headers = 202, []
            else:
                leg = choose_leg(message, version)
                result, more = await self._dispatcher.dispatch(message, leg, request_headers, scope)
                headers += more
                rpc_id = message.request_id
                text = b"%d" % rpc_id if type(rpc_id) is int else to_utf8(to_json(rpc_id))
                parts = b'{"jsonrpc":"2.0","id":%b,"result":' % text, *result, b"}"
        except RpcError as error:
            keep_error(scope, error)
            status = leg.statuses.get(error.code, error.status)
            parts = (format_error_response(error, has_null_id=leg.has_null_id),)
        await respond(scope, send, status, headers, *parts)
