"""Pages of other origins call the service from a real browser: `make prove`."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import HTMLResponse

from tests.support.browser import BROWSER_TESTS, WIDTHS, open_window
from tests.support.example_market import make_coverage
from tests.support.running_service import (
    RunningService,
    open_loopback_socket,
    run_app,
    run_service,
)

pytestmark = [pytest.mark.clause("4.0.7"), *BROWSER_TESTS]

# Calls the service as a web app does, and returns what the browser lets the page see.
FETCH = """
async ([address, options]) => {
  try {
    const response = await fetch(address, options);
    const {status} = response;
    return {status, headers: Object.fromEntries(response.headers), body: await response.text()};
  } catch (error) {
    return {failure: error.name};
  }
}
"""
CALL = (
    '{"jsonrpc": "2.0", "id": 1, "method": "tools/call",'
    ' "params": {"name": "signals_get_state", "arguments": {"ticker": "BTC"}}}'
)


class AppPages:
    """A service, and pages of an allowed and of a foreign origin."""

    def __init__(self, service: RunningService, port: int) -> None:
        self.service = service
        # Browsers resolve every name below localhost to this machine.
        self.allowed = f"http://app.localhost:{port}"
        self.foreign = f"http://evil.localhost:{port}"

    async def fetch(self, walk: Any, path: str, **options: Any) -> dict[str, Any]:
        headers = {**self.service.key_headers, **options.pop("headers", {})}
        seen: dict[str, Any] = await walk.page.evaluate(
            FETCH, [self.service.base_url + path, {"headers": headers, **options}]
        )
        return seen

    async def fetch_plainly(self, walk: Any, path: str) -> dict[str, Any]:
        """Return what the page sees of a GET that the browser sends without a preflight."""
        seen: dict[str, Any] = await walk.page.evaluate(FETCH, [self.service.base_url + path, {}])
        return seen

    async def call_mcp(self, walk: Any, **headers: str) -> dict[str, Any]:
        sent = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2025-06-18",
            **headers,
        }
        return await self.fetch(walk, "/api/v1/mcp", method="POST", body=CALL, headers=sent)


@pytest.fixture
async def pages(tmp_path: Path) -> AsyncIterator[AppPages]:
    """A service that allows one of two origins, which another server has pages of."""
    async with AsyncExitStack() as stack:
        bound = stack.enter_context(open_loopback_socket())
        port = bound.getsockname()[1]
        page = HTMLResponse("<title>An app</title><link rel=icon href=data:,>")
        await stack.enter_async_context(run_app(page, bound))
        allowed = (f"http://app.localhost:{port}",)
        service = await stack.enter_async_context(
            run_service(tmp_path, make_coverage(), allowed_origins=allowed, daily_limit=4)
        )
        yield AppPages(service, port)


async def test_a_page_of_an_allowed_origin_reads_results_quota_and_errors(pages: AppPages) -> None:
    async with open_window(WIDTHS[1]) as walk:
        await walk.page.goto(pages.allowed)
        rest = await pages.fetch(walk, "/api/v1/state?ticker=BTC")
        assert (rest["status"], rest["headers"]["x-ratelimit-remaining"]) == (200, "3")
        tag = {"If-None-Match": rest["headers"]["etag"]}
        again = await pages.fetch(walk, "/api/v1/state?ticker=BTC", headers=tag)
        assert (again["status"], again["body"]) == (304, "")
        assert again["headers"]["x-ratelimit-remaining"] == "2"
        mcp = await pages.call_mcp(walk, **{"Mcp-Method": "tools/call", "Mcp-Name": "x"})
        assert (mcp["status"], mcp["headers"]["x-ratelimit-remaining"]) == (200, "1")
        assert '"isError":false' in mcp["body"]
        refused = await pages.fetch(walk, "/api/v1/state?ticker=NOPE")
        assert (refused["status"], "unknown_ticker" in refused["body"]) == (400, True)
        assert refused["headers"]["x-ratelimit-remaining"] == "0"
        exhausted = await pages.fetch(walk, "/api/v1/state?ticker=BTC")
        assert (exhausted["status"], exhausted["headers"]["retry-after"] > "0") == (429, True)
        for wrong in ({"Authorization": "Bearer ek_short"}, {"Authorization": "", "X-Api-Key": ""}):
            unknown = await pages.fetch(walk, "/api/v1/state", headers=wrong)
            assert (unknown["status"], "invalid_key" in unknown["body"]) == (401, True)
            assert unknown["headers"]["www-authenticate"] == "Bearer"
        ended = await pages.fetch(walk, "/api/v1/mcp", method="DELETE")
        assert (ended["status"], ended["headers"]["allow"]) == (405, "POST")


@pytest.mark.clause("4.0.8", "endpoint")
async def test_a_page_of_a_foreign_origin_reads_only_what_is_public(pages: AppPages) -> None:
    async with open_window(WIDTHS[1]) as walk:
        await walk.page.goto(pages.foreign)
        failed = {"failure": "TypeError"}
        assert await pages.fetch(walk, "/api/v1/state?ticker=BTC") == failed
        assert await pages.call_mcp(walk) == failed
        assert (await pages.fetch_plainly(walk, "/api/v1/catalog"))["status"] == 200
        public = await pages.fetch(walk, "/.well-known/oauth-protected-resource/api/v1/mcp")
        assert public["status"] == 404
    assert (await pages.service.get_api("/usage")).json()["quota"]["used_today"] == 1
