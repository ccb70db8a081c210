"""The bridge for hosts that start local commands alone: MCP over stdio to a service's endpoint.

It hands on each request and its answer as they are and keeps nothing between them. Whatever the
service does not answer as MCP becomes an error that names it, and the next request tries anew.
"""

import asyncio
import os

import anyio
import httpx2
import structlog
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from schemas.errors import ApiError
from service.commands.service_address import ENDPOINT, FACE, TIMEOUT, one_line
from service.processes.shutdown import SIGNALS
from serving.tool_runner import error_text

Answer = JSONRPCResponse | JSONRPCError

log = structlog.get_logger("stdio")


class Remote:
    """The endpoint of a service, asked with a key, or without one where that is empty."""

    def __init__(self, address: str, api_key: str) -> None:
        self._docs = address + FACE
        self._url = address + ENDPOINT
        self._api_key = api_key
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        self.client = httpx2.AsyncClient(headers=headers, follow_redirects=False, timeout=TIMEOUT)

    async def answer(self, request: JSONRPCRequest) -> Answer:
        """Return what the service answers a request, or why it gives no answer."""
        body = request.model_dump_json(exclude_unset=True)
        try:
            response = await self.client.post(self._url, content=body)
        except httpx2.HTTPError as error:
            reason = f"{type(error).__name__} {error}".strip()
            return self._failed(
                request,
                f"{self._url} did not answer: {reason}. Start the service there "
                "(`signals serve`), or give its address with --url.",
            )
        answer = _as_answer(response, request.id)
        return self._failed(request, self._refusal(response)) if answer is None else answer

    def _refusal(self, response: httpx2.Response) -> str:
        """Return what an answer that is no MCP says, and what to do about it."""
        said = f"{self._url} answered {response.status_code}"
        if response.has_redirect_location:
            return (
                f"{said}, a redirect to {_host(response.headers['location'])}, which is not "
                "followed, for the key would travel along. If you trust that address, "
                "give it with --url."
            )
        if (message := _message(response)) is not None:
            return f"{said}: {message}"
        if response.status_code in (401, 403):
            return f"{said}; see the key in SIGNALS_API_KEY."
        kind = response.headers.get("content-type", "without a content type")
        return f"{said} with no MCP ({kind}); is --url the address of a signal service?"

    def _failed(self, request: JSONRPCRequest, text: str) -> Answer:
        """Tell a failure where a model reads it: a call gets a result, all else an error."""
        text = one_line(text, self._api_key)
        log.warning("not_answered", method=request.method, why=text)
        if request.method != "tools/call":
            return _error(request.id, INTERNAL_ERROR, text)
        error = ApiError("unavailable", text, 503)
        result = {
            "content": [{"type": "text", "text": error_text(error, self._docs).decode()}],
            "isError": True,
            "_meta": {"signals/error": error.code, "signals/status": error.status},
        }
        return JSONRPCResponse(jsonrpc="2.0", id=request.id, result=result)


async def bridge(address: str, api_key: str) -> int:
    """Answer what comes on standard input until it ends, or a signal ends it at once."""
    for number in SIGNALS:
        # Nothing less ends the thread that waits for standard input; nothing is left to close.
        asyncio.get_running_loop().add_signal_handler(number, os._exit, 0)
    remote = Remote(address, api_key)
    try:
        async with (
            remote.client,
            stdio_server() as (requests, answers),
            answers,
            anyio.create_task_group() as tasks,
        ):

            async def answered(request: JSONRPCRequest) -> None:
                await answers.send(SessionMessage(await remote.answer(request)))

            async for given in requests:
                if isinstance(given, Exception):
                    why = "Parse error: the line is no JSON-RPC message."
                    await answers.send(SessionMessage(_error(None, PARSE_ERROR, why)))
                elif isinstance(given.message, JSONRPCRequest):
                    tasks.start_soon(answered, given.message)
    except* (BrokenPipeError, anyio.BrokenResourceError):
        log.info("host_gone")
    return 0


def _as_answer(response: httpx2.Response, request_id: RequestId) -> Answer | None:
    """Return the JSON-RPC answer in a body, None where it holds none."""
    try:
        message = jsonrpc_message_adapter.validate_json(response.content)
    except ValidationError:
        return None
    if not isinstance(message, JSONRPCResponse | JSONRPCError):
        return None
    return message.model_copy(update={"id": request_id})


def _message(response: httpx2.Response) -> str | None:
    """Return the message of the service's own Error object, None where the body is none."""
    try:
        message = response.json()["message"]
    except (ValueError, RecursionError, TypeError, KeyError):
        return None
    return message if isinstance(message, str) else None


def _host(location: str) -> str:
    try:
        return httpx2.URL(location).host or "its own host"
    except httpx2.InvalidURL:
        return "no address"


def _error(request_id: RequestId | None, code: int, message: str) -> JSONRPCError:
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=code, message=message))
