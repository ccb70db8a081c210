"""A real browser for tests, and the checks for every page that it shows."""

import os
import re
import shutil
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

CHROMIUM = shutil.which("chromium")
BROWSER_TESTS = [
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
# A phone and a desktop: the widths, and the heights of their screens.
HEIGHTS = {390: 844, 1440: 900}
WIDTHS = tuple(HEIGHTS)
MAX_STOPS = 100
# Impacts of axe-core's findings that fail a test.
REFUSED_IMPACTS = {"serious", "critical"}
# The contrast ratio that WCAG 2.2 AA requires between text and background.
MIN_CONTRAST = 4.5
# Every visible text with its colour and the background of the nearest ancestor that has one.
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


WITHIN_MS = 180_000
# Visible elements beyond the right edge of the screen, unless the keyboard can scroll there.
OFF_SCREEN = """
() => [...document.body.querySelectorAll("*")]
  .filter(one => !one.ownerSVGElement && one.checkVisibility() && !one.closest("[tabindex='0']"))
  .filter(one => one.getBoundingClientRect().right > innerWidth + 1 && one.offsetWidth > 1)
  .map(one => one.outerHTML.slice(0, 120))
"""


@dataclass
class BrowserWindow:
    """One browser window and the errors that occurred in it."""

    page: Any
    is_scripted: bool = True
    complaints: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda sent: self.hosts.add(urlsplit(sent.url).netloc))

    async def title(self) -> str:
        heading: str = await self.page.inner_text("h1")
        assert await self.page.title() == f"{heading} - Signals"
        return heading

    async def wait_for_title(self, title: str) -> None:
        """Assert that a page with this title is shown and passes all checks."""
        assert await self.title() == title
        await self.check_fits()
        # axe-core is a script, so it cannot run in a page without scripts.
        if self.is_scripted:
            await self.check_accessible()

    async def press(self, text: str) -> None:
        """Follow a link or press a button using only the keyboard."""
        focused = await self.tab_to(text)
        assert await focused.evaluate("one => getComputedStyle(one).outlineStyle") == "solid"
        await self._enter()

    async def fill_in(self, field: str, text: str) -> None:
        """Fill in a field and submit its form using only the keyboard."""
        await self.tab_to_field(field)
        await self.page.keyboard.type(text)
        await self._enter()

    async def _enter(self) -> None:
        async with self.page.expect_navigation():
            await self.page.keyboard.press("Enter")

    async def tab_to(self, text: str) -> Any:
        """Return the element with exactly this text or name, reached with the Tab key."""
        focused = self.page.locator(":focus-visible")
        for _ in range(MAX_STOPS):
            await self.page.keyboard.press("Tab")
            shown = (await focused.inner_text()).strip()
            if text in (shown, await focused.get_attribute("aria-label")):
                return focused
        raise AssertionError(f"Tab does not reach {text}")

    async def tab_to_field(self, name: str) -> None:
        """Move the focus to a field with the Tab key."""
        for _ in range(MAX_STOPS):
            await self.page.keyboard.press("Tab")
            if await self.page.evaluate("document.activeElement.name") == name:
                return
        raise AssertionError(f"Tab does not reach the field {name}")

    async def check_fits(self) -> None:
        """Assert that nothing overflows horizontally and every text has enough contrast."""
        assert await self.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert await self.page.evaluate(OFF_SCREEN) == []
        colours = await self.page.evaluate(COLOURS)
        assert colours
        for text, colour, behind in colours:
            dark, light = sorted(map(compute_luminance, (colour, behind)))
            assert (light + 0.05) / (dark + 0.05) >= MIN_CONTRAST, text

    async def save_picture(self, *name: str) -> None:
        """Save a picture of the whole page, if the run was asked to."""
        if folder := os.environ.get("SCREENSHOTS"):
            file = re.sub(r"[^a-z0-9]+", "-", " ".join(name).lower()).strip("-")
            await self.page.screenshot(path=Path(folder) / f"{file}.png", full_page=True)

    async def check_accessible(self) -> None:
        await self.page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text())
        serious: list[tuple[str, list[str]]] = []
        for _ in range(20):
            found = await self.page.evaluate("axe.run({resultTypes: ['violations']})")
            serious = [
                (finding["id"], [node["html"] for node in finding["nodes"][:3]])
                for finding in found["violations"]
                if finding["impact"] in REFUSED_IMPACTS
            ]
            if not serious:
                break
            # A colour may be on its way to another one, which the next frames show.
            await self.page.wait_for_timeout(100)
        assert serious == [], serious


def compute_luminance(colour: list[float]) -> float:
    """Return the relative luminance of sRGB values of 0 to 255, as WCAG defines it."""
    parts = [value / 255 for value in colour[:3]]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@asynccontextmanager
async def open_browser() -> AsyncIterator[Any]:
    """Start a browser, in which `open_tab` opens pages."""
    async with pytest.importorskip("playwright.async_api").async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def open_tab(
    browser: Any,
    width: int,
    scheme: str = "light",
    cookies: Collection[dict[str, str]] = (),
    *,
    is_scripted: bool = True,
    accepts: str = "(?!)",
) -> AsyncIterator[BrowserWindow]:
    """Open a page that shares nothing with others; `cookies` are sent from the first page on.

    At the end, the browser must have logged nothing but what the pattern `accepts` matches.
    """
    page = await browser.new_page(
        viewport={"width": width, "height": HEIGHTS[width]},
        color_scheme=scheme,
        java_script_enabled=is_scripted,
    )
    # A page of a busy machine may take longer than the default of 30 seconds.
    page.set_default_timeout(WITHIN_MS)
    try:
        await page.context.add_cookies([*cookies])
        window = BrowserWindow(page, is_scripted)
        yield window
        complaints = [said for said in window.complaints if not re.search(accepts, said)]
        assert complaints == [], complaints
    finally:
        await page.context.close()


@asynccontextmanager
async def open_window(*given: Any, **options: Any) -> AsyncIterator[BrowserWindow]:
    """Open a page as `open_tab` does, in a browser of its own."""
    async with open_browser() as browser, open_tab(browser, *given, **options) as window:
        yield window
