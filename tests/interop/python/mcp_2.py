"""The official SDK's client, version 2, in the mode that its argument names."""

import sys

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from plan import build_entry, report

MODE = sys.argv[1]


async def session(url, headers, calls):
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(url, http_client=http), mode=MODE) as client,
    ):
        tools = [tool.name for tool in (await client.list_tools()).tools]
        results = [await client.call_tool(call["tool"], call["arguments"]) for call in calls]
    return tools, [
        build_entry(result.is_error, result.content[0].text, result.structured_content)
        for result in results
    ]


report("mcp", session, f"mcp, mode {MODE}")
