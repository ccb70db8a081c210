"""The official SDK's client, version 1."""

from mcp import ClientSession
from mcp.client.streamable_http import streamablehttp_client
from plan import build_entry, report


async def session(url, headers, calls):
    async with (
        streamablehttp_client(url, headers=headers) as (read, write, _),
        ClientSession(read, write) as client,
    ):
        await client.initialize()
        tools = [tool.name for tool in (await client.list_tools()).tools]
        results = [await client.call_tool(call["tool"], call["arguments"]) for call in calls]
    return tools, [
        build_entry(result.isError, result.content[0].text, result.structuredContent)
        for result in results
    ]


report("mcp", session)
