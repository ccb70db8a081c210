"""The MCP endpoint over the tools that the conformance suite wants, as far as tools here can."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from access.quota import Admissions
from mcp_server.endpoint import PATHS, McpEndpoint
from schemas.errors import invalid_parameter
from schemas.query import NoArguments
from schemas.vocabulary import DAILY_LIMIT
from serving.context import Context
from serving.host_origin import Gate
from serving.snapshot_cache import Boards
from serving.tool import Tool
from serving.tool_runner import Calls
from tests.serving import ManualClock, loopback_socket, running, stores


class Text(BaseModel):
    text: str


async def speak(query: NoArguments, context: Context) -> Text:
    return Text(text="This is a simple text response for testing.")


async def fail(query: NoArguments, context: Context) -> Text:
    raise invalid_parameter("This tool intentionally returns an error for testing")


def keyless(
    name: str, handler: Callable[[NoArguments, Context], Awaitable[Text]]
) -> Tool[NoArguments, Text]:
    return Tool(
        name=name,
        title=name,
        description=f"What the suite calls {name}.",
        query=NoArguments,
        result=Text,
        handler=handler,
        keyed=False,
        rests_on_board=False,
    )


SUITE_TOOLS = (keyless("test_simple_text", speak), keyless("test_error_handling", fail))


@asynccontextmanager
async def serving_the_suite(folder: Path) -> AsyncIterator[str]:
    """Yield the endpoint's address."""
    clock = ManualClock()
    async with stores(folder) as (market, access):
        with loopback_socket() as bound:
            base_url = f"http://127.0.0.1:{bound.getsockname()[1]}"
            admissions = Admissions(access, clock, mode=None, daily_limit=DAILY_LIMIT)
            context = Context(Boards(market), base_url, base_url, clock, None, DAILY_LIMIT)
            endpoint = McpEndpoint(Calls(admissions, context), SUITE_TOOLS)
            app = Starlette(
                routes=[Route(path, endpoint) for path in PATHS],
                middleware=[Middleware(Gate, base_url=base_url, docs=base_url)],
            )
            async with running(app, bound):
                yield f"{base_url}{PATHS[0]}"
