"""The official SDK's OAuth client, version 2."""

import os

import httpx2
from browser import Browser, MemoryStorage
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata
from plan import build_entry, report


async def session(url, headers, calls):
    browser = Browser()
    metadata = OAuthClientMetadata(client_name="mcp 2", redirect_uris=[await browser.listen()])

    async def wait_for_code():
        return AuthorizationCodeResult(**await browser.wait_for_answer())

    auth = OAuthClientProvider(
        url,
        metadata,
        MemoryStorage(),
        browser.open,
        wait_for_code,
        client_metadata_url=os.environ.get("CLIENT_METADATA_URL"),
    )
    async with (
        httpx2.AsyncClient(auth=auth) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        tools = [tool.name for tool in (await client.list_tools()).tools]
        results = [await client.call_tool(call["tool"], call["arguments"]) for call in calls]
    return tools, [
        build_entry(result.is_error, result.content[0].text, result.structured_content)
        for result in results
    ]


report("mcp", session, "mcp, `OAuthClientProvider`")
