"""A real browser walks the board and an asset's page: `make prove`."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import BROWSER_TESTS, WIDTHS, BrowserWindow, open_window
from tests.support.example_market import HOUR_MS, NOON, fill_full_universe, make_batch
from tests.support.running_service import RunningService, run_service

pytestmark = [pytest.mark.clause("pages"), *BROWSER_TESTS]

WHOLE = 252  # the universe and its removed asset


@pytest.fixture
async def full(tmp_path: Path) -> AsyncIterator[RunningService]:
    """The service on a board of the whole universe."""
    async with run_service(tmp_path) as served:
        await fill_full_universe(served.market)
        yield served


async def member_of(served: RunningService) -> list[dict[str, str]]:
    name, _, value = (await served.get_session_cookie()).partition("=")
    return [{"name": name, "value": value, "url": served.base_url}]


async def shown(walk: BrowserWindow) -> list[str]:
    """Return the tickers of the visible rows."""
    tickers: list[str] = await walk.page.locator(
        ".board tbody th[scope=row] a:visible"
    ).all_inner_texts()
    messages = await walk.page.inner_text("#shown")
    assert messages == str(len(tickers))
    return tickers


@pytest.mark.parametrize("width", WIDTHS)
async def test_a_member_filters_as_they_type_and_opens_an_asset_by_keyboard(
    full: RunningService, width: int
) -> None:
    async with open_window(width, cookies=await member_of(full)) as walk:
        await walk.page.goto(full.base_url)
        assert len(await shown(walk)) == WHOLE
        await walk.tab_to_field("text")
        await walk.page.keyboard.type("BITcoin")
        found = await shown(walk)
        assert "BTC" in found
        assert len(found) < 10
        async with walk.page.expect_navigation():
            await walk.page.keyboard.press("Enter")
        assert await shown(walk) == found
        await walk.tab_to("BTC")
        async with walk.page.expect_navigation():
            await walk.page.keyboard.press("Enter")
        assert await walk.title() == "Bitcoin (BTC)"
        assert walk.complaints == []


async def test_each_filter_leaves_the_same_rows_with_and_without_a_script(
    full: RunningService,
) -> None:
    async with open_window(WIDTHS[1], cookies=await member_of(full)) as walk:
        for chosen in (
            {"direction": "bearish"},
            {"indicator": "ceres"},
            {"indicator": "ceres", "direction": "neutral"},
            {"asset_class": "metal", "direction": "bullish"},
            {"asset_class": "crypto", "direction": "neutral", "indicator": "llnr"},
        ):
            await walk.page.goto(full.base_url)
            for name, value in chosen.items():
                await walk.page.select_option(f"select[name={name}]", value)
            by_script = await shown(walk), await cells(walk)
            await walk.page.get_by_role("button", name="Filter").click()
            await walk.page.wait_for_url("**/?*")
            assert (await shown(walk), await cells(walk)) == by_script
            assert len(by_script[0]) > 0
        assert walk.complaints == []


async def test_a_star_is_stored_and_the_watchlist_narrows_as_it_changes(
    full: RunningService,
) -> None:
    async with open_window(WIDTHS[0], "dark", await member_of(full)) as walk:
        await walk.page.goto(full.base_url)
        for ticker in ("ETH", "BTC"):
            star = walk.page.get_by_role("button", name=f"Watch {ticker}", exact=True)
            await star.click()
            await walk.page.get_by_role("button", name=f"Stop watching {ticker}").wait_for()
        await walk.page.select_option("select[name=show]", "watched")
        assert set(await shown(walk)) == {"BTC", "ETH"}
        await walk.page.get_by_role("button", name="Stop watching ETH").click()
        await walk.page.locator("#ETH").wait_for(state="hidden")
        await walk.page.goto(f"{full.base_url}/?show=watched")
        assert await shown(walk) == ["BTC"]
        assert walk.complaints == []


async def test_new_readings_are_offered_and_never_move_the_page(full: RunningService) -> None:
    async with open_window(WIDTHS[1], cookies=await member_of(full)) as walk:
        await walk.page.clock.install()
        await walk.page.goto(full.base_url)
        asked: list[Any] = []
        walk.page.on("request", lambda sent: asked.append(sent))
        await walk.page.clock.fast_forward(50_000)
        assert [sent.url for sent in asked if sent.resource_type == "fetch"] == []
        await full.market.commit(make_batch(NOON + HOUR_MS, []))
        async with walk.page.expect_response("**/board/latest.json"):
            await walk.page.clock.fast_forward(60_000)
        offer = walk.page.get_by_role("link", name="New readings from 13:03 – show")
        await offer.wait_for()
        (sent,) = [sent for sent in asked if sent.resource_type == "fetch"]
        assert sent.url == f"{full.base_url}/board/latest.json"
        assert "12:03 UTC" in await walk.page.inner_text(".bar")
        async with walk.page.expect_navigation():
            await offer.click()
        assert "13:03 UTC" in await walk.page.inner_text(".bar")
        assert walk.complaints == []


async def cells(walk: BrowserWindow) -> int:
    return int(await walk.page.locator(".board td:visible").count())
