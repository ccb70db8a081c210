"""`signals stdio`: bridges MCP over stdio to a service, for hosts that only start commands.

The bodies of requests and responses pass unchanged, and only a session id is kept between them. If
the service does not answer with MCP, the host gets an error that says why.
"""

import asyncio
import os
import sys
from contextlib import suppress

import anyio
import structlog
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
)
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PROTOCOL_VERSION_META_KEY,
    ErrorData,
    JSONRPCError,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from mcp_server.jsonrpc import RpcError, format_error_response, parse_message
from schemas.errors import ApiError
from schemas.version import VERSION
from service.config.settings import find_proxy
from service.processes.lifecycle import SHUTDOWN_SIGNALS
from serving.tool_runner import format_error_body
from verifier.client import API_PATH, MCP_PATH, ServiceClient, ServiceError

# With it the service knows a host that shows views again.
SESSION_HEADER = "Mcp-Session-Id"
USER_AGENT = f"signals/{VERSION}"
RpcResponse = JSONRPCResponse | JSONRPCError

log = structlog.get_logger("stdio")


class RemoteEndpoint:
    """The MCP endpoint of a service; without a key if `api_key` is empty."""

    def __init__(self, address: str, api_key: str) -> None:
        self._docs_url = address + API_PATH
        self._session: dict[str, str] = {}
        self.client = ServiceClient(address, api_key, USER_AGENT, find_proxy(address))

    async def forward_request(self, request: JSONRPCRequest) -> RpcResponse:
        """Send a request to the service; return its response, or an error that says why not."""
        body = request.model_dump_json(exclude_unset=True)
        headers = {"Content-Type": "application/json", **_build_routing_headers(request)}
        headers |= self._session
        try:
            response = await self.client.send("POST", MCP_PATH, content=body, headers=headers)
        except ServiceError as error:
            return self._build_failure(request, str(error))
        if SESSION_HEADER in response.headers:
            self._session = {SESSION_HEADER: response.headers[SESSION_HEADER]}
        with suppress(ValidationError):
            message = jsonrpc_message_adapter.validate_json(response.content)
            if isinstance(message, JSONRPCResponse | JSONRPCError):
                # The service answers a malformed request with a null id, but the host has its own.
                return message.model_copy(update={"id": request.id})
        return self._build_failure(request, str(self.client.describe_refusal(response)))

    def _build_failure(self, request: JSONRPCRequest, text: str) -> RpcResponse:
        """Return a failure: a result with `isError` for a tool call, else a JSON-RPC error."""
        # Only results reach the model; but a failed `initialize` must look failed to the host.
        log.warning("request_failed", method=request.method, why=text)
        if request.method != "tools/call":
            return JSONRPCError(
                jsonrpc="2.0", id=request.id, error=ErrorData(code=INTERNAL_ERROR, message=text)
            )
        error = ApiError("unavailable", text, 503)
        return JSONRPCResponse(
            jsonrpc="2.0",
            id=request.id,
            result={
                "content": [
                    {"type": "text", "text": format_error_body(error, self._docs_url).decode()}
                ],
                "isError": True,
                "_meta": {"signals/error": error.code, "signals/status": error.status},
            },
        )


async def bridge_stdio(address: str, api_key: str) -> int:
    """Answer requests on standard input until it ends or a signal arrives."""
    for number in SHUTDOWN_SIGNALS:
        # Only this ends the thread that blocks on standard input. There is nothing to close.
        asyncio.get_running_loop().add_signal_handler(number, os._exit, 0)
    remote = RemoteEndpoint(address, api_key)
    lines, responses = anyio.wrap_file(sys.stdin.buffer), anyio.wrap_file(sys.stdout.buffer)

    async def respond(response: bytes) -> None:
        # One write per line, so that lines of several requests are not mixed.
        await responses.write(response + b"\n")
        await responses.flush()

    async def handle_request(request: JSONRPCRequest) -> None:
        response = await remote.forward_request(request)
        await respond(response.model_dump_json(by_alias=True, exclude_unset=True).encode())

    try:
        async with remote.client, anyio.create_task_group() as tasks:
            async for line in lines:
                try:
                    request = parse_request(line)
                except RpcError as error:
                    await respond(format_error_response(error))
                else:
                    if request is not None:
                        tasks.start_soon(handle_request, request)
    except* BrokenPipeError:
        log.info("host_gone")
        # The interpreter flushes standard output again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def parse_request(line: bytes) -> JSONRPCRequest | None:
    """Return the request on a line, None if the message needs no response.

    Raise RpcError as the service does, and if the id is null: a host could not tell the response.
    """
    message = parse_message(line)
    if message is None or message.is_notification:
        return None
    if message.request_id is None:
        raise RpcError(INVALID_REQUEST, "Invalid request: id must be a string or an integer.")
    try:
        return JSONRPCRequest.model_validate_json(line)
    except ValidationError:
        raise RpcError(
            INVALID_PARAMS,
            "Invalid params: params must be an object, and all text Unicode.",
            message.request_id,
        ) from None


def _build_routing_headers(request: JSONRPCRequest) -> dict[str, str]:
    """Return the headers that repeat a request which names its protocol version in `_meta`."""
    # Revision 2026-07-28 requires them over HTTP, while a host on stdio sends only the body. Older
    # requests have neither.
    params = request.params or {}
    meta = params.get("_meta")
    version = meta.get(PROTOCOL_VERSION_META_KEY) if isinstance(meta, dict) else None
    if not isinstance(version, str):
        return {}
    headers = {MCP_PROTOCOL_VERSION_HEADER: version, MCP_METHOD_HEADER: request.method}
    name = params.get(NAME_BEARING_METHODS.get(request.method, ""))
    if isinstance(name, str):
        headers[MCP_NAME_HEADER] = name
    return {key: encode_header_value(value) for key, value in headers.items()}
