"""The service as a later version of it could be: every result has more fields."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mcp_server.tools.registry import TOOLS_BY_NAME
from serving.json_schema import build_output_schema
from tests.support.response_schemas import add_fields
from tests.support.running_service import RunningService, open_loopback_socket, run_app


@asynccontextmanager
async def serve_later_version(served: RunningService) -> AsyncIterator[str]:
    """Serve a service's MCP endpoint with fields added to every result; yield the base URL."""

    async def forward(request: Request) -> Response:
        headers = {k: v for k, v in request.headers.items() if k not in ("host", "content-length")}
        body = await request.body()
        answer = await served.client.request(
            request.method, request.url.path, content=body, headers=headers
        )
        content = answer.content
        if answer.is_success and "structuredContent" in answer.text:
            content = _add_to_result(json.loads(body)["params"]["name"], answer.json())
        return Response(content, answer.status_code, media_type=answer.headers.get("content-type"))

    app = Starlette(routes=[Route("/api/v1/mcp", forward, methods=["GET", "POST", "DELETE"])])
    with open_loopback_socket() as bound:
        async with run_app(app, bound):
            yield f"http://127.0.0.1:{bound.getsockname()[1]}"


def _add_to_result(tool: str, answer: dict[str, Any]) -> bytes:
    schema = build_output_schema(TOOLS_BY_NAME[tool].result)
    result = answer["result"]
    result["structuredContent"] = add_fields(result["structuredContent"], schema)
    result["content"][0]["text"] = json.dumps(result["structuredContent"])
    return json.dumps(answer).encode()
