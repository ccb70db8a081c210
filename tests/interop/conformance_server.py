"""The MCP endpoint with the tools that the conformance suite calls, as far as it supports them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from access.keys import QuotaGuard
from mcp_server.endpoint import PATHS, McpEndpoint
from schemas.errors import invalid_parameter_error
from schemas.query import NoArguments
from schemas.vocabulary import DAILY_LIMIT
from serving.context import Context
from serving.host_origin import HostOriginMiddleware
from serving.snapshot_cache import SnapshotCache
from serving.tool import Tool
from serving.tool_runner import ToolRunner
from tests.support.running_service import ManualClock, open_loopback_socket, open_stores, run_app


class Text(BaseModel):
    text: str


async def answer_text(query: NoArguments, context: Context) -> Text:
    return Text(text="This is a simple text response for testing.")


async def answer_error(query: NoArguments, context: Context) -> Text:
    raise invalid_parameter_error("This tool intentionally returns an error for testing")


def make_open_tool(
    name: str, handler: Callable[[NoArguments, Context], Awaitable[Text]]
) -> Tool[NoArguments, Text]:
    return Tool(
        name=name,
        title=name,
        description=f"What the suite calls {name}.",
        query=NoArguments,
        result=Text,
        handler=handler,
        requires_key=False,
        depends_on_snapshot=False,
    )


SUITE_TOOLS = (
    make_open_tool("test_simple_text", answer_text),
    make_open_tool("test_error_handling", answer_error),
)


@asynccontextmanager
async def run_suite_server(folder: Path) -> AsyncIterator[str]:
    """Yield the URL of the endpoint."""
    clock = ManualClock()
    async with open_stores(folder) as (market, access):
        with open_loopback_socket() as bound:
            base_url = f"http://127.0.0.1:{bound.getsockname()[1]}"
            quota_guard = QuotaGuard(access, clock, mode=None, daily_limit=DAILY_LIMIT)
            context = Context(SnapshotCache(market), base_url, base_url, clock, None, DAILY_LIMIT)
            endpoint = McpEndpoint(ToolRunner(quota_guard, context), SUITE_TOOLS)
            app = Starlette(
                routes=[Route(path, endpoint) for path in PATHS],
                middleware=[Middleware(HostOriginMiddleware, base_url=base_url, docs=base_url)],
            )
            async with run_app(app, bound):
                yield f"{base_url}{PATHS[0]}"
