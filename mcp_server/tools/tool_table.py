"""All tools, in the order of tools/list."""

from typing import Any

from mcp_server.tools.get_catalog import GET_CATALOG
from mcp_server.tools.get_confluence import GET_CONFLUENCE
from mcp_server.tools.get_flips import GET_FLIPS
from mcp_server.tools.get_signals import GET_SIGNALS
from mcp_server.tools.get_state import GET_STATE
from mcp_server.tools.get_stats import GET_STATS
from mcp_server.tools.get_usage import GET_USAGE
from serving.tool import Tool

TOOLS: tuple[Tool[Any, Any], ...] = (
    GET_STATE,
    GET_SIGNALS,
    GET_CONFLUENCE,
    GET_FLIPS,
    GET_CATALOG,
    GET_STATS,
    GET_USAGE,
)
TOOLS_BY_NAME: dict[str, Tool[Any, Any]] = {tool.name: tool for tool in TOOLS}
