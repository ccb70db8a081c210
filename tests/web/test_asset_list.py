"""The list of all assets: complete, public, and filtered with and without script."""

import pytest

from tests.support.browser import BROWSER_TESTS, open_window
from tests.support.example_market import make_coverage
from tests.support.running_service import RunningService
from tests.support.shared_service import served as served
from tests.support.web_page import MAX_BYTES, Page, check_page

pytestmark = pytest.mark.clause("19.8")


def read_tickers(page: Page) -> list[str]:
    """Return the tickers of the rows that the page lists."""
    return [row[0].split()[0] for row in page.rows if len(row) == 3 and row[0] != "Asset"]


async def test_the_list_has_every_tracked_asset_with_its_timeframes(served: RunningService):
    answer = await served.client.get("/assets")
    page = check_page(answer, 200, "Assets", "public, max-age=60")
    tracked = make_coverage().tracked
    assert sorted(read_tickers(page)) == sorted(asset.ticker for asset in tracked)
    by_ticker = {row[0].split()[0]: row for row in page.rows if len(row) == 3}
    for asset in tracked:
        row = by_ticker[asset.ticker]
        assert asset.name in row[0]
        assert row[1] == (" ".join(asset.timeframes) or "no data")
        assert row[2] == (" ".join(asset.alerts) or "–")
        assert f"./assets/{asset.ticker}" in page.links
    assert f"{len(tracked)} of {len(tracked)} assets" in page.text
    assert len(answer.content) < MAX_BYTES


async def test_members_see_the_same_list_and_no_cache_keeps_it(served: RunningService):
    page = check_page(await served.get_page("/assets", is_member=True), 200, "Assets")
    assert len(read_tickers(page)) == len(make_coverage().tracked)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"text": "bitc"}, ["BTC"]),
        ({"text": " eth "}, ["ETH"]),
        ({"asset_class": "metal"}, ["XAU"]),
        ({"asset_class": "metal", "text": "btc"}, []),
    ],
)
async def test_a_filter_in_the_url_needs_no_script(served: RunningService, query, expected):
    page = check_page(await served.client.get("/assets", params=query), 200, "Assets")
    tracked = {asset.ticker: asset for asset in make_coverage().tracked}
    assert read_tickers(page) == [ticker for ticker in tracked if ticker in expected]
    assert page.fields["text"] == query.get("text", "").strip()
    (nothing,) = [one for one in page.find_all("span") if one.get("id") == "nothing"]
    assert ("hidden" in nothing) is bool(expected)


async def test_a_bad_filter_is_an_error_and_text_is_escaped(served: RunningService):
    assert (await served.client.get("/assets?asset_class=bond")).status_code == 400
    page = Page(await served.client.get("/assets", params={"text": "<b>"}))
    assert not page.find_all("b")


class TestInABrowser:
    pytestmark = BROWSER_TESTS

    async def test_typing_filters_the_list_at_once(self, served: RunningService) -> None:
        async with open_window(390) as window:
            await window.page.goto(f"{served.base_url}/assets")
            await window.page.keyboard.press("/")
            await window.page.keyboard.type("bitcoin")
            visible = window.page.locator("tbody th[scope=row]:visible")
            assert await visible.all_inner_texts() == ["BTC\nBitcoin"]
            assert await window.page.inner_text("#shown") == "1"
            await window.check_fits()
            await window.check_accessible()
            assert window.complaints == []
