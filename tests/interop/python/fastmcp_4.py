"""FastMCP's client, in the mode of its argument; it raises an exception if a call is refused."""

import sys

from fastmcp import Client
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.exceptions import ToolError
from plan import build_entry, report

MODE = sys.argv[1]


async def session(url, headers, calls):
    async with Client(StreamableHttpTransport(url, headers=headers), mode=MODE) as client:
        tools = [tool.name for tool in await client.list_tools()]
        return tools, [await called(client, call) for call in calls]


async def called(client, call):
    try:
        result = await client.call_tool(call["tool"], call["arguments"])
    except ToolError as error:
        return build_entry(True, str(error))
    return build_entry(False, result.content[0].text, result.structured_content)


report("fastmcp-slim", session, f"fastmcp-slim, mode {MODE}")
