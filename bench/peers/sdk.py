"""The MCP SDK's HTTP app, as its pages teach it: stateless, JSON responses, no keys, no log."""

import sys
from pathlib import Path

import uvicorn
from mcp.server.mcpserver import MCPServer

from bench.peers.tools import create_tools


def main() -> None:
    server = MCPServer("sdk")
    for tool in create_tools(Path(sys.argv[2])):
        server.tool()(tool)
    app = server.streamable_http_app(json_response=True, stateless_http=True)
    uvicorn.run(app, port=int(sys.argv[1]), log_level="error", access_log=False)


if __name__ == "__main__":
    main()
