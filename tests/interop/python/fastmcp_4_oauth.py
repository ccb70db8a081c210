"""FastMCP's client with `auth="oauth"`; the test sets BROWSER, so that it opens no window."""

import os

from fastmcp import Client
from fastmcp.client.auth import OAuth
from plan import build_entry, report


async def session(url, headers, calls):
    document = os.environ.get("CLIENT_METADATA_URL")
    auth = OAuth(client_metadata_url=document) if document else "oauth"
    async with Client(url, auth=auth) as client:
        tools = [tool.name for tool in await client.list_tools()]
        results = [await client.call_tool(call["tool"], call["arguments"]) for call in calls]
    return tools, [
        build_entry(False, result.content[0].text, result.structured_content) for result in results
    ]


report("fastmcp-slim", session, 'fastmcp-slim, `auth="oauth"`')
