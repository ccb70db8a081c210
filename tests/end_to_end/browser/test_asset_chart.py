"""A real browser reads and zooms the chart of an asset: `make prove`."""

import re
from typing import Any

import pytest

from tests.support.browser import BROWSER_TESTS, WIDTHS, BrowserWindow, open_window
from tests.support.running_service import RunningService

pytestmark = [pytest.mark.clause("15.3"), *BROWSER_TESTS]

# The asset page with everything that it loads, before compression.
MAX_BYTES = 200_000
RANGE = "view.max - view.min"
# The 359 bars of 60 days on 4h, and the room after them.
WHOLE = 366


async def open_chart(walk: BrowserWindow, served: RunningService) -> None:
    await walk.page.goto(f"{served.base_url}/assets/BTC?timeframe=4h")
    await walk.page.wait_for_selector("#plot.drawn")


async def wait_for_range(walk: BrowserWindow, condition: str) -> float:
    """Return the number of bars in view, when it meets a condition."""
    await walk.page.wait_for_function(f"() => {{ const bars = {RANGE}; return {condition}; }}")
    bars: float = await walk.page.evaluate(RANGE)
    return bars


async def test_the_chart_zooms_by_wheel_keys_buttons_and_drag(served: RunningService) -> None:
    async with open_window(WIDTHS[1]) as walk:
        await open_chart(walk, served)
        assert await wait_for_range(walk, "bars > 0") == WHOLE
        box = await walk.page.locator("#plot").bounding_box()
        await walk.page.mouse.move(box["x"] + 600, box["y"] + 100)
        await walk.page.mouse.wheel(0, -200)
        wheeled = await wait_for_range(walk, f"bars < {WHOLE}")
        await walk.page.locator("#plot").focus()
        await walk.page.keyboard.press("+")
        await wait_for_range(walk, f"bars < {wheeled}")
        await walk.page.keyboard.press("Home")
        await wait_for_range(walk, f"bars === {WHOLE}")
        await walk.page.get_by_role("button", name="Zoom in").click()
        await wait_for_range(walk, f"bars < {WHOLE}")
        await walk.page.get_by_role("button", name="All bars").click()
        await wait_for_range(walk, f"bars === {WHOLE}")
        await walk.page.mouse.move(box["x"] + 500, box["y"] + 100)
        await walk.page.mouse.down()
        await walk.page.mouse.move(box["x"] + 700, box["y"] + 100, steps=4)
        await walk.page.mouse.up()
        await wait_for_range(walk, f"bars < {WHOLE} / 2")
        assert walk.complaints == []


@pytest.mark.parametrize("width", WIDTHS)
async def test_a_tooltip_shows_prices_and_readings_of_a_bar_and_the_text_of_a_mark(
    served: RunningService, width: int
) -> None:
    async with open_window(width) as walk:
        await open_chart(walk, served)
        box = await walk.page.locator("#plot").bounding_box()
        # Between price and lanes there are no marks.
        await walk.page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 258)
        said = await walk.page.inner_text(".tip")
        assert re.match(r"2026-\d\d-\d\d \d\d:00 UTC to \d\d:00 UTC\nO [\d,.]+ +H", said)
        assert "Trend Oracle: " in said
        mark = await walk.page.locator(".time use").last.bounding_box()
        await walk.page.mouse.move(mark["x"] + mark["width"] / 2, mark["y"] + mark["height"] / 2)
        said = await walk.page.inner_text(".tip")
        assert re.match(r"2026-\d\d-\d\d \d\d:00 UTC\n.+\nPrice [\d,.]+$", said)
        await walk.check_fits()
        await walk.check_accessible()
        assert walk.complaints == []


async def test_without_a_script_the_chart_is_a_picture(
    served: RunningService,
) -> None:
    async with open_window(WIDTHS[0], is_scripted=False) as walk:
        await walk.page.goto(f"{served.base_url}/assets/BTC?timeframe=4h")
        picture = walk.page.locator("#plot svg.area")
        assert await picture.is_visible()
        # Each of two alerts stands in its lane and at the candle.
        assert await picture.locator("use.alert").count() == 4
        assert await picture.locator("rect.bullish").count() > 20
        assert await walk.page.locator("path.line").is_visible()
        await walk.check_fits()


async def test_the_page_is_small_with_all_that_a_browser_loads(served: RunningService) -> None:
    async with open_window(WIDTHS[1]) as walk:
        loaded: list[Any] = []
        walk.page.on("requestfinished", lambda request: loaded.append(request))
        await open_chart(walk, served)
        sizes = [len(await (await request.response()).body()) for request in loaded]
        assert len(sizes) >= 7
        assert 100_000 < sum(sizes) < MAX_BYTES
