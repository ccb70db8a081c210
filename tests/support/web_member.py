"""A member with a browser without scripts: buys in the sandbox, signs in by mail, sends forms."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from access.billing.provider import Provider
from access.billing.sandbox import SandboxBilling
from access.mail import Mailer
from access.sign_in import create_owner_link
from service.http.app import AppConfig, create_app
from service.http.resources import Resources
from tests.support.running_service import (
    RunningService,
    open_loopback_socket,
    run_app,
    skip_sleep,
)
from tests.support.web_page import Page, check_page
from web.operations import Doctor

EMAIL = "Ann.Agent@example.com"
HOME = "/settings/api-access"
API_KEY = re.compile(r"ek_[A-Za-z0-9_-]{43}")
KEYS = re.compile(rf"{HOME}/\d+/keys")
LINK = re.compile(r"https?://\S+/sign-in/sl_[A-Za-z0-9_-]{43}(?:\?\S+)?")


async def buy_plan(served: RunningService, email: str = EMAIL, billing: str = "monthly") -> str:
    """Buy the plan in the sandbox as an agent; return its first key."""
    body = {"contact_email": email, "billing": billing}
    checkout = (await served.client.post("/api/v1/access/checkout", json=body)).json()
    await served.client.post(checkout["checkout_url"], data={"action": "pay"})
    token = {"claim_token": checkout["claim_token"]}
    claim = (await served.client.post("/api/v1/access/claim", json=token)).json()
    return str(claim["api_key"])


async def request_link(served: RunningService, email: str = EMAIL, **fields: str) -> httpx.Response:
    """Request a sign-in link; `fields` are sent with the form."""
    return await served.client.post("/sign-in", data={"contact_email": email, **fields})


async def wait_for_link(served: RunningService) -> str:
    """Return the path of the link in the next mail, with its query string."""
    found = LINK.findall((await served.mailbox.wait_for_mail()).get_content())
    assert len(found) == 1
    return urlsplit(found[0])._replace(scheme="", netloc="").geturl()


@dataclass
class MemberBrowser:
    """A browser with a signed-in member; it does not follow redirects."""

    client: httpx.AsyncClient

    async def get_home(self, title: str = "API access") -> Page:
        """Return the page of API keys."""
        return check_page(await self.client.get(HOME), 200, title)

    async def send_form(self, path: str, **fields: str) -> httpx.Response:
        """Send a form with the values of the page."""
        token = (await self.get_home()).fields["form_token"]
        return await self.client.post(path, data={"form_token": token, **fields})

    async def find_keys_path(self) -> str:
        """Return the path of the form that creates keys of the newest active membership."""
        actions = [str(form["action"]) for form in (await self.get_home()).find_all("form")]
        return KEYS.findall(" ".join(actions))[-1]

    async def create_key(self, label: str = "laptop") -> httpx.Response:
        """Send the form that creates a key."""
        return await self.send_form(await self.find_keys_path(), label=label)

    async def create_and_read_key(self, label: str = "laptop") -> str:
        """Create a key and return it from the page that shows it."""
        found = set(
            API_KEY.findall(check_page(await self.create_key(label), 201, "Your new key").text)
        )
        assert len(found) == 1
        return found.pop()

    async def find_key_path(self, label: str) -> str:
        """Return the path of the only live key with a label."""
        links = (await self.get_home()).find_all("a")
        (href,) = [one["href"] for one in links if one.get("aria-label") == f"Revoke {label}"]
        assert href is not None
        return href.removeprefix("..").removesuffix("/revoke")


@asynccontextmanager
async def run_second_service(
    served: RunningService,
    *,
    base_url: str | None = None,
    provider: Provider | None = None,
    mailer: Mailer | None = None,
    outbox: Path | None = None,
    owner_uid: int | None = None,
    doctor: Doctor | None = None,
) -> AsyncIterator[RunningService]:
    """Serve the same stores with other settings, as another process would."""
    with open_loopback_socket() as bound:
        own = f"http://127.0.0.1:{bound.getsockname()[1]}"
        app = create_app(
            AppConfig(base_url or own, outbox=outbox, owner_uid=owner_uid),
            Resources(
                served.market,
                served.access,
                provider or SandboxBilling(served.access, served.clock, base_url or own),
                mailer or served.mailbox,
                served.clock,
                skip_sleep,
            ),
            doctor=doctor,
        )
        async with (
            run_app(app, bound),
            httpx.AsyncClient(base_url=own, verify=False, timeout=60) as client,
        ):
            yield replace(served, base_url=own, client=client, app=app)


@asynccontextmanager
async def open_member_browser(
    served: RunningService, email: str = EMAIL
) -> AsyncIterator[MemberBrowser]:
    """Sign in by a link and yield the browser."""
    await request_link(served, email)
    link = await wait_for_link(served)
    async with httpx.AsyncClient(base_url=served.base_url, verify=False, timeout=60) as client:
        answer = await client.post(link)
        assert (answer.status_code, answer.headers["location"]) == (303, f"..{HOME}")
        yield MemberBrowser(client)


@asynccontextmanager
async def open_owner_browser(served: RunningService) -> AsyncIterator[httpx.AsyncClient]:
    """Sign the owner in by a link and yield the browser."""
    link = await create_owner_link(served.access, served.clock, served.base_url)
    async with httpx.AsyncClient(base_url=served.base_url, verify=False, timeout=60) as client:
        answer = await client.post(link)
        assert (answer.status_code, answer.headers["location"]) == (303, "../")
        yield client


async def get_usage_status(served: RunningService, api_key: str) -> int:
    """Return the HTTP status of a call of /usage with a key."""
    headers = {"Authorization": f"Bearer {api_key}"}
    return (await served.client.get("/api/v1/usage", headers=headers)).status_code
