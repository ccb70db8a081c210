"""The MCP methods: initialize, ping, tools/list and tools/call, each answered as JSON text."""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import mcp_types
import structlog

from mcp_server.jsonrpc import Message, Params, RpcError
from schemas.coverage import Coverage
from schemas.errors import ApiError, failure_facts
from schemas.usage import Allowance
from serving.arguments import shown, suggestion
from serving.http import Fields
from serving.json_text import to_json
from serving.tool import listed
from serving.tool_runner import AnyTool, Calls, Outcome

PROTOCOL_VERSION = "2025-06-18"
SERVER_VERSION = "0.1.0"
METHODS = ("initialize", "ping", "tools/list", "tools/call")
INSTRUCTIONS = (
    "Readings of seven trading indicators over a fixed universe of crypto, stocks and metals on "
    "1h, 4h and 1d, recomputed hourly at minute :03 UTC. Informational readings, not investment "
    "advice. Start with signals_get_state (where things stand; filter by ticker or direction, the "
    "whole board is large), then poll signals_get_signals with since = the last next_cursor, at "
    "most every 900 seconds. Every answer's meta says its source (simulated, recorded or live), "
    "and with readings as_of, next_update and whether they are stale: tell the user when data are "
    "simulated or stale. A refusal names the accepted values and the next step. All but catalog "
    "and stats need an API key in the header Authorization: Bearer."
)

log = structlog.get_logger("mcp")

_INITIALIZED = mcp_types.InitializeResult(
    protocol_version=PROTOCOL_VERSION,
    capabilities=mcp_types.ServerCapabilities(tools=mcp_types.ToolsCapability(list_changed=False)),
    server_info=mcp_types.Implementation(name="signals", version=SERVER_VERSION),
    instructions=INSTRUCTIONS,
)
INITIALIZE_RESULT = _INITIALIZED.model_dump_json(by_alias=True, exclude_unset=True).encode()


class Dispatched(NamedTuple):
    """The result of a request as JSON text in parts, and what it left of a key's quota."""

    result: tuple[bytes, ...]
    quota: Allowance | None = None


class Dispatcher:
    """Answers requests over the tools that it is handed."""

    def __init__(self, calls: Calls, tools: Iterable[AnyTool]) -> None:
        self._calls = calls
        self._tools = {tool.name: tool for tool in tools}
        self._listed = lru_cache(maxsize=2)(self._tools_list)

    async def dispatched(
        self, message: Message, given: Fields, request_id: bytes | None
    ) -> Dispatched:
        """Return what a request came to; RpcError for what the protocol refuses.

        `request_id` is that of the HTTP request, which the result of a call repeats.
        """
        try:
            if message.method != "tools/call":
                return await self._result(message)
            params = _params(message)
            tool, arguments = self._tool(params), _arguments(params)
            outcome = await self._calls.outcome(tool, given, repr(arguments), lambda: arguments)
            return Dispatched(_tool_result(outcome, request_id), outcome.quota)
        except RpcError as error:
            error.request_id = message.request_id
            raise
        except Exception as error:
            log.error("mcp_request_failed", method=message.method, **failure_facts(error))
            raise RpcError(mcp_types.INTERNAL_ERROR, "internal error", message.request_id) from None

    async def _result(self, message: Message) -> Dispatched:
        if message.method not in METHODS:
            raise RpcError(
                mcp_types.METHOD_NOT_FOUND,
                f"Unknown method {shown(message.method)}; supported: {', '.join(METHODS)}.",
            )
        params = _params(message)
        if message.method == "tools/list" and params.get("cursor") is not None:
            raise _malformed_params("cursor: all tools are on one page, leave it out")
        if message.method == "tools/list":
            return Dispatched((self._listed(await self._calls.context.boards.coverage()),))
        return Dispatched((INITIALIZE_RESULT if message.method == "initialize" else b"{}",))

    def _tools_list(self, coverage: Coverage | None) -> bytes:
        """Return the result of tools/list over a published coverage, the same text every time."""
        tools = [listed(tool, coverage) for tool in self._tools.values()]
        shown = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools]
        return to_json({"tools": shown}).encode()

    def _tool(self, params: Params) -> AnyTool:
        name = params.get("name")
        if not isinstance(name, str):
            raise _malformed_params("name must be the name of a tool")
        if name not in self._tools:
            hint = suggestion(name, self._tools)
            raise _malformed_params(f"unknown tool {shown(name)}{hint}; tools/list names them")
        return self._tools[name]


def _params(message: Message) -> Params:
    params = message.params
    if params is None:
        return {}
    if not isinstance(params, dict):
        raise _malformed_params("params must be an object")
    return params


def _arguments(params: Params) -> dict[str, Any]:
    arguments = params.get("arguments")
    if arguments is None:
        return {}
    if not isinstance(arguments, dict):
        raise _malformed_params("arguments must be an object")
    return arguments


def _tool_result(outcome: Outcome, request_id: bytes | None) -> tuple[bytes, ...]:
    """Return a tool's result; its `_meta` is what a model cannot see of the HTTP answer."""
    answer, error, quota = outcome
    members = answer.result if error is None else answer.refusal
    meta = [] if error is None else _refusal_meta(error)
    if quota is not None:
        meta.append(f'"signals/quota":{quota.text()}')
    if request_id is not None:
        meta.append(f'"signals/request_id":"{request_id.decode()}"')
    return b"{", members, b',"_meta":{%b}}' % ",".join(meta).encode()


def _refusal_meta(error: ApiError) -> list[str]:
    meta = [f'"signals/error":"{error.code}"', f'"signals/status":{error.status}']
    if error.retry_after_s is not None:
        meta.append(f'"signals/retry_after_seconds":{error.retry_after_s}')
    return meta


def _malformed_params(why: str) -> RpcError:
    return RpcError(mcp_types.INVALID_PARAMS, f"Invalid params: {why}.")
