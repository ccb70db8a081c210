"""FastMCP's client, in the mode of its argument; it raises an exception if a call is refused.

In the mode `oauth` its user signs in; the test sets BROWSER, so that it opens no window.
"""

import os
import sys

from fastmcp import Client
from fastmcp.client.auth import OAuth
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.exceptions import ToolError
from plan import build_entry, report

MODE = sys.argv[1]


async def session(url, headers, calls):
    async with create_client(url, headers) as client:
        tools = [tool.name for tool in await client.list_tools()]
        return tools, [await called(client, call) for call in calls]


def create_client(url, headers):
    if MODE != "oauth":
        return Client(StreamableHttpTransport(url, headers=headers), mode=MODE)
    document = os.environ.get("CLIENT_METADATA_URL")
    return Client(url, auth=OAuth(client_metadata_url=document) if document else "oauth")


async def called(client, call):
    try:
        result = await client.call_tool(call["tool"], call["arguments"])
    except ToolError as error:
        return build_entry(True, str(error))
    return build_entry(False, result.content[0].text, result.structured_content)


report("fastmcp-slim", session, f"fastmcp-slim, mode {MODE}")
