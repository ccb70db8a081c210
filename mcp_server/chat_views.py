"""Views that a host shows in a chat with the result of a tool: the extension MCP Apps of MCP.

A client without the extension gets the same bytes as from a service without views.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import mcp_types

from mcp_server.jsonrpc import Message
from mcp_server.protocol_legs import as_mapping, get_meta
from serving.http import HeaderMap
from serving.json_text import to_json, to_utf8
from serving.tool_runner import AnyTool

EXTENSION: Final = "io.modelcontextprotocol/ui"
DOCUMENT_TYPE: Final = "text/html;profile=mcp-app"
LIST_VIEWS, READ_VIEW = VIEW_METHODS = ("resources/list", "resources/read")
# The tool with which a view draws a page.
DRAW_TOOL: Final = "signals_draw_page"
SESSION_HEADER = b"mcp-session-id"
# Before revision 2026-07-28 a client names its capabilities once, in `initialize`. It repeats the
# session id in every later request, so no process has to remember them.
SESSION_PREFIX = b"views-"
# A view loads nothing, and calls tools through its host.
_VIEW_META = {"ui": {"csp": {"connectDomains": [], "resourceDomains": []}, "prefersBorder": True}}


class ChatView(NamedTuple):
    """The HTML document in which a host shows the results of the tool `tool_name`."""

    uri: str
    title: str
    description: str
    tool_name: str
    html: str


def supports_views(message: Message, headers: HeaderMap) -> bool:
    """Return whether the client of a request shows views, as the request says."""
    params = as_mapping(message.params)
    if message.method == "initialize":
        capabilities = params.get("capabilities")
    elif headers.get(SESSION_HEADER, b"").startswith(SESSION_PREFIX):
        return True
    elif "_meta" in params:
        capabilities = get_meta(message).get(mcp_types.CLIENT_CAPABILITIES_META_KEY)
    else:
        return False
    extensions = as_mapping(as_mapping(capabilities).get("extensions"))
    types = as_mapping(extensions.get(EXTENSION)).get("mimeTypes")
    return isinstance(types, list) and DOCUMENT_TYPE in types


class ChatViews:
    """The views of a service, and the tool with which they draw pages."""

    def __init__(self, views: Iterable[ChatView], draw_tool: AnyTool) -> None:
        self._draw_tool = draw_tool
        resources, self._uris, self._contents = [], {}, {}
        for view in views:
            part = {"uri": view.uri, "mimeType": DOCUMENT_TYPE, "_meta": _VIEW_META}
            texts = {"name": view.title, "title": view.title, "description": view.description}
            resources.append({**part, **texts})
            self._uris[view.tool_name] = view.uri
            self._contents[view.uri] = _render_members({"contents": [{**part, "text": view.html}]})
        self._list = _render_members({"resources": resources})

    @property
    def uris(self) -> list[str]:
        """The addresses of the views."""
        return [*self._contents]

    def add_to_tools(self, tools: Mapping[str, AnyTool]) -> dict[str, AnyTool]:
        """Return tools that name their views, and the tool of the views."""
        shown = {
            name: replace(tools[name], meta={**tools[name].meta, "ui": {"resourceUri": uri}})
            for name, uri in self._uris.items()
        }
        return {**tools, **shown, self._draw_tool.name: self._draw_tool}

    def find_members(self, method: str, uri: object) -> bytes | None:
        """Return the result of a method without its first brace; None for an unknown address."""
        if method == LIST_VIEWS:
            return self._list
        return self._contents.get(uri) if isinstance(uri, str) else None


def _render_members(result: dict[str, Any]) -> bytes:
    return to_utf8(to_json(result))[1:]
