"""People buy, connect and manage, and a page of another origin calls, in a real browser."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from starlette.responses import HTMLResponse
from starlette.types import Receive, Scope, Send

from serving.http import respond
from tests.support.browser import BROWSER_TESTS, WIDTHS, BrowserWindow, open_window
from tests.support.example_market import make_coverage
from tests.support.oauth_client import register
from tests.support.running_service import RunningService, run_service, serve_app
from tests.support.web_page import (
    API_KEY,
    EMAIL,
    HOME,
    TITLE,
    WELCOME,
    Page,
    fetch_readings,
    get_usage_status,
    parse_heat_map,
    run_second_service,
    wait_for_link,
)

pytestmark = [*BROWSER_TESTS]

BUYER = "a.buyer@a-department-with-a-long-name.example.com"


@pytest.mark.clause("18.1", "18.2", "18.4")
@pytest.mark.parametrize(
    ("width", "scheme", "is_scripted"),
    [(WIDTHS[1], "light", True), (WIDTHS[0], "dark", True), (WIDTHS[0], "light", False)],
)
async def test_a_person_buys_access_and_goes_back_without_buying_twice(
    served: RunningService, width: int, scheme: str, is_scripted: bool
) -> None:
    # The browser logs the status of the refused form, which is 400.
    async with open_window(width, scheme, is_scripted=is_scripted, accepts="400") as walk:
        await walk.page.goto(f"{served.base_url}/buy")
        await walk.wait_for_title("Choose a plan")
        # The browser accepts this address, and the service does not.
        await walk.fill_in("contact_email", "buyer@localhost")
        await walk.wait_for_title("Choose a plan")
        assert await walk.page.evaluate("document.activeElement.name") == "contact_email"
        await walk.page.keyboard.press("Control+A")
        await walk.page.keyboard.type(BUYER)
        async with walk.page.expect_navigation():
            await walk.page.keyboard.press("Enter")
        await walk.wait_for_title("Pay for the premium plan")
        await walk.press("Pay USD 129")
        await walk.wait_for_title("Your key")
        api_key = await walk.page.inner_text("pre >> nth=0")
        assert API_KEY.fullmatch(api_key)
        assert await get_usage_status(served, api_key) == 200
        await walk.page.reload()
        await walk.wait_for_title("No new key to show")
        await walk.page.go_back()
        assert await walk.title() in {"Paid in the sandbox", "Choose a plan"}
        assert walk.hosts == {urlsplit(served.base_url).netloc}
    assert len(await served.access.list_memberships_by_email(BUYER)) == 1


@pytest.mark.clause("sales")
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_buyer_cancels_with_the_pointer(served: RunningService, scheme: str) -> None:
    checkout = await sent(served, "checkout", contact_email=MEMBER)
    async with open_window(WIDTHS[0], scheme) as walk:
        await walk.page.goto(checkout["checkout_url"])
        await walk.check_fits()
        async with walk.page.expect_navigation():
            await walk.page.get_by_role("button", name="Cancel").click()
        assert await walk.title() == "Checkout cancelled"
        assert await walk.page.get_by_role("status").count() == 1
        assert await walk.page.get_by_role("button").count() == 0
        await walk.check_fits()
    claim = {"claim_token": checkout["claim_token"]}
    assert (await served.client.post("/api/v1/access/claim", json=claim)).status_code == 404


HTML = (b"content-type", b"text/html; charset=utf-8")
DONE = b"<!doctype html><title>Connected</title><h1>Connected</h1>"


@dataclass
class ProgramCallback:
    """The page of a program that receives the code and leads on to a page at another host."""

    base_url: str = ""
    answers: list[dict[str, list[str]]] = field(default_factory=list)

    @property
    def done_url(self) -> str:
        return f"{self.base_url.replace('127.0.0.1', 'localhost')}/done"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/callback":
            self.answers.append(parse_qs(scope["query_string"].decode()))
            await respond(scope, send, 302, [(b"location", self.done_url.encode())])
        else:
            await respond(scope, send, 200, [HTML], DONE)


@asynccontextmanager
async def run_program() -> AsyncIterator[ProgramCallback]:
    program = ProgramCallback()
    async with serve_app(lambda _: program) as program.base_url:
        yield program


async def build_authorize_url(served: RunningService, program: ProgramCallback) -> str:
    uri = f"{program.base_url}/callback"
    client = await register(served, uri, name="Desk Assistant")
    query = client.build_request(redirect_uri=uri, state="opaque")
    return f"{served.base_url}/oauth/authorize?{urlencode(query)}"


async def buys(walk: BrowserWindow) -> None:
    """Buy the plan in the sandbox and return to the request."""
    await walk.wait_for_title("Sign in")
    await walk.press("Buy the plan")
    await walk.wait_for_title("Buy the plan")
    await walk.fill_in("contact_email", EMAIL)
    await walk.page.wait_for_url("**/sandbox/checkout/*")
    await walk.wait_for_title("Pay for the premium plan")
    await walk.press("Pay USD 129")
    await walk.wait_for_title("Paid in the sandbox")
    await walk.press("Continue to connect the program")


async def signs_in(served: RunningService, walk: BrowserWindow, email: str = EMAIL) -> None:
    """Open a link from the mailbox."""
    await walk.wait_for_title("Sign in")
    await walk.fill_in("contact_email", email)
    await walk.wait_for_title("Check your inbox")
    await walk.page.goto(served.base_url + await wait_for_link(served))
    await walk.wait_for_title("Sign in to Signals")
    await walk.press("Sign in")


async def presses_and_arrives(walk: BrowserWindow, program: ProgramCallback, button: str) -> None:
    await walk.wait_for_title("Connect a program")
    assert "a program on this computer" in await walk.page.inner_text("main")
    await walk.press(button)
    await walk.page.wait_for_url(program.done_url)


@pytest.mark.clause("consent", "pages")
@pytest.mark.parametrize(
    ("scheme", "is_scripted"), [("dark", True), ("light", False)], ids=["scripts", "no-scripts"]
)
async def test_a_person_without_a_plan_buys_signs_in_and_connects_by_keyboard_only(
    served: RunningService, scheme: str, is_scripted: bool
) -> None:
    async with (
        run_program() as program,
        open_window(WIDTHS[0], scheme, is_scripted=is_scripted) as walk,
    ):
        await walk.page.goto(await build_authorize_url(served, program))
        await buys(walk)
        await signs_in(served, walk)
        await presses_and_arrives(walk, program, "Allow")
    (answer,) = program.answers
    assert (answer["state"], answer["iss"]) == (["opaque"], [served.base_url])
    assert answer["code"][0].startswith("ac_")


@pytest.mark.clause("consent", "pages")
async def test_the_owner_connects_a_program_without_a_plan_and_can_cancel(
    served: RunningService,
) -> None:
    async with (
        run_program() as program,
        run_second_service(served, owner_uid=os.getuid()) as own,
        open_window(WIDTHS[1]) as walk,
    ):
        for button in ("Cancel", "Allow as owner of this service"):
            await walk.page.goto(await build_authorize_url(own, program))
            await presses_and_arrives(walk, program, button)
    denied, allowed = program.answers
    assert denied["error"] == ["access_denied"]
    assert allowed["code"][0].startswith("ac_")


MEMBER = "procurement.agent+signals@a-department-with-a-long-name.example.com"
LABEL = "the server that asks every hour, in the rack on the left"
SAMPLE, SIMULATED = "Sample, not live data", "Simulated market"


async def sent(served: RunningService, path: str, **body: str) -> dict[str, Any]:
    return (await served.client.post(f"/api/v1/access/{path}", json=body)).json()


async def statuses(served: RunningService, api_key: str) -> tuple[int, int]:
    """Return the statuses of a call with a key over MCP, by the SDK's client, and over REST."""
    headers = {"Authorization": f"Bearer {api_key}"}
    async with httpx2.AsyncClient(headers=headers) as http:
        transport = streamable_http_client(f"{served.base_url}/api/v1/mcp", http_client=http)
        async with Client(transport, read_timeout_seconds=10) as client:
            result = await client.call_tool("signals_get_state", {"ticker": "BTC"})
    response = await served.client.get("/api/v1/state?ticker=BTC", headers=headers)
    return (result.meta or {}).get("signals/status", 200), response.status_code


async def pays(served: RunningService, walk: BrowserWindow) -> None:
    """Pay for the checkout that the agent began; the agent then has its key."""
    checkout = await sent(served, "checkout", contact_email=MEMBER)
    token = checkout["claim_token"]
    await walk.page.goto(checkout["checkout_url"])
    await walk.wait_for_title("Pay for the premium plan")
    assert (await sent(served, "claim", claim_token=token))["status"] == "pending"
    await walk.press("Pay USD 129")
    await walk.wait_for_title("Paid in the sandbox")
    assert walk.page.url == checkout["checkout_url"]
    assert (await sent(served, "claim", claim_token=token))["status"] == "active"


async def makes_a_key(walk: BrowserWindow) -> str:
    """Return a new key, copied by its button, or from the text if scripts are off."""
    await walk.press("API access")
    await walk.fill_in("label", LABEL)
    await walk.wait_for_title("Your new key")
    if not walk.is_scripted:
        return await walk.page.inner_text("pre >> nth=0")
    await walk.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await walk.tab_to("Copy")
    await walk.page.keyboard.press("Enter")
    await walk.page.get_by_text("Copied").wait_for()
    return await walk.page.evaluate("navigator.clipboard.readText()")


@pytest.mark.clause("pages", "dashboard", "sales", "5.13")
@pytest.mark.parametrize(
    ("width", "scheme", "is_scripted"),
    [(WIDTHS[0], "dark", True), (WIDTHS[1], "light", True), (WIDTHS[0], "light", False)],
)
async def test_a_stranger_buys_looks_makes_a_key_and_revokes_it_by_keyboard_only(
    served: RunningService, width: int, scheme: str, is_scripted: bool
) -> None:
    async with open_window(width, scheme, is_scripted=is_scripted) as walk:
        await walk.page.goto(served.base_url)
        await walk.wait_for_title(WELCOME)
        assert await walk.page.inner_text(".badge") == SAMPLE
        await walk.press("Buy access")
        await walk.wait_for_title("Choose a plan")
        await pays(served, walk)
        await walk.press("Sign in")
        await signs_in(served, walk, MEMBER)
        await walk.wait_for_title("API access")
        assert walk.page.url == served.base_url + HOME
        await walk.press("Board")
        await walk.wait_for_title(TITLE)
        assert await walk.page.inner_text(".badge") == SIMULATED
        shown = Page(httpx.Response(200, html=await walk.page.content()))
        # The agent's answers are the same.
        assert parse_heat_map(shown) == await fetch_readings(served, "4h")
        await walk.press("BTC")
        await walk.wait_for_title("Bitcoin (BTC)")
        api_key = await makes_a_key(walk)
        assert API_KEY.fullmatch(api_key)
        assert await statuses(served, api_key) == (200, 200)
        await walk.press("I have stored the key: back to API access")
        await walk.wait_for_title("API access")
        assert "2 of 10,000" in await walk.page.inner_text("main")
        # Renaming needs no script either.
        await walk.tab_to(f"Rename {LABEL}")
        await walk.page.keyboard.press("Enter")
        await walk.fill_in("label", "server")
        await walk.wait_for_title("API access")
        await walk.press("Revoke server")
        await walk.wait_for_title("Revoke this key?")
        assert "server" in await walk.page.inner_text("main")
        await walk.press("Revoke key")
        await walk.wait_for_title("API access")
        assert await statuses(served, api_key) == (403, 403)
        await walk.press("Sign out")
        await walk.wait_for_title("Sign in")
        await walk.press("Board")
        assert await walk.page.inner_text(".badge") == SAMPLE
        assert walk.hosts == {urlsplit(served.base_url).netloc}


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


@dataclass
class AppPages:
    """A service, and the addresses of pages of an allowed and of a foreign origin."""

    service: RunningService
    allowed: str
    foreign: str

    async def fetch(self, walk: Any, path: str, **options: Any) -> dict[str, Any]:
        headers = {**self.service.key_headers, **options.pop("headers", {})}
        return await walk.page.evaluate(
            FETCH, [self.service.base_url + path, {"headers": headers, **options}]
        )

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
    page = HTMLResponse("<title>An app</title><link rel=icon href=data:,>")
    async with serve_app(lambda _: page) as address:
        # Browsers resolve every name below localhost to this machine.
        allowed, foreign = (
            address.replace("127.0.0.1", f"{name}.localhost") for name in ("app", "evil")
        )
        async with run_service(
            tmp_path, make_coverage(), allowed_origins=(allowed,), daily_limit=4
        ) as service:
            yield AppPages(service, allowed, foreign)


@pytest.mark.clause("4.0.7")
async def test_a_page_of_an_allowed_origin_reads_results_quota_and_errors(pages: AppPages) -> None:
    async with open_window(WIDTHS[1], accepts="Failed to load resource") as walk:
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


@pytest.mark.clause("4.0.7")
@pytest.mark.clause("4.0.8", "endpoint")
async def test_a_page_of_a_foreign_origin_reads_only_what_is_public(pages: AppPages) -> None:
    async with open_window(WIDTHS[1], accepts="Failed to load resource|CORS policy") as walk:
        await walk.page.goto(pages.foreign)
        failed = {"failure": "TypeError"}
        assert await pages.fetch(walk, "/api/v1/state?ticker=BTC") == failed
        assert await pages.call_mcp(walk) == failed
        # Without headers, the browser sends no preflight.
        catalog = await walk.page.evaluate(FETCH, [f"{pages.service.base_url}/api/v1/catalog", {}])
        assert catalog["status"] == 200
        public = await pages.fetch(walk, "/.well-known/oauth-protected-resource/api/v1/mcp")
        assert public["status"] == 404
    assert (await pages.service.get_api("/usage")).json()["quota"]["used_today"] == 1
