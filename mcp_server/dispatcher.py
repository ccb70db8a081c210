"""Dispatches MCP methods for both protocol legs; results are JSON text."""

import json
import secrets
from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from typing import Any

import mcp_types
import structlog
from pydantic import BaseModel
from starlette.types import Scope

from mcp_server.chat_views import (
    EXTENSION,
    READ_VIEW,
    SESSION_HEADER,
    SESSION_PREFIX,
    VIEW_METHODS,
    ChatViews,
    supports_views,
)
from mcp_server.jsonrpc import Message, Params, RpcError
from mcp_server.protocol_legs import (
    DISCOVER,
    LEGACY_VERSIONS,
    MODERN,
    MODERN_VERSION,
    Leg,
    check_modern_request,
)
from schemas.coverage import Coverage
from schemas.errors import describe_failure
from schemas.version import VERSION
from schemas.vocabulary import INDICATOR_COUNT_TEXT
from serving.arguments import (
    ArgumentError,
    Problem,
    format_suggestion,
    get_argument_schemas,
    quote_value,
)
from serving.freshness import find_next_run
from serving.http import (
    REQUEST_ID_KEY,
    TOOL_KEY,
    HeaderList,
    HeaderMap,
    build_quota_headers,
    keep_error,
)
from serving.json_text import has_json_excess, to_json
from serving.tool import to_mcp_tool
from serving.tool_runner import AnyTool, CallResult, ToolRunner
from store.store_errors import StoreError

# initialize offers this version to a client that asks for one that is not served. As MCP's
# lifecycle prescribes, a client that does not support it disconnects.
PROTOCOL_VERSION = "2025-06-18"
TITLE = "Signals"
# Agent frameworks that fill every argument send these for those that the model left out. No
# argument has such a value.
OMITTED_TEXTS = frozenset({"", "null", "None"})
MAX_NAME_CHARS = 64
# What to call instead of tools that some models expect.
TOOL_HINTS = {
    "price": "signals_get_state with view=lines has the last close",
    "quote": "signals_get_state with view=lines has the last close",
    "board": "call signals_get_state with view=lines",
    "alert": "call signals_get_signals with tier=alerts",
    "histor": "call signals_get_signals with since and until",
    "screen": "call signals_get_confluence",
}
INSTRUCTIONS = (
    "Technical analysis of bitcoin, ether and other crypto, stocks, gold and other metals: "
    f"readings of {INDICATOR_COUNT_TEXT} trading indicators on 1h, 4h and 1d, recomputed hourly at"
    " minute :03 UTC. Not investment advice. state: trend, momentum, outlook, sentiment, price, "
    "market overview, portfolio. signals: alerts, entries, exits, history, log, notifications, "
    "backtest. confluence: screener, scanner, consensus, strongest, top coins. flips: reversals, "
    "movers, turning points. catalog: symbols, coverage. stats: activity. usage: quota, rate "
    "limit. Set view=lines for the shortest answer. To watch for changes, poll "
    "signals_get_signals with since = the last next_cursor, at most every 900 seconds. The meta "
    "of every result names its source (simulated, recorded or live); with readings it also has "
    "as_of, and stale if it is late. Tell the user if data are simulated or stale. An error names"
    " the accepted values and the next step. All tools but catalog and stats need an API key in "
    "the header Authorization: Bearer."
)

CONTENT_START = b'"content":[{"type":"text","text":"'

log = structlog.get_logger("mcp")

_CAPABILITIES = mcp_types.ServerCapabilities(tools=mcp_types.ToolsCapability(list_changed=False))
_VIEW_CAPABILITIES = mcp_types.ServerCapabilities(
    tools=_CAPABILITIES.tools,
    resources=mcp_types.ResourcesCapability(subscribe=False, list_changed=False),
    extensions={EXTENSION: {}},
)


def _render_constant_results(
    base_url: str, capabilities: mcp_types.ServerCapabilities
) -> dict[str, bytes]:
    """Return the results that depend neither on the caller nor on coverage.

    `initialize` has one for each version, by method and version.
    """
    icon = mcp_types.Icon(src=f"{base_url}/web/icon.svg", mime_type="image/svg+xml", sizes=["any"])
    server_info = mcp_types.Implementation(
        name="signals",
        title=TITLE,
        version=VERSION,
        website_url=f"{base_url}/",
        icons=[icon],
    )
    discovered = mcp_types.DiscoverResult(
        supported_versions=[MODERN_VERSION],
        capabilities=capabilities,
        instructions=INSTRUCTIONS,
        _meta={
            mcp_types.SERVER_INFO_META_KEY: server_info.model_dump(
                mode="json", by_alias=True, exclude_unset=True
            )
        },
    )
    initialized = {
        f"initialize {version}": mcp_types.InitializeResult(
            protocol_version=version,
            capabilities=capabilities,
            server_info=server_info,
            instructions=INSTRUCTIONS,
        )
        for version in LEGACY_VERSIONS
    }
    rendered = {
        # Without its first brace, because a leg adds members.
        name: result.model_dump_json(by_alias=True, exclude_unset=True).encode()[1:]
        for name, result in [*initialized.items(), (DISCOVER, discovered)]
    }
    return {"ping": b"}", **rendered}


class Dispatcher:
    """Handles JSON-RPC requests for a fixed set of tools, and for `views` of their results.

    What clients without and with views get differs, so each part is kept for both.
    """

    def __init__(
        self, runner: ToolRunner, tools: Iterable[AnyTool], views: ChatViews | None = None
    ) -> None:
        self._runner = runner
        self._views = views
        self._tools = {False: {tool.name: tool for tool in tools}}
        if views is not None:
            self._tools[True] = views.add_to_tools(self._tools[False])
        self._constant_results = {
            has_views: _render_constant_results(runner.context.base_url, capabilities)
            for has_views, capabilities in ((False, _CAPABILITIES), (True, _VIEW_CAPABILITIES))
        }
        # Two entries for either: the coverage in use, and the one that replaces it.
        self._get_tools_list = lru_cache(maxsize=4)(self._render_tools_list)

    async def dispatch(
        self, message: Message, leg: Leg, headers: HeaderMap, scope: Scope
    ) -> tuple[tuple[bytes, ...], HeaderList]:
        """Return the result of a request in its leg's form, as JSON text in parts, and headers.

        Raise RpcError for a protocol error.
        The result of a tool call repeats the id that `scope` gives the HTTP request. The name of
        the tool and its error are added to `scope`.
        """
        try:
            has_views = self._views is not None and supports_views(message, headers)
            if leg is MODERN:
                name_fields = {"tools/call": "name", **({READ_VIEW: "uri"} if has_views else {})}
                check_modern_request(message, headers, scope, name_fields)
            if message.method != "tools/call":
                answer = await self._handle_protocol_method(message, leg, has_views)
                if not has_views or message.method != "initialize":
                    return answer, []
                # A client that shows views repeats it. It is random because gateways tell their
                # clients apart by it.
                session = SESSION_PREFIX + secrets.token_hex(16).encode()
                return answer, [(SESSION_HEADER, session)]
            params, tools = _get_params(message), self._tools[has_views]
            name, arguments = params.get("name"), params.get("arguments")
            if not isinstance(name, str):
                raise _invalid_params_error("name must be the name of a tool")
            if (tool := tools.get(name)) is None:
                words = [hint for word, hint in TOOL_HINTS.items() if word in name[:MAX_NAME_CHARS]]
                hint = f"; {words[0]}" if words else format_suggestion(name, self._tools[False])
                raise _invalid_params_error(
                    f"unknown tool {quote_value(name)}{hint}; tools/list returns the names"
                )
            scope[TOOL_KEY] = name
            result = await self._runner.run(
                tool, headers, lambda: _read_arguments(tool, arguments), scope
            )
            if result.error is not None:
                keep_error(scope, result.error)
            self._runner.report_key_call(scope, tool, "mcp", result, 200)
            request_id = scope.get(REQUEST_ID_KEY)
            return _build_tool_result(leg, result, request_id), build_quota_headers(result.quota)
        except RpcError as error:
            error.request_id = message.request_id
            raise
        except Exception as error:
            cause = describe_failure(error)
            self._runner.failures.write(
                log.error, "mcp_request_failed", cause, method=message.method
            )
            raise RpcError(mcp_types.INTERNAL_ERROR, "internal error", message.request_id) from None

    async def _handle_protocol_method(
        self, message: Message, leg: Leg, has_views: bool
    ) -> tuple[bytes, ...]:
        method, methods = message.method, leg.methods + (VIEW_METHODS if has_views else ())
        if method not in methods:
            raise RpcError(
                mcp_types.METHOD_NOT_FOUND,
                f"Unknown method {quote_value(method)}; supported: {', '.join(methods)}.",
            )
        params = _get_params(message)
        kind, _, action = method.partition("/")
        if action == "list" and params.get("cursor") is not None:
            raise _invalid_params_error(f"cursor: all {kind} are on one page; omit cursor")
        # The tools name the assets that are covered, which only an hourly run changes. They are the
        # same for every caller, with and without a key, whose client shows no views.
        now = self._runner.context.clock()
        ttl_ms = find_next_run("1h", now) - now
        if method == "tools/list":
            snapshots = self._runner.context.snapshots
            try:
                coverage = await snapshots.coverage()
            except StoreError as failure:
                # A host would drop every tool, although only the texts name what is covered.
                self._runner.log_store_failure(failure, method)
                coverage = None if snapshots.last is None else snapshots.last.coverage
                ttl_ms = 0
            members = self._get_tools_list(coverage, has_views)
        elif self._views is not None and method in VIEW_METHODS:
            uri, known = params.get("uri"), ", ".join(self._views.uris)
            found = self._views.find_members(method, uri)
            if found is None:
                raise _invalid_params_error(f"unknown uri {quote_value(uri)}; known: {known}")
            members = found
        else:
            name = method
            if name == "initialize":
                asked = params.get("protocolVersion")
                name += f" {asked if asked in LEGACY_VERSIONS else PROTOCOL_VERSION}"
            members = self._constant_results[has_views][name]
        if leg is not MODERN:
            return leg.result_start, members
        hints = ttl_ms, b"private" if has_views else b"public"
        return leg.result_start, b'"ttlMs":%d,"cacheScope":"%b",' % hints, members

    def _render_tools_list(self, coverage: Coverage | None, has_views: bool) -> bytes:
        """Return the members of tools/list for a coverage; equal coverage gives equal bytes."""
        tools = [to_mcp_tool(tool, coverage) for tool in self._tools[has_views].values()]
        listed = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools]
        return to_json({"tools": listed})[1:].encode()


def _get_params(message: Message) -> Params:
    params = message.params
    # Some clients send null for absent params or arguments.
    if params is None:
        return {}
    if not isinstance(params, dict):
        raise _invalid_params_error("params must be an object")
    return params


def _read_arguments(tool: AnyTool, sent: object) -> dict[str, Any]:
    """Return the arguments of a call by name; ArgumentError if they are no object."""
    arguments = sent
    # Some hosts send the object as JSON text. Its values were not counted with those of the body.
    if isinstance(sent, str) and not has_json_excess(sent.encode("utf-8", "replace")):
        with suppress(ValueError):
            arguments = json.loads(sent)
    if arguments is None or sent == "":
        return {}
    if not isinstance(arguments, dict):
        text = f"arguments: {quote_value(sent)} is not accepted; accepted: an object of arguments"
        raise ArgumentError(Problem("", text))
    query: type[BaseModel] = tool.query
    known = get_argument_schemas(query)
    return {
        name: value
        for name, value in arguments.items()
        if name not in known or not isinstance(value, str) or value.strip() not in OMITTED_TEXTS
    }


def _build_tool_result(leg: Leg, result: CallResult, request_id: bytes | None) -> tuple[bytes, ...]:
    """Return the result of tools/call in parts.

    `_meta` repeats the status and headers of the HTTP response, which a host does not pass on.
    """
    # Rendered bytes: a cached response is never parsed or serialized again. They are not joined,
    # because copying an unfiltered state takes longer than all the rest.
    response, error, quota, _ = result
    # Hosts pass only the text or the object to the model, and they disagree on which.
    members = [b'"}],"structuredContent":', response.text, b',"isError":false']
    meta = []
    if error is not None:
        # structuredContent has to match the tool's output schema, which an error does not.
        members = [b'"}],"isError":true']
        meta += [f'"signals/error":"{error.code}"', f'"signals/status":{error.status}']
        if error.retry_after_s is not None:
            meta.append(f'"signals/retry_after_seconds":{error.retry_after_s}')
    if quota is not None:
        meta.append(f'"signals/quota":{quota.to_json()}')
    if request_id is not None:
        meta.append(f'"signals/request_id":"{request_id.decode()}"')
    end = b',"_meta":{%b}}' % ",".join(meta).encode()
    return leg.result_start, CONTENT_START, response.escaped, *members, end


def _invalid_params_error(reason: str) -> RpcError:
    return RpcError(mcp_types.INVALID_PARAMS, f"Invalid params: {reason}.")
