"""Another MCP server with our tools and ready-made results, or the limit: fixed bytes.

`python -m bench.peers KIND RESULTS` serves; RESULTS is a JSON file with the result of each case.
No peer reads a store, checks a key or counts calls, which is in its favour. This also runs in the
environments of peers, so it imports only what the one that runs needs.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import uvicorn


def build_fixed() -> Any:
    """Build a Starlette route `/N` that returns N bytes."""
    from starlette.applications import Starlette
    from starlette.responses import Response
    from starlette.routing import Route

    async def respond(request: Any) -> Response:
        return Response(b"1" * request.path_params["size"], media_type="application/json")

    return Starlette(routes=[Route("/{size:int}", respond, methods=["GET", "POST"])])


def build_peer(kind: str, results: dict[str, dict[str, Any]]) -> Any:
    """Build the app of a library as its pages teach it: stateless, JSON responses, no log."""

    async def signals_get_state(ticker: str | None = None) -> dict[str, Any]:
        return results["state"] if ticker is None else results["state of one"]

    if kind == "sdk":
        from mcp.server.mcpserver import MCPServer as Server
    else:
        from fastmcp import FastMCP as Server
    server = Server(kind)
    server.tool()(signals_get_state)
    build_app = server.streamable_http_app if kind == "sdk" else server.http_app
    return build_app(json_response=True, stateless_http=True)


if __name__ == "__main__":
    kind, file = sys.argv[1:]
    app = build_fixed() if kind == "fixed" else build_peer(kind, json.loads(Path(file).read_text()))
    # Under uvicorn's defaults.
    uvicorn.run(app, port=int(os.environ["SIGNALS_PORT"]), log_level="error", access_log=False)
