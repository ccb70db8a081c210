"""FastMCP's client with `auth="oauth"`; the test sets BROWSER, so that it opens no window."""

from fastmcp import Client
from plan import build_entry, report


async def session(url, headers, calls):
    async with Client(url, auth="oauth") as client:
        tools = [tool.name for tool in await client.list_tools()]
        results = [await client.call_tool(call["tool"], call["arguments"]) for call in calls]
    return tools, [
        build_entry(False, result.content[0].text, result.structured_content) for result in results
    ]


report("fastmcp-slim", session, 'fastmcp-slim, `auth="oauth"`')
