"""The official SDK's client, version 1; with the argument `oauth`, its user signs in."""

import sys

from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamablehttp_client
from mcp.shared.auth import OAuthClientMetadata
from plan import Browser, MemoryStorage, build_entry, report


async def session(url, headers, calls):
    auth = await open_auth(url) if sys.argv[1:] == ["oauth"] else None
    async with (
        streamablehttp_client(url, headers=headers, auth=auth) as (read, write, _),
        ClientSession(read, write) as client,
    ):
        await client.initialize()
        tools = [tool.name for tool in (await client.list_tools()).tools]
        results = [await client.call_tool(call["tool"], call["arguments"]) for call in calls]
    return tools, [
        build_entry(result.isError, result.content[0].text, result.structuredContent)
        for result in results
    ]


async def open_auth(url):
    browser = Browser()
    metadata = OAuthClientMetadata(client_name="mcp 1", redirect_uris=[await browser.listen()])

    async def wait_for_code():
        answer = await browser.wait_for_answer()
        return answer["code"], answer["state"]

    return OAuthClientProvider(url, metadata, MemoryStorage(), browser.open, wait_for_code)


report("mcp", session)
