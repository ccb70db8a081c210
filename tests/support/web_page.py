"""Checks for every page."""

import json
import re
import secrets
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

import httpx
import pytest

from access.billing.provider import Provider, SandboxBilling
from access.keys_and_quota import hash_key
from access.mail import Mailer
from access.sign_in import create_owner_link
from schemas.vocabulary import INDICATOR_IDS
from service.config.settings import Settings
from service.http.app import create_app
from service.http.resources import Resources
from store.access_rows import PendingAuthorization
from tests.support.example_market import NAMES
from tests.support.oauth_client import CHALLENGE, HandClient, register
from tests.support.running_service import RunningService, open_loopback_socket, run_app, skip_sleep
from web.operations import Doctor

# The first page with its scripts and styles, before compression.
MAX_BYTES = 215_000


class Page(HTMLParser):
    """The parsed page: elements, texts, table cells and the buttons of its forms."""

    def __init__(self, answer: httpx.Response) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.rows: list[list[str]] = []
        self._is_in_cell = False
        self.feed(answer.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")
            self._is_in_cell = True

    def handle_endtag(self, tag: str) -> None:
        self._is_in_cell = self._is_in_cell and tag not in {"td", "th"}

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._is_in_cell:
            self.rows[-1][-1] += data

    def find_all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for found, attributes in self.elements if found == tag]

    @property
    def chart(self) -> Any:
        return json.loads(self.find_all("figure")[0]["data-chart"] or "")

    @property
    def ids(self) -> list[str | None]:
        return [attributes["id"] for _, attributes in self.elements if "id" in attributes]

    @property
    def fields(self) -> dict[str | None, str]:
        return {field.get("name"): field.get("value") or "" for field in self.find_all("input")}

    @property
    def links(self) -> list[str]:
        return [link.get("href") or "" for link in self.find_all("a")]

    @property
    def actions(self) -> list[str | None]:
        return [button.get("value") for button in self.find_all("button")]


def check_page(
    answer: httpx.Response,
    status: int,
    title: str,
    *texts: str,
    cache: str = "no-store",
    form_action: str = "'self'",
    links: Iterable[str] = (),
    without: Iterable[str] = (),
) -> Page:
    """Assert that a response is a valid page with some texts and links, and without other texts.

    Return the parsed page.
    """
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == cache
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "same-origin"
    policy = dict(
        part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; ")
    )
    if "rapidoc" in answer.text:
        assert policy.pop("style-src-attr") == "'unsafe-inline'"
        policy |= {"style-src": "'self'", "img-src": "'self'"}
    assert policy == {
        "default-src": "'none'",
        "script-src": "'self'",
        "img-src": "'self'",
        "connect-src": "'self'",
        "style-src": "'self'",
        "form-action": form_action,
        "frame-ancestors": "'none'",
        "base-uri": "'none'",
    }
    page = Page(answer)
    assert page.find_all("html") == [{"lang": "en"}]
    assert len(page.find_all("h1")) == len(page.find_all("main")) == 1
    # The parts of a chart have titles, too.
    assert answer.text.partition("</head>")[0].count("<title>") == 1
    assert page.text.count(title) >= 2  # in the heading and in the title
    assert not [text for text in texts if text not in page.text], page.text
    assert not [text for text in without if text in page.text], page.text
    assert {*links} <= {*page.links}
    assert not [script for script in page.find_all("script") if not script.get("src")]
    names = {name for _, attributes in page.elements for name in attributes}
    assert not {name for name in names if name == "style" or name.startswith("on")}
    return page


def read_new_key(answer: httpx.Response) -> str:
    """Return the key that a page shows to the member who created it."""
    (api_key,) = set(API_KEY.findall(check_page(answer, 201, "Your new key").text))
    return str(api_key)


async def read_page_files(served: RunningService, page: Page) -> dict[str, bytes]:
    """Return the contents of the styles, icons and scripts of a page at the root, by name."""
    files = [*page.find_all("link"), *page.find_all("script")]
    urls = [urljoin("/", str(file.get("href") or file.get("src"))) for file in files]
    return {
        urlsplit(url).path.removeprefix("/web/"): (await served.client.get(url)).content
        for url in urls
    }


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

    async def get_home(self, *texts: str, without: Iterable[str] = ()) -> Page:
        """Return the API access page, which has some texts and is without others."""
        page = await self.client.get(HOME)
        return check_page(page, 200, "API access", *texts, without=without)

    async def send_form(self, path: str, **fields: str) -> httpx.Response:
        token = (await self.get_home()).fields["form_token"]
        return await self.client.post(path, data={"form_token": token, **fields})

    async def find_keys_path(self) -> str:
        """Return the path of the form that creates keys of the newest active membership."""
        actions = [str(form["action"]) for form in (await self.get_home()).find_all("form")]
        return KEYS.findall(" ".join(actions))[-1]

    async def create_key(self, label: str = "laptop") -> httpx.Response:
        return await self.send_form(await self.find_keys_path(), label=label)

    async def create_and_read_key(self, label: str = "laptop") -> str:
        return read_new_key(await self.create_key(label))

    async def find_key_path(self, label: str) -> str:
        links = (await self.get_home()).find_all("a")
        (href,) = [one["href"] for one in links if one.get("aria-label") == f"Revoke {label}"]
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
            Settings(base_url=base_url or own),
            Resources(
                served.market,
                served.access,
                provider or SandboxBilling(served.access, served.clock, base_url or own),
                mailer or served.mailbox,
                served.clock,
                skip_sleep,
            ),
            outbox=outbox,
            owner_uid=owner_uid,
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
async def open_new_member(
    served: RunningService, email: str = EMAIL
) -> AsyncIterator[MemberBrowser]:
    """Buy the plan, and yield the browser in which its member is signed in."""
    await buy_plan(served, email)
    async with open_member_browser(served, email) as member:
        yield member


@pytest.fixture
async def member(served: RunningService) -> AsyncIterator[MemberBrowser]:
    async with open_new_member(served) as member:
        yield member


@asynccontextmanager
async def open_owner_browser(served: RunningService) -> AsyncIterator[httpx.AsyncClient]:
    """Sign the owner in by a link and yield the browser."""
    link = await create_owner_link(served.access, served.clock, served.base_url)
    async with httpx.AsyncClient(base_url=served.base_url, verify=False, timeout=60) as client:
        answer = await client.post(link)
        assert (answer.status_code, answer.headers["location"]) == (303, "../")
        yield client


@pytest.fixture
async def owner(served: RunningService) -> AsyncIterator[httpx.AsyncClient]:
    async with open_owner_browser(served) as client:
        yield client


async def get_usage_status(served: RunningService, api_key: str) -> int:
    headers = {"Authorization": f"Bearer {api_key}"}
    return (await served.client.get("/api/v1/usage", headers=headers)).status_code


TITLE = "Board of readings"
WELCOME = "Readings that never repaint"
TRACKED = ("ETH", "BTC", "NVDA", "XAU", "DARK")
# Behind the word of a reading.
AGE = re.compile(r" (now|\d+ [hd])?$")


async def get_board(
    served: RunningService,
    *texts: str,
    is_member: bool = True,
    links: Iterable[str] = (),
    without: Iterable[str] = (),
    **filters: str,
) -> Page:
    answer = await served.get_page(f"/?{urlencode(filters)}", is_member=is_member)
    is_landing = not is_member and filters in ({}, {"timeframe": "4h"})
    title = WELCOME if is_landing else TITLE
    return check_page(answer, 200, title, *texts, links=links, without=without)


def parse_board(page: Page) -> dict[str, dict[str, str]]:
    """Return the cells of the board, without ages, by ticker and heading, in the page's order."""
    head, *rows = page.rows
    return {
        row[0].split()[0]: dict(zip(head[1:], (AGE.sub("", cell) for cell in row[1:]), strict=True))
        for row in rows
    }


def parse_heat_map(page: Page) -> dict[str, dict[str, str]]:
    return {
        ticker: {name: cells[name] for name in NAMES.values() if name in cells}
        for ticker, cells in parse_board(page).items()
    }


async def fetch_readings(served: RunningService, timeframe: str) -> dict[str, dict[str, str]]:
    """Return the readings of signals_get_state as `parse_heat_map` does, without removed assets."""
    answer = await served.fetch_answer("rest", "signals_get_state", timeframe=timeframe)
    readings = {
        asset["ticker"]: {
            NAMES[id_]: asset["signals"].get(id_, {}).get(timeframe, "no reading")
            for id_ in INDICATOR_IDS
        }
        for asset in answer["assets"]
    }
    unread = dict.fromkeys(NAMES.values(), "no reading")
    return {ticker: readings.get(ticker, unread) for ticker in TRACKED}


HOST = "host.example"
REDIRECT_URI = f"https://{HOST}/callback"


async def add_request(served: RunningService, **changed: str | None) -> PendingAuthorization:
    """Store a request of a client of `host.example`, with some of its values changed."""
    usual = PendingAuthorization(
        id=secrets.token_urlsafe(32),
        client_id="client-1",
        client_name="Desk Assistant",
        redirect_uri=REDIRECT_URI,
        state="st&te",
        resource=f"{served.base_url}/mcp",
        code_challenge=CHALLENGE,
        created_at=served.clock(),
    )
    request = replace(usual, **changed)
    await served.access.oauth.add_request(request, hash_key(request.id), 0)
    return request


async def begin_request(
    served: RunningService, browser: httpx.AsyncClient, name: str = "Desk Assistant"
) -> tuple[str, str]:
    """Register a client and open its request in a browser; return its id and the consent path."""
    client = await register(served, REDIRECT_URI, name=name)
    sent = client.build_request(redirect_uri=REDIRECT_URI, state="st&te")
    answer = await browser.get("/oauth/authorize", params=sent)
    assert answer.status_code == 303, answer.text
    return client.client_id, answer.headers["location"].removeprefix(served.base_url)


async def exchange_code(served: RunningService, client_id: str, code: str) -> str:
    answer = await HandClient(served, client_id).exchange(code, redirect_uri=REDIRECT_URI)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["access_token"])


def build_path(request: PendingAuthorization) -> str:
    return f"/oauth/consent?request={request.id}"


def read_redirect(answer: httpx.Response, redirect_uri: str = REDIRECT_URI) -> dict[str, str]:
    """Return the parameters that a response sends the browser to the client with."""
    assert answer.status_code == 303, answer.text
    url = answer.headers["location"]
    assert url.startswith(f"{redirect_uri}?")
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "same-origin"
    return dict(parse_qsl(urlsplit(url).query))
