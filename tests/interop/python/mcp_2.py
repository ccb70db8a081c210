"""The official SDK's client, version 2, which by default requests the newest protocol first."""

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from plan import build_entry, report


def report_in(mode):
    async def session(url, headers, calls):
        async with (
            httpx2.AsyncClient(headers=headers) as http,
            Client(streamable_http_client(url, http_client=http), mode=mode) as client,
        ):
            tools = [tool.name for tool in (await client.list_tools()).tools]
            results = [await client.call_tool(call["tool"], call["arguments"]) for call in calls]
        return tools, [
            build_entry(result.is_error, result.content[0].text, result.structured_content)
            for result in results
        ]

    report("mcp", session, f"mcp, {mode} mode")


if __name__ == "__main__":
    report_in("auto")
