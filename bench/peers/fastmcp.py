"""fastmcp's HTTP app: stateless, JSON responses, no keys, no request log."""

import sys
from pathlib import Path

import uvicorn
from fastmcp import FastMCP

from bench.peers.tools import create_tools


def main() -> None:
    server = FastMCP("fastmcp")
    for tool in create_tools(Path(sys.argv[2])):
        server.tool(tool)
    app = server.http_app(json_response=True, stateless_http=True)
    uvicorn.run(app, port=int(sys.argv[1]), log_level="error", access_log=False)


if __name__ == "__main__":
    main()
