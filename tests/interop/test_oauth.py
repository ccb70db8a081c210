"""Other people's OAuth clients connect by URL, each from nothing to an answer.

A client is a script of the same shape as those of test_clients.py. It writes the address that it
wants opened to its error output. A person opens it in a real browser, signs in or buys, and allows.
"""

import asyncio
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from access.oauth.clients import ClientDocuments
from tests.doubles.document_host import HOST, build_response, open_document_host
from tests.end_to_end.browser.test_walks import buys, signs_in
from tests.interop.test_clients import CATALOG, ENDS_WITHIN_S, PAGE, STATE, Client
from tests.support.browser import BROWSER_TESTS, WIDTHS, open_window
from tests.support.example_market import make_coverage
from tests.support.running_service import ManualClock, RunningService, run_service

pytestmark = [pytest.mark.clause("interop", "consent"), *BROWSER_TESTS]

CALLS: list[tuple[str, dict[str, Any]]] = [(STATE, {"ticker": "BTC"}), (CATALOG, {})]
CLIENTS = [
    Client("mcp_1", "oauth"),
    Client("mcp_2", "oauth"),
    Client("fastmcp_4", "oauth"),
    Client("authlib_1"),
    Client("sdk_1_oauth"),
    Client("client_2_oauth"),
    Client("mcp_remote_oauth"),
]
CLIENTS_WITH_DOCUMENTS = [
    client for client in CLIENTS if client.name in {"mcp_2", "client_2_oauth"}
]


async def allow(served: RunningService, url: str) -> None:
    """Open a client's address in a browser, buy the plan, sign in by mail, and press Allow."""
    # The last page is the client's own, which may have no icon, and may try to close its window.
    own = "Failed to load resource|Scripts may close only"
    async with open_window(WIDTHS[1], accepts=own) as walk:
        await walk.page.goto(url)
        await buys(walk)
        await signs_in(served, walk)
        await walk.wait_for_title("Connect a program")
        await walk.press("Allow")
        await walk.page.wait_for_load_state()
        assert not walk.page.url.startswith(served.base_url)


async def run_client(client: Client, served: RunningService, **environment: str) -> Any:
    """Run a client, act as its user in a browser, and return its report."""
    plan = {
        "url": f"{served.base_url}/mcp",
        "sessions": [
            {
                "api_key": None,
                "calls": [{"tool": tool, "arguments": arguments} for tool, arguments in CALLS],
            }
        ],
    }
    command, folder = await asyncio.to_thread(client.command)
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        # Programs that open a window themselves print the address instead.
        env={**os.environ, "BROWSER": "/bin/echo", **environment},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    process.stdin.write(json.dumps(plan).encode())
    process.stdin.close()
    pattern = re.compile(re.escape(served.base_url) + r"/oauth/authorize\?\S+")
    lines, is_opened = [], False
    try:
        async with asyncio.timeout(ENDS_WITHIN_S):
            while line := (await process.stdout.readline()).decode():
                lines.append(line)
                if (opened := pattern.search(line)) and not is_opened:
                    is_opened = True
                    await allow(served, opened[0])
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, "".join(lines)[-4000:]
    assert is_opened
    return json.loads(lines[-1])


async def check_report(served: RunningService, report: dict[str, Any]) -> None:
    """Assert that a client listed the tools and got the results that a key gets."""
    (session,) = report["sessions"]
    assert CATALOG in session["tools"]
    for (tool, arguments), result in zip(CALLS, session["results"], strict=True):
        assert not result["is_error"], result
        assert json.loads(result["text"]) == await served.fetch_answer("mcp", tool, **arguments)


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
async def test_a_client_registers_and_gets_an_answer_once_its_user_allows_it(
    client: Client, served: RunningService
) -> None:
    report = await run_client(client, served)
    name = report["client"].partition(",")[0]
    assert f"| {name} | {report['version']} | OAuth" in PAGE
    await check_report(served, report)


@pytest.mark.clause("11.2", "11.3")
@pytest.mark.parametrize("client", CLIENTS_WITH_DOCUMENTS, ids=lambda client: client.name)
async def test_a_client_with_a_metadata_document_gets_an_answer_without_registration(
    client: Client, tmp_path: Path
) -> None:
    client_id = f"https://{HOST}/client.json"
    # The clients listen on a port of their own choice.
    redirect_uris = [f"http://{host}/callback" for host in ("localhost", "127.0.0.1")]
    document = {
        "client_id": client_id,
        "client_name": client.name,
        "redirect_uris": redirect_uris,
        "token_endpoint_auth_method": "none",
    }
    clock = ManualClock()
    async with open_document_host() as host:
        host.responses["/client.json"] = build_response(document)
        documents = ClientDocuments(clock, host.transport, host.resolve)
        async with run_service(
            tmp_path, make_coverage(), clock=clock, client_documents=documents
        ) as served:
            report = await run_client(client, served, CLIENT_METADATA_URL=client_id)
            await check_report(served, report)
            keys = await served.keys.list()
        await documents.close()
    assert [key.client_id for key in keys if key.client_id] == [client_id]
    assert len(host.requests) == 1
