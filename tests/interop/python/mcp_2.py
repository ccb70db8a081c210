"""The official SDK's client, version 2.

Its argument is the mode that negotiates the protocol, or `oauth`: then its user signs in.
"""

import os
import sys

import httpx2
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata
from plan import Browser, MemoryStorage, build_entry, report

MODE = sys.argv[1]


async def session(url, headers, calls):
    auth, mode = (await open_auth(url), "auto") if MODE == "oauth" else (None, MODE)
    async with (
        httpx2.AsyncClient(headers=headers, auth=auth) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        tools = [tool.name for tool in (await client.list_tools()).tools]
        results = [await client.call_tool(call["tool"], call["arguments"]) for call in calls]
    return tools, [
        build_entry(result.is_error, result.content[0].text, result.structured_content)
        for result in results
    ]


async def open_auth(url):
    browser = Browser()
    metadata = OAuthClientMetadata(client_name="mcp 2", redirect_uris=[await browser.listen()])

    async def wait_for_code():
        return AuthorizationCodeResult(**await browser.wait_for_answer())

    document = os.environ.get("CLIENT_METADATA_URL")
    return OAuthClientProvider(
        *(url, metadata, MemoryStorage(), browser.open, wait_for_code),
        client_metadata_url=document,
    )


report("mcp", session, f"mcp, mode {MODE}")
