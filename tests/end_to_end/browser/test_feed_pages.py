"""A real browser reads and filters the feed, the flips and the confluence: `make prove`."""

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.browser import BROWSER_TESTS, WIDTHS, BrowserWindow, open_window
from tests.support.example_market import make_coverage
from tests.support.running_service import RunningService, run_service

pytestmark = [pytest.mark.clause("pages"), *BROWSER_TESTS]

# The first row lies on the first screen: 900 px high on a desktop, 844 on a phone.
MAX_Y = {1440: 400, 390: 700}
TITLES = {"feed": "Feed", "flips": "Flips", "confluence": "Confluence"}


@pytest.fixture
async def small(tmp_path: Path) -> AsyncIterator[RunningService]:
    async with run_service(tmp_path, make_coverage()) as served:
        yield served


async def list_cookies(served: RunningService) -> list[dict[str, str]]:
    name, _, value = (await served.get_session_cookie()).partition("=")
    return [{"name": name, "value": value, "url": served.base_url}]


async def check_first_row(walk: BrowserWindow, width: int) -> None:
    box = await walk.page.locator("tbody tr").first.bounding_box()
    assert box["y"] < MAX_Y[width]
    assert box["x"] + box["width"] <= width


@pytest.mark.parametrize("width", WIDTHS)
async def test_rows_and_errors_can_be_read_and_reached(small: RunningService, width: int) -> None:
    async with open_window(width, "dark", await list_cookies(small)) as walk:
        for path, title in TITLES.items():
            await walk.page.goto(f"{small.base_url}/{path}?timeframe=1h")
            await walk.wait_for_title(title)
            await check_first_row(walk, width)
        await walk.page.goto(f"{small.base_url}/feed?ticker=NVDA&timeframe=1h&since=2026-09-30")
        await walk.wait_for_title("Feed")
        assert walk.complaints == []
        await walk.page.goto(f"{small.base_url}/feed?ticker=x&limit=0&since=now")
        await walk.wait_for_title("Feed")
        # A browser logs the status of the page, which is 400.
        assert [said for said in walk.complaints if "400" not in said] == []
        assert walk.hosts == {urlsplit(small.base_url).netloc}


@pytest.mark.clause("17.9")
async def test_relative_times_go_on_while_the_page_is_open(small: RunningService) -> None:
    small.clock.now += 120_000
    async with open_window(WIDTHS[1], cookies=await list_cookies(small)) as walk:
        await walk.page.clock.install()
        await walk.page.goto(f"{small.base_url}/feed")
        first = walk.page.locator("tbody .ago").first
        assert await first.inner_text() == "5 min ago"
        await walk.page.clock.run_for(10 * 60_000)
        assert await first.inner_text() == "15 min ago"


async def test_a_form_sends_only_the_filters_that_are_set(small: RunningService) -> None:
    async with open_window(WIDTHS[0], cookies=await list_cookies(small)) as walk:
        await walk.page.goto(f"{small.base_url}/feed")
        await walk.page.select_option("select[name=timeframe]", "1h")
        async with walk.page.expect_navigation():
            await walk.page.get_by_role("button", name="Filter").click()
        query = urlsplit(walk.page.url).query
        assert query == "tier=universe&timeframe=1h&order=newest"
        assert await walk.page.locator("tbody tr").count() == 6
        await walk.press("Clear")
        assert walk.page.url == f"{small.base_url}/feed"
        assert walk.complaints == []
