"""A person connects a program in a real browser, from nothing to the program's own page."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlencode

import pytest
from starlette.types import Receive, Scope, Send

from serving.http import respond
from tests.support.browser import BROWSER_TESTS, WIDTHS, BrowserWindow, open_window
from tests.support.running_service import RunningService, open_loopback_socket, run_app
from tests.support.web_page import CHALLENGE, EMAIL, run_second_service, wait_for_link

pytestmark = [pytest.mark.clause("consent", "pages"), *BROWSER_TESTS]

HTML = (b"content-type", b"text/html; charset=utf-8")
DONE = b"<!doctype html><title>Connected</title><h1>Connected</h1>"


@dataclass
class ProgramCallback:
    """The page of a program that receives the code and leads on to a page at another host."""

    port: int
    answers: list[dict[str, list[str]]] = field(default_factory=list)

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.port}/callback"

    @property
    def done_url(self) -> str:
        return f"http://localhost:{self.port}/done"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/callback":
            self.answers.append(parse_qs(scope["query_string"].decode()))
            await respond(scope, send, 302, [(b"location", self.done_url.encode())])
        else:
            await respond(scope, send, 200, [HTML], DONE)


@asynccontextmanager
async def run_program() -> AsyncIterator[ProgramCallback]:
    with open_loopback_socket() as bound:
        program = ProgramCallback(bound.getsockname()[1])
        async with run_app(program, bound):
            yield program


async def build_authorize_url(served: RunningService, program: ProgramCallback) -> str:
    """Register the program; return the address that it opens in the browser."""
    metadata = {"client_name": "Desk Assistant", "redirect_uris": [program.uri]}
    registered = await served.client.post("/oauth/register", json=metadata)
    query = {
        "response_type": "code",
        "client_id": registered.json()["client_id"],
        "redirect_uri": program.uri,
        "state": "opaque",
        "code_challenge": CHALLENGE,
        "code_challenge_method": "S256",
        "resource": f"{served.base_url}/mcp",
    }
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


async def signs_in(served: RunningService, walk: BrowserWindow) -> None:
    await walk.wait_for_title("Sign in")
    await walk.fill_in("contact_email", EMAIL)
    await walk.wait_for_title("Check your inbox")
    await walk.page.goto(served.base_url + await wait_for_link(served))
    await walk.wait_for_title("Sign in to Signals")
    await walk.press("Sign in")


async def presses_and_arrives(walk: BrowserWindow, program: ProgramCallback, button: str) -> None:
    """Press a button of the consent page; the browser ends at the program's last page."""
    await walk.wait_for_title("Connect a program")
    assert "a program on this computer" in await walk.page.inner_text("main")
    await walk.press(button)
    await walk.page.wait_for_url(program.done_url)


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
        assert walk.complaints == []
    (answer,) = program.answers
    assert (answer["state"], answer["iss"]) == (["opaque"], [served.base_url])
    assert answer["code"][0].startswith("ac_")


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
        assert walk.complaints == []
    denied, allowed = program.answers
    assert denied["error"] == ["access_denied"]
    assert allowed["code"][0].startswith("ac_")
