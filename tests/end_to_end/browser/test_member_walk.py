"""A person's whole walk, from a visitor to a member with a revoked key: `make prove`.

They use a real browser by keyboard only; their agent uses REST and MCP.
"""

from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.support.browser import BROWSER_TESTS, WIDTHS, BrowserWindow, open_window
from tests.support.running_service import RunningService
from tests.support.web_page import (
    API_KEY,
    HOME,
    TITLE,
    Page,
    fetch_readings,
    parse_heat_map,
    wait_for_link,
)

pytestmark = [pytest.mark.clause("pages", "dashboard", "sales"), *BROWSER_TESTS]

EMAIL = "procurement.agent+signals@a-department-with-a-long-name.example.com"
LABEL = "the server that asks every hour, in the rack on the left"
SAMPLE, SIMULATED = "Sample, not live data", "Simulated market"


class Window(NamedTuple):
    """The browser window of a person: its size and whether scripts run."""

    width: int
    scheme: str
    is_scripted: bool


WINDOWS = (
    Window(WIDTHS[0], "dark", is_scripted=True),
    Window(WIDTHS[1], "light", is_scripted=True),
    Window(WIDTHS[0], "light", is_scripted=False),
)


async def sent(served: RunningService, path: str, **body: str) -> dict[str, Any]:
    """Return the response to an agent's POST to an endpoint of the purchase."""
    response = await served.client.post(f"/api/v1/access/{path}", json=body)
    answer: dict[str, Any] = response.json()
    return answer


async def statuses(served: RunningService, api_key: str) -> tuple[int, int]:
    """Return the statuses of a call with a key over MCP, by the SDK's client, and over REST."""
    headers = {"Authorization": f"Bearer {api_key}"}
    async with httpx2.AsyncClient(headers=headers) as http:
        transport = streamable_http_client(f"{served.base_url}/api/v1/mcp", http_client=http)
        async with Client(transport, read_timeout_seconds=10) as client:
            result = await client.call_tool("signals_get_state", {"ticker": "BTC"})
    response = await served.client.get("/api/v1/state?ticker=BTC", headers=headers)
    return (result.meta or {}).get("signals/status", 200), response.status_code


async def looks_around(served: RunningService, walk: BrowserWindow) -> None:
    """Open the sample and the page about buying access."""
    await walk.page.goto(served.base_url)
    await walk.wait_for_title(TITLE)
    assert await walk.page.inner_text(".badge") == SAMPLE
    await walk.press("Buy access")
    await walk.wait_for_title("Choose a plan")


async def pays(served: RunningService, walk: BrowserWindow) -> None:
    """Pay for the checkout that the agent began; the agent then has its key."""
    checkout = await sent(served, "checkout", contact_email=EMAIL)
    token = checkout["claim_token"]
    await walk.page.goto(checkout["checkout_url"])
    await walk.wait_for_title("Pay for the premium plan")
    assert (await sent(served, "claim", claim_token=token))["status"] == "pending"
    await walk.press("Pay USD 129")
    await walk.wait_for_title("Paid in the sandbox")
    assert walk.page.url == checkout["checkout_url"]
    assert (await sent(served, "claim", claim_token=token))["status"] == "active"


async def signs_in(served: RunningService, walk: BrowserWindow) -> None:
    """Open the page of the keys by a link from the mailbox."""
    await walk.press("Sign in")
    await walk.wait_for_title("Sign in")
    await walk.fill_in("contact_email", EMAIL)
    await walk.wait_for_title("Check your inbox")
    await walk.page.goto(served.base_url + await wait_for_link(served))
    await walk.wait_for_title("Sign in to Signals")
    await walk.press("Sign in")
    await walk.wait_for_title("API access")
    assert walk.page.url == served.base_url + HOME


async def sees_what_is_so_now(served: RunningService, walk: BrowserWindow) -> None:
    """Compare the board with the agent's answers, and open an asset."""
    await walk.press("Board")
    await walk.wait_for_title(TITLE)
    assert await walk.page.inner_text(".badge") == SIMULATED
    shown = Page(httpx.Response(200, html=await walk.page.content()))
    assert parse_heat_map(shown) == await fetch_readings(served, "4h")
    await walk.press("BTC")
    await walk.wait_for_title("Bitcoin (BTC)")


async def makes_a_key(walk: BrowserWindow) -> str:
    """Return a new key, copied by its button, or from the text if scripts are off."""
    await walk.press("API access")
    await walk.fill_in("label", LABEL)
    await walk.wait_for_title("Your new key")
    api_key = await (copied(walk) if walk.is_scripted else walk.page.inner_text("pre >> nth=0"))
    assert API_KEY.fullmatch(api_key)
    return str(api_key)


async def copied(walk: BrowserWindow) -> str:
    """Press the first copy button; return what the clipboard has then."""
    await walk.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await walk.tab_to("Copy")
    await walk.page.keyboard.press("Enter")
    await walk.page.get_by_text("Copied").wait_for()
    text: str = await walk.page.evaluate("navigator.clipboard.readText()")
    return text


async def renames_it(walk: BrowserWindow) -> None:
    """Rename the key, which needs no script either."""
    await walk.tab_to(f"Rename {LABEL}")
    await walk.page.keyboard.press("Enter")
    await walk.fill_in("label", "server")
    await walk.wait_for_title("API access")


async def revokes_it(walk: BrowserWindow) -> None:
    await walk.press("Revoke server")
    await walk.wait_for_title("Revoke this key?")
    assert "server" in await walk.page.inner_text("main")
    await walk.press("Revoke key")
    await walk.wait_for_title("API access")


@pytest.mark.clause("5.13")
@pytest.mark.parametrize("window", WINDOWS)
async def test_a_stranger_buys_looks_makes_a_key_and_revokes_it_by_keyboard_only(
    served: RunningService, window: Window
) -> None:
    async with open_window(window.width, window.scheme, is_scripted=window.is_scripted) as walk:
        await looks_around(served, walk)
        await pays(served, walk)
        await signs_in(served, walk)
        await sees_what_is_so_now(served, walk)
        api_key = await makes_a_key(walk)
        assert await statuses(served, api_key) == (200, 200)
        await walk.press("I have stored the key: back to API access")
        await walk.wait_for_title("API access")
        assert "2 of 10,000" in await walk.page.inner_text("main")
        await renames_it(walk)
        await revokes_it(walk)
        assert await statuses(served, api_key) == (403, 403)
        await walk.press("Sign out")
        await walk.wait_for_title("Sign in")
        await walk.press("Board")
        assert await walk.page.inner_text(".badge") == SAMPLE
        assert walk.complaints == []
        assert walk.hosts == {urlsplit(served.base_url).netloc}
