"""Every tool, in the order in which tools/list shows them."""

from typing import Any

from mcp_server.tools.get_signals import GET_SIGNALS
from mcp_server.tools.get_state import GET_STATE
from mcp_server.tools.tool import Tool

TOOLS: tuple[Tool[Any, Any], ...] = (GET_STATE, GET_SIGNALS)
TOOLS_BY_NAME: dict[str, Tool[Any, Any]] = {tool.name: tool for tool in TOOLS}
