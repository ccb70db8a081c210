"""A browser opens every page as each kind of visitor: `make prove`.

On a phone and a desktop, in light and dark, with and without scripts. With SCREENSHOTS=FOLDER the
run also saves each page there, and the pictures of the README in docs/images.
"""

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from access.sign_in import create_owner_link
from tests.support.browser import BROWSER_TESTS, WIDTHS, BrowserWindow, open_browser, open_tab
from tests.support.example_market import fill_full_universe
from tests.support.running_service import RunningService, run_service
from tests.support.web_page import EMAIL
from tools.clauses import ROOT

pytestmark = [
    pytest.mark.clause("pages"),
    pytest.mark.asyncio(loop_scope="session"),
    *BROWSER_TESTS,
]

Role = Literal["visitor", "buyer", "member", "owner"]
PHONE, DESKTOP = WIDTHS
# The pages of each role; `{checkout}` is a checkout of the sandbox that is not paid yet.
PAGES: dict[Role, tuple[str, ...]] = {
    "visitor": (
        "/",
        "/feed",
        "/flips",
        "/confluence",
        "/assets",
        "/assets/BTC",
        "/docs",
        "/docs/buy",
        "/docs/connect",
        "/docs/contract",
        "/docs/getting-started",
        "/docs/indicator-guide",
        "/docs/indicators",
        "/docs/legal",
        "/docs/rest",
        "/docs/settings",
        "/docs/tools",
        "/buy",
        "/sign-in",
    ),
    "buyer": ("/buy", "{checkout}", "/sign-in"),
    "member": (
        "/",
        "/?direction=bullish",
        "/feed",
        "/flips",
        "/confluence",
        "/assets",
        "/assets/BTC",
        "/assets/BTC?timeframe=1d",
        "/settings/api-access",
        "/settings/api-access/requests",
    ),
    "owner": ("/", "/assets/BTC", "/operations", "/settings/api-access"),
}
# Width, scheme, and whether scripts run: then axe-core, too, which takes seconds for a long page.
WINDOWS = [
    (PHONE, "dark", True),
    (PHONE, "light", False),
    (DESKTOP, "dark", False),
    (DESKTOP, "light", True),
]
# Errors are pages, too. A browser logs their status, as it does of any request.
ERRORS = {"/nonsense": 404, "/assets/BTCC": 404, "/?timeframe=9h": 400}
# Bytes of a page with all that it loads, before compression.
MAX_BYTES = {"/": 220_000, "/assets/BTC": 250_000}
# The first row of data, from the top of the screen.
MAX_FIRST_ROW_Y = {DESKTOP: 240, PHONE: 420}
# Visitors first read what the service is; a desktop has the room for it.
MAX_LANDING_Y = 420
FIRST_ROW = "main tbody tr:has(td):visible >> nth=0"
# The README's pictures: role, page, width, scheme.
PICTURES: dict[str, tuple[Role, str, int, str]] = {
    "board.png": ("member", "/", DESKTOP, "light"),
    "asset.png": ("member", "/assets/BTC", DESKTOP, "dark"),
    "phone.png": ("member", "/", PHONE, "dark"),
}
MAX_PICTURE_BYTES = 300_000


@dataclass
class Stage:
    """The service, the browser, and the cookies of each role."""

    served: RunningService
    browser: Any
    cookies: dict[Role, list[dict[str, str]]]
    checkout: str


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """One service on a board of the whole universe, and one browser, for all walks."""
    async with run_service(tmp_path_factory.mktemp("walk")) as served, open_browser() as browser:
        await fill_full_universe(served.market, has_prices=True)
        body = {"contact_email": EMAIL, "billing": "monthly"}
        checkout = (await served.client.post("/api/v1/access/checkout", json=body)).json()
        owner = await served.client.post(
            await create_owner_link(served.access, served.clock, served.base_url)
        )
        served.client.cookies.clear()
        cookies = {
            "visitor": [],
            "buyer": [],
            "member": [parse_cookie(served, await served.get_session_cookie())],
            "owner": [parse_cookie(served, owner.headers["set-cookie"])],
        }
        yield Stage(served, browser, cookies, urlsplit(checkout["checkout_url"]).path)


def parse_cookie(served: RunningService, header: str) -> dict[str, str]:
    name, _, value = header.partition(";")[0].partition("=")
    return {"name": name, "value": value, "url": served.base_url}


async def check_page(walk: BrowserWindow, *, with_axe: bool) -> None:
    """Assert that a page fits, and has a title and a description; axe-core finds nothing in it."""
    await walk.title()
    assert await walk.page.locator("meta[name=description]").get_attribute("content")
    await walk.check_fits()
    if with_axe:
        await walk.check_accessible()


@pytest.mark.parametrize("role", PAGES)
@pytest.mark.parametrize(("width", "scheme", "is_scripted"), WINDOWS)
async def test_every_page_fits_and_is_accessible(
    stage: Stage, role: Role, width: int, scheme: str, is_scripted: bool
) -> None:
    cookies = stage.cookies[role]
    async with open_tab(stage.browser, width, scheme, cookies, is_scripted=is_scripted) as walk:
        for path in PAGES[role]:
            address = stage.served.base_url + path.format(checkout=stage.checkout)
            assert (await walk.page.goto(address)).status == 200, path
            await check_page(walk, with_axe=is_scripted)
            mode = "script" if is_scripted else "plain"
            await walk.save_picture(role, path, str(width), scheme, mode)
        assert walk.hosts == {urlsplit(stage.served.base_url).netloc}


@pytest.mark.parametrize("width", WIDTHS)
async def test_an_error_is_a_page_that_leads_on(stage: Stage, width: int) -> None:
    async with open_tab(stage.browser, width, "dark", accepts="Failed to load resource") as walk:
        for path, status in ERRORS.items():
            assert (await walk.page.goto(stage.served.base_url + path)).status == status
            await check_page(walk, with_axe=True)
            await walk.save_picture("error", path, str(width))
            await walk.page.click("main a >> nth=0")
            assert walk.page.url != stage.served.base_url + path


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("role", ["visitor", "member", "owner"])
async def test_the_first_row_of_the_board_is_on_the_first_screen(
    stage: Stage, role: Role, width: int
) -> None:
    async with open_tab(stage.browser, width, cookies=stage.cookies[role]) as walk:
        await walk.page.goto(stage.served.base_url)
        box = await walk.page.locator(FIRST_ROW).bounding_box()
        assert 0 < box["y"] <= (MAX_LANDING_Y if role == "visitor" else MAX_FIRST_ROW_Y[width])


@pytest.mark.parametrize("role", ["visitor", "member"])
async def test_a_phone_shows_the_current_readings_of_an_asset_first(
    stage: Stage, role: Role
) -> None:
    async with open_tab(stage.browser, PHONE, cookies=stage.cookies[role]) as walk:
        await walk.page.goto(f"{stage.served.base_url}/assets/BTC")
        heading = await walk.page.locator("#now").bounding_box()
        row = await walk.page.locator(FIRST_ROW).bounding_box()
        assert heading["y"] < row["y"] <= MAX_FIRST_ROW_Y[PHONE]


@pytest.mark.parametrize("role", ["visitor", "member"])
@pytest.mark.parametrize("path", [*MAX_BYTES])
async def test_a_page_is_small_with_all_that_it_loads(stage: Stage, role: Role, path: str) -> None:
    async with open_tab(stage.browser, DESKTOP, cookies=stage.cookies[role]) as walk:
        loaded: list[Any] = []
        walk.page.on("requestfinished", lambda request: loaded.append(request))
        await walk.page.goto(stage.served.base_url + path, wait_until="networkidle")
        assert "page.css" in {urlsplit(request.url).path.rpartition("/")[2] for request in loaded}
        sizes = [len(await (await request.response()).body()) for request in loaded]
        assert 10_000 < sum(sizes) < MAX_BYTES[path]


async def test_the_pictures_of_the_readme_are_small(stage: Stage, tmp_path: Path) -> None:
    folder = ROOT / "docs" / "images" if os.environ.get("SCREENSHOTS") else tmp_path
    for name, (role, path, width, scheme) in PICTURES.items():
        async with open_tab(stage.browser, width, scheme, stage.cookies[role]) as walk:
            await walk.page.goto(stage.served.base_url + path, wait_until="networkidle")
            await walk.page.screenshot(path=folder / name)
        # An empty screen compresses to a few kilobytes.
        assert 20_000 < (folder / name).stat().st_size < MAX_PICTURE_BYTES
