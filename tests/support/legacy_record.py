"""The service as a later version of it could be: every result has more fields."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mcp_server.tools.tool_table import TOOLS_BY_NAME
from schemas.version import VERSION
from tests.support.example_market import make_coverage
from tests.support.response_schemas import add_fields
from tests.support.running_service import RunningService, run_service, serve_app
from tools.output_schemas import build_output_schema


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
            schema = build_output_schema(TOOLS_BY_NAME[json.loads(body)["params"]["name"]].result)
            message = answer.json()
            added = add_fields(message["result"]["structuredContent"], schema)
            message["result"] |= {"structuredContent": added}
            message["result"]["content"][0]["text"] = json.dumps(added)
            content = json.dumps(message).encode()
        return Response(content, answer.status_code, media_type=answer.headers.get("content-type"))

    app = Starlette(routes=[Route("/api/v1/mcp", forward, methods=["GET", "POST", "DELETE"])])
    async with serve_app(lambda _: app) as base_url:
        yield base_url


FILE = Path(__file__).with_suffix(".json")
VERSION_HEADER = "MCP-Protocol-Version"
LEGACY_VERSIONS = ("2025-03-26", "2025-06-18", "2025-11-25")
# What clients of the newest revision add to each request.
ENVELOPE = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "host", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
STATE = {"name": "signals_get_state", "arguments": {"ticker": "BTC"}}
# Differs between two runs, or with the version of the service.
UNSTABLE = [
    (re.compile(rb"http://127\.0\.0\.1:\d+"), b"http://ADDRESS"),
    (re.compile(rb'("signals/request_id":)"[^"]+"'), rb'\1"ID"'),
    (re.compile(rb'("tools":)\[.+\]', re.DOTALL), rb"\1[TOOLS]"),
    (re.compile(rb'"version":"%b"' % re.escape(VERSION.encode())), b'"version":"VERSION"'),
]
SKIPPED_HEADERS = {"content-length", "date", "x-request-id"}

Case = tuple[str, dict[str, str], bytes]


def list_cases(key: dict[str, str]) -> Iterator[Case]:
    """Yield (HTTP method, headers, body) of each request, in the order of the record."""
    bodies = MESSAGES + MALFORMED_BODIES
    for body in bodies:
        yield "POST", key, body
    for version in LEGACY_VERSIONS:
        for body in bodies[:12]:
            yield "POST", key | {VERSION_HEADER: version}, body
    for version in ("2024-11-05", "1999-01-01", "2026-07-27", "", "x" * 90, "2025-06-18, x"):
        for body in (bodies[0], bodies[1], b"{"):
            yield "POST", {VERSION_HEADER: version}, body
    for headers in [{"Mcp-Method": "tools/call", "Mcp-Name": "other"}, {"Mcp-Session-Id": "7"}]:
        for body in bodies[:12]:
            yield "POST", key | headers, body
    for version in ((), *[{VERSION_HEADER: version}.items() for version in LEGACY_VERSIONS]):
        for method, params in REQUESTS:
            with_meta = {**(params or {}), "_meta": ENVELOPE}
            yield "POST", key | dict(version), _encode(method, with_meta)
    for headers in ({"Accept": "text/event-stream"}, {"Content-Type": "text/plain"}):
        yield "POST", key | headers, bodies[0]
    for method in ("GET", "DELETE", "PUT", "HEAD"):
        yield method, key, b""


async def record_bytes(served: RunningService) -> list[dict[str, Any]]:
    """Send all cases to a fresh service; return requests and responses as JSON values."""
    recorded = []
    for method, headers, body in list_cases(served.key_headers):
        sent = {"Content-Type": "application/json", **headers}
        response = await served.client.request(method, "/api/v1/mcp", content=body, headers=sent)
        shown = {name: value for name, value in headers.items() if name != "Authorization"}
        request = [method, shown, body.decode("latin-1")]
        content = response.content
        for pattern, replacement in UNSTABLE:
            content = pattern.sub(replacement, content)
        described = {
            "status": response.status_code,
            "headers": [
                list(pair) for pair in response.headers.items() if pair[0] not in SKIPPED_HEADERS
            ],
            "body": content.decode(),
        }
        recorded.append({"request": request, "response": described})
    return recorded


def _encode(method: str, params: Any, request_id: Any = 1) -> bytes:
    message = {"jsonrpc": "2.0", "id": request_id, "method": method}
    return json.dumps(message if params is None else {**message, "params": params}).encode()


REQUESTS: list[tuple[str, Any]] = [
    *(
        ("initialize", {"protocolVersion": requested, "capabilities": {}, "clientInfo": ENVELOPE})
        for requested in ("2025-06-18", "2025-11-25", "2026-07-28")
    ),
    ("ping", None),
    ("tools/list", {}),
    ("tools/call", STATE),
    ("tools/call", {"name": "signals_get_stats"}),
    ("tools/call", {"name": "signals_get_state", "arguments": {"ticker": "BTX"}}),
    ("tools/call", {"name": "signals_get_nothing", "arguments": {}}),
    ("resources/list", {}),
]
MESSAGES = [
    *(_encode(method, params) for method, params in REQUESTS),
    json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode(),
    json.dumps({"jsonrpc": "2.0", "id": 3, "result": {}}).encode(),
    _encode("tools/list", {"cursor": "x"}),
    _encode("tools/call", []),
    _encode("ping", None, None),
    _encode("ping", {"_meta": {"progressToken": 1}}, "text"),
]
MALFORMED_BODIES = [
    *(b"", b"{", b"[]", b"1", b"null", b"{}", b"\xff", b'{"jsonrpc":"2.0","id":NaN}'),
    b"[%b]" % _encode("ping", None),
    b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}',
    b'{"jsonrpc":"1.0","id":1,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":1.5,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":1,"method":5}',
    b'{"jsonrpc":"2.0","id":1,"result":{},"error":{}}',
]


async def _write_record() -> None:
    with TemporaryDirectory() as folder:
        async with run_service(Path(folder), make_coverage()) as served:
            FILE.write_text(json.dumps(await record_bytes(served), indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(_write_record())
