"""If a proxy serves everything below a path, every link, form and cookie still works."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urljoin

import httpx
import pytest

from access.billing.sandbox import SandboxBilling
from service.http.app import AppConfig, create_app
from service.http.resources import Resources
from tests.support.running_service import (
    RunningService,
    open_loopback_socket,
    run_app,
    skip_sleep,
)
from tests.support.web_page import EMAIL, LINK, Page, buy_plan, check_page

pytestmark = pytest.mark.clause("pages", "dashboard")

BELOW = "/below/this"


class Prefixed:
    """A stand-in for a proxy: it forwards requests below a path, and no others."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["path"].startswith(f"{BELOW}/"), scope["path"]
        path = scope["path"].removeprefix(BELOW)
        await self._app({**scope, "path": path, "raw_path": path.encode()}, receive, send)


@asynccontextmanager
async def below(served: RunningService) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a service over the same stores that is reachable only below a path."""
    with open_loopback_socket() as bound:
        address = f"http://127.0.0.1:{bound.getsockname()[1]}"
        base_url = address + BELOW
        app = create_app(
            AppConfig(base_url),
            Resources(
                served.market,
                served.access,
                SandboxBilling(served.access, served.clock, base_url),
                served.mailbox,
                served.clock,
                skip_sleep,
            ),
        )
        async with (
            run_app(Prefixed(app), bound),
            httpx.AsyncClient(base_url=address, follow_redirects=True) as client,
        ):
            yield client


async def signed_in(served: RunningService, client: httpx.AsyncClient) -> httpx.Response:
    """Sign in by a mailed link; return the response."""
    answer = await client.post(f"{BELOW}/sign-in", data={"contact_email": EMAIL})
    check_page(answer, 200, "Check your inbox")
    (link,) = LINK.findall((await served.mailbox.wait_for_mail()).get_content())
    return await client.post(link)


def links_of(answer: httpx.Response) -> set[str]:
    """Return the addresses that a page links to or loads."""
    page = Page(answer)
    links = [one.get("href") for tag in ("a", "link") for one in page.find_all(tag)]
    links += [script["src"] for script in page.find_all("script")]
    return {urljoin(str(answer.url), link).partition("#")[0] for link in links if link}


async def walked(client: httpx.AsyncClient, start: str, pages: int = 20) -> set[str]:
    """Follow all links within the service from a page; every one must exist. Return the paths."""
    waiting, seen = [str(client.base_url.join(start))], set[str]()
    while waiting and len(seen) < pages:
        answer = await client.get(waiting.pop(0))
        assert answer.status_code == 200, answer.url
        seen.add(answer.url.path)
        if answer.headers["content-type"].startswith("text/html"):
            own = {link for link in links_of(answer) if link.startswith(str(client.base_url))}
            waiting += sorted(link for link in own if httpx.URL(link).path not in seen)
    return seen


async def test_a_member_buys_signs_in_makes_a_key_and_signs_out(served: RunningService) -> None:
    async with below(served) as client:
        await buy_plan(served)
        check_page(await client.get(f"{BELOW}/settings"), 200, "Sign in")
        answer = await signed_in(served, client)
        assert answer.url.path == f"{BELOW}/settings/api-access"
        home = check_page(answer, 200, "API access")
        sent = {"form_token": home.fields["form_token"], "label": "laptop"}
        out, *_, create = [
            urljoin(str(answer.url), str(form["action"])) for form in home.find_all("form")
        ]
        check_page(await client.post(create, data=sent), 201, "Your new key")
        left = await client.post(out, data=sent)
        assert left.url.path == f"{BELOW}/sign-in"
        check_page(left, 200, "Sign in")


@pytest.mark.prove
async def test_every_link_of_every_page_leads_somewhere_below_it(served: RunningService) -> None:
    async with below(served) as client:
        await buy_plan(served)
        await signed_in(served, client)
        seen = await walked(client, f"{BELOW}/settings/api-access")
        assert {f"{BELOW}/", f"{BELOW}/docs", f"{BELOW}/settings/api-access"} <= seen
        assert any("/assets/" in path for path in seen)
