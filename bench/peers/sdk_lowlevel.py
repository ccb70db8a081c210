"""The MCP SDK's low-level server in its HTTP app: no schemas and no conversion of results."""

import json
import sys
from pathlib import Path
from typing import Any

import mcp_types
import uvicorn
from mcp.server.lowlevel.server import Server

from bench.peers.tools import create_tools


def main() -> None:
    tools_by_name = {tool.__name__: tool for tool in create_tools(Path(sys.argv[2]))}

    async def call(_: Any, request: mcp_types.CallToolRequestParams) -> mcp_types.CallToolResult:
        answer = await tools_by_name[request.name](**(request.arguments or {}))
        text = json.dumps(answer, separators=(",", ":"), ensure_ascii=False)
        return mcp_types.CallToolResult(
            content=[mcp_types.TextContent(type="text", text=text)], structured_content=answer
        )

    server = Server("sdk", on_call_tool=call)
    app = server.streamable_http_app(json_response=True, stateless_http=True)
    uvicorn.run(app, port=int(sys.argv[1]), log_level="error", access_log=False)


if __name__ == "__main__":
    main()
