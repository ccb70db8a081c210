"""The official SDK's OAuth client, version 1."""

from browser import Browser, MemoryStorage
from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamablehttp_client
from mcp.shared.auth import OAuthClientMetadata
from plan import build_entry, report


async def session(url, headers, calls):
    browser = Browser()
    metadata = OAuthClientMetadata(client_name="mcp 1", redirect_uris=[await browser.listen()])

    async def wait_for_code():
        answer = await browser.wait_for_answer()
        return answer["code"], answer["state"]

    auth = OAuthClientProvider(url, metadata, MemoryStorage(), browser.open, wait_for_code)
    async with (
        streamablehttp_client(url, auth=auth) as (read, write, _),
        ClientSession(read, write) as client,
    ):
        await client.initialize()
        tools = [tool.name for tool in (await client.list_tools()).tools]
        results = [await client.call_tool(call["tool"], call["arguments"]) for call in calls]
    return tools, [
        build_entry(result.isError, result.content[0].text, result.structuredContent)
        for result in results
    ]


report("mcp", session, "mcp, `OAuthClientProvider`")
