"""A real browser walks the pay page, from checkout to the key: `make prove`."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.serving import Served

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.clause("sales"),
    pytest.mark.prove,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed here"),
]
ARGUMENTS = (
    "--no-sandbox",
    "--headless=new",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
WIDTHS = (390, 1440)
MOST_STOPS = 100
# The contrast that WCAG 2.2 AA asks for between a text and what is behind it.
LEAST_CONTRAST = 4.5
# Every text that is shown, with its colour and that of the nearest ancestor that paints one.
COLOURS = """
() => [...document.querySelectorAll("h1, p, dt, dd, button, span")]
  .filter(one => one.innerText.trim())
  .map(one => {
    let behind = one;
    while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)")
      behind = behind.parentElement;
    const numbers = text => text.match(/[0-9.]+/g).map(Number);
    return [one.innerText, numbers(getComputedStyle(one).color),
            numbers(getComputedStyle(behind).backgroundColor)];
  })
"""


@dataclass
class Walk:
    """One browser window, and whatever went wrong in it."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.page.on("console", lambda said: self.complaints.append(said.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda sent: self.hosts.add(urlsplit(sent.url).netloc))

    async def title(self) -> str:
        heading: str = await self.page.inner_text("h1")
        assert await self.page.title() == f"{heading} - signals"
        return heading

    async def tab_to(self, text: str) -> Any:
        """Return what shows a text, reached by the Tab key alone."""
        focused = self.page.locator(":focus-visible")
        for _ in range(MOST_STOPS):
            await self.page.keyboard.press("Tab")
            if text in await focused.inner_text():
                return focused
        raise AssertionError(f"Tab does not reach {text}")

    async def fits(self) -> None:
        """Assert that nothing is cut off sideways and every text can be read."""
        width = await self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert width <= 0
        colours = await self.page.evaluate(COLOURS)
        assert colours
        for text, colour, behind in colours:
            assert contrast(colour, behind) >= LEAST_CONTRAST, text


def luminance(colour: list[float]) -> float:
    """Return the relative luminance of sRGB values of 0 to 255, as WCAG defines it."""
    parts = [value / 255 for value in colour[:3]]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: list[float], other: list[float]) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@asynccontextmanager
async def walking(width: int, scheme: str = "light") -> AsyncIterator[Walk]:
    playwright = pytest.importorskip("playwright.async_api")
    async with playwright.async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            viewport = {"width": width, "height": 844}
            page = await browser.new_page(viewport=viewport, color_scheme=scheme)
            yield Walk(page)
        finally:
            await browser.close()


async def begun(served: Served) -> dict[str, Any]:
    email = "procurement.agent+signals@a-department-with-a-long-name.example.com"
    response = await served.client.post("/api/v1/access/checkout", json={"contact_email": email})
    checkout: dict[str, Any] = response.json()
    return checkout


async def claim_status(served: Served, checkout: dict[str, Any]) -> str:
    body = {"claim_token": checkout["claim_token"]}
    response = await served.client.post("/api/v1/access/claim", json=body)
    answer = response.json()
    return str(answer["status"] if response.status_code == 200 else response.status_code)


@pytest.mark.parametrize("width", WIDTHS)
async def test_a_buyer_pays_with_the_keyboard_alone_and_the_agent_gets_its_key(
    served: Served, width: int
) -> None:
    checkout = await begun(served)
    async with walking(width) as walk:
        await walk.page.goto(checkout["checkout_url"])
        assert await walk.title() == "Pay for the premium plan"
        await walk.fits()
        assert await claim_status(served, checkout) == "pending"
        focused = await walk.tab_to("Pay USD 129")
        assert await focused.evaluate("one => getComputedStyle(one).outlineStyle") == "solid"
        async with walk.page.expect_navigation():
            await walk.page.keyboard.press("Enter")
        assert await walk.title() == "Paid, in the sandbox"
        await walk.fits()
        assert walk.page.url == checkout["checkout_url"]
        assert walk.complaints == []
        assert walk.hosts == {urlsplit(served.base_url).netloc}
    assert await claim_status(served, checkout) == "active"


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_buyer_cancels_with_the_pointer(served: Served, scheme: str) -> None:
    checkout = await begun(served)
    async with walking(WIDTHS[0], scheme) as walk:
        await walk.page.goto(checkout["checkout_url"])
        await walk.fits()
        async with walk.page.expect_navigation():
            await walk.page.get_by_role("button", name="Cancel").click()
        assert await walk.title() == "This checkout was cancelled"
        assert await walk.page.get_by_role("status").count() == 1
        assert await walk.page.get_by_role("button").count() == 0
        await walk.fits()
        assert walk.complaints == []
    assert await claim_status(served, checkout) == "404"
