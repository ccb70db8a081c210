"""Asset pages: readings, changes and chart equal the results of the tools."""

import shutil
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from schemas.vocabulary import INDICATOR_IDS, TIMEFRAMES, format_instant
from store.market_rows import BarRow
from tests.support.browser import BROWSER_TESTS, open_window
from tests.support.example_market import HOUR_MS, NAMES, NOON, make_batch, make_coverage
from tests.support.row_builders import make_blocks
from tests.support.running_service import RunningService, run_service
from tests.support.running_service import served as served
from tests.support.web_page import MAX_BYTES, Page, check_page

TITLES = {
    "BTC": "Bitcoin (BTC)",
    "XAU": "Gold (XAU)",
    "DARK": "Uncovered (DARK)",
    "MATIC": "Polygon (MATIC)",
    "NVDA": "NVIDIA (NVDA)",
}


async def asset_page(
    served: RunningService, ticker: str, timeframe: str = "4h", *, is_member: bool = True
) -> Page:
    address = f"/assets/{ticker}?timeframe={timeframe}"
    answer = await served.get_page(address, is_member=is_member)
    return check_page(answer, 200, TITLES[ticker.upper()])


def readings(page: Page) -> dict[str, list[str]]:
    """Return the readings by indicator, without the ages beside them."""
    rows = [row for row in page.rows if len(row) == 1 + len(TIMEFRAMES)]
    return {row[0]: [" ".join(cell.split()[:2]) for cell in row[1:]] for row in rows}


def words(cells: list[str]) -> list[str]:
    return [cell if cell == "no reading" else cell.split()[0] for cell in cells]


@pytest.mark.clause("pages")
@pytest.mark.parametrize("ticker", ["BTC", "XAU", "MATIC"])
async def test_each_current_reading_equals_state(served, ticker):
    (asset,) = (await served.fetch_answer("rest", "signals_get_state", ticker=ticker))["assets"]
    shown = readings(await asset_page(served, ticker))
    for id_ in INDICATOR_IDS:
        cells = asset["signals"].get(id_, {})
        expected = [cells.get(timeframe, "no reading") for timeframe in TIMEFRAMES]
        assert words(shown[NAMES[id_]]) == expected
    assert ("Dexter (outdated, now Enzo)" in shown) == ("dexter" in asset["signals"])


@pytest.mark.clause("pages")
async def test_a_ticker_is_found_in_any_case(served):
    assert readings(await asset_page(served, "btc")) == readings(await asset_page(served, "BTC"))


@pytest.mark.clause("pages")
@pytest.mark.parametrize("is_member", [True, False])
async def test_an_unknown_ticker_is_not_found_and_the_nearest_is_named(served, is_member):
    for ticker, expected in (("BTCC", "did you mean BTC (Bitcoin)?"), ("<b>x", 'unknown "<b>x"')):
        answer = await served.get_page(f"/assets/{quote(ticker)}", is_member=is_member)
        page = check_page(answer, 404, "Not found")
        assert expected in page.text
        assert not page.find_all("b")


@pytest.mark.clause("pages")
async def test_an_unknown_timeframe_is_400_with_the_accepted_ones(served):
    answer = await served.get_page("/assets/BTC?timeframe=2h", is_member=True)
    assert "accepted: 1h, 4h, 1d." in check_page(answer, 400, "Something went wrong").text


@pytest.mark.clause("pages")
@pytest.mark.clause("15.4")
async def test_a_reading_says_for_how_long_it_has_been_so(served):
    # BTC's ceres changed at 11:00 and trend_oracle at 07:00; the last run was at 12:03.
    page = await asset_page(served, "BTC", "1h")
    assert readings(page)["Ceres"] == ["neutral 400", "bullish 1", "neutral 400"]
    assert readings(page)["Trend Oracle"][0].split()[1] == "2"
    assert {"datetime": "2026-09-30T11:00:00.000Z", "title": "Since 2026-09-30 11:00 UTC"} in (
        page.find_all("time")
    )


@pytest.mark.clause("pages")
@pytest.mark.clause("15.4")
async def test_the_newest_changes_are_feed_rows_at_the_bar_that_fired(served):
    feed = await served.fetch_answer(
        "rest", "signals_get_signals", ticker="BTC", timeframe="1h", tier="all"
    )
    page = await asset_page(served, "BTC", "1h")
    rows = [row for row in page.rows if "101.50" in row]
    assert [" ".join(row[2].split()) for row in rows] == [
        f"{row['transition']['from']} → to {row['transition']['to']} {row['transition']['to']}"
        for row in feed["signals"]
    ]
    assert [row[0] for row in rows] == ["09-30 10:00", "09-30 08:00", "09-30 06:00"]
    assert "../feed?ticker=BTC" in page.links
    # Each time leads to its bar on the chart.
    bars = [one["data-at"] for one in page.find_all("a") if "data-at" in one]
    assert bars == [str(NOON // HOUR_MS * 3600 - hours * 3600) for hours in (2, 4, 6)]


@pytest.mark.clause("pages")
@pytest.mark.clause("15.1")
async def test_lanes_draw_every_reading_since_the_store_has_it(served):
    page = await asset_page(served, "BTC", "1h")
    chart = page.chart
    assert chart["bars"] is None  # this store has no bars
    assert [lane["name"] for lane in chart["lanes"]] == [NAMES[id_] for id_ in INDICATOR_IDS]
    # The hours from 13:00 two weeks ago to 12:00; changes at 06:00, 08:00 and 10:00, and PerpKit's
    # at 11:00.
    assert chart["lanes"][0]["spans"] == [
        ["bullish", 0.0, 329.0],
        ["bearish", 329.0, 331.0],
        ["bullish", 331.0, 333.0],
        ["bearish", 333.0, 342.0],
    ]
    assert chart["lanes"][-1]["spans"] == [["bullish", 0.0, 334.0], ["bearish", 334.0, 342.0]]
    spans = [rect["width"] for rect in page.find_all("rect") if rect["class"] == "bearish"]
    assert spans == ["0.58%", "2.63%", "2.34%"]


@pytest.mark.clause("pages")
@pytest.mark.clause("15.3")
async def test_the_chart_shows_prices_unless_the_operator_hides_them(
    tmp_path: Path, seeded: Path
) -> None:
    shutil.copytree(seeded, tmp_path, dirs_exist_ok=True)
    last = NOON // HOUR_MS * 3600
    bars = make_blocks(
        *(BarRow("NVDA", "1h", last - 3600 * n, 100.0, 130.0, 90.0, 125.5, 5.0) for n in (3, 1)),
        source="x",
    )
    for shows_prices in (True, False):
        async with run_service(tmp_path, shows_prices=shows_prices) as running:
            if shows_prices:
                await running.market.commit(replace(make_batch(NOON + 1, []), bars=bars))
            page = await asset_page(running, "NVDA", "1h")
            chart = page.chart
            assert ("125.50" in page.text) is shows_prices
            assert len(page.find_all("path")) == (9 if shows_prices else 5)
            if shows_prices:
                assert chart["bars"] == [
                    [100.0] * 2,
                    [130.0] * 2,
                    [90.0] * 2,
                    [125.5] * 2,
                    [5.0] * 2,
                ]
                assert chart["closes"] == [last - 7200, last]
            else:
                assert chart["bars"] is None
                assert len(chart["opens"]) == 14 * 24 - 1


@pytest.mark.clause("pages")
async def test_the_change_of_a_day_is_written_as_on_the_board(tmp_path: Path, seeded: Path) -> None:
    shutil.copytree(seeded, tmp_path, dirs_exist_ok=True)
    last = NOON // HOUR_MS * 3600
    closes = {25: 130.0, 1: 125.5}
    bars = make_blocks(
        *(
            BarRow("NVDA", "1h", last - 3600 * n, 100.0, 130.0, 90.0, close, 5.0)
            for n, close in closes.items()
        ),
        source="x",
    )
    async with run_service(tmp_path) as running:
        await running.market.commit(replace(make_batch(NOON + 1, []), bars=bars))
        page = await asset_page(running, "NVDA", "1h")
    # 125.5 / 130 - 1
    assert "−3.46%" in page.text
    # Since a reading began at 101.50: 125.5 / 101.5 - 1
    assert "101.50 +23.65%" in page.text


@pytest.mark.clause("pages")
async def test_a_removed_asset_says_so_and_its_lanes_end_at_the_removal(served):
    for is_member in (True, False):
        page = await asset_page(served, "MATIC", "1d", is_member=is_member)
        text = page.text
        assert "MATIC was removed on 2026-09-27 and continues as POL" in text
        assert "Next 1d update" not in text
        assert "Current readings" not in text
        if is_member:
            assert format_instant(1000 * page.chart["closes"][-1]) == "2026-09-27T00:00:00.000Z"


@pytest.mark.clause("pages")
async def test_an_asset_without_data_says_so(served):
    for is_member in (True, False):
        page = await asset_page(served, "DARK", is_member=is_member)
        assert "none: the data source does not have this asset" in page.text
    assert "There are no readings of DARK." in (await asset_page(served, "DARK")).text


@pytest.mark.clause("pages")
async def test_a_timeframe_that_is_not_covered_has_no_chart(served):
    page = await asset_page(served, "XAU", "4h")
    assert "There is no chart of XAU on 4h." in page.text
    assert page.find_all("svg") == []
    assert (await asset_page(served, "XAU", "1d")).find_all("svg")


@pytest.mark.clause("pages")
@pytest.mark.clause("15.5")
async def test_each_page_leads_to_its_neighbours_on_the_board_and_finds_any_asset(served):
    # By class, then by ticker: BTC, DARK, ETH, MATIC, NVDA, XAU.
    middle = await asset_page(served, "NVDA")
    assert {"../assets/MATIC?timeframe=4h", "../assets/XAU?timeframe=4h"} <= {*middle.links}
    first, last = await asset_page(served, "BTC"), await asset_page(served, "XAU")
    assert [link for link in first.links if "timeframe=4h" in link][1:] == [
        "../assets/DARK?timeframe=4h"
    ]
    assert [link for link in last.links if "timeframe=4h" in link][1:] == [
        "../assets/NVDA?timeframe=4h"
    ]
    assert [option["value"] for option in first.find_all("option")] == [
        "BTC",
        "DARK",
        "ETH",
        "MATIC",
        "NVDA",
        "XAU",
    ]
    assert "../assets" in [form.get("action") for form in first.find_all("form")]


@pytest.mark.clause("pages")
async def test_an_asset_is_called_late_only_on_its_own_page(served):
    assert "Late" not in (await asset_page(served, "BTC")).text
    late = check_page(await served.get_page("/assets/ETH", is_member=True), 200, "Ethereum (ETH)")
    assert "Late" in late.text


@pytest.mark.clause("pages")
async def test_simulated_data_are_marked_here_too(served):
    text = (await asset_page(served, "BTC")).text
    assert "Simulated market" in text
    assert "Simulated market data: no price is real" in text


@pytest.mark.clause("pages")
@pytest.mark.clause("15.6")
async def test_visitors_see_a_labelled_sample_of_the_assets_on_the_sample_board(served):
    page = await asset_page(served, "BTC", is_member=False)
    assert "Sample, not live data." in page.text
    assert readings(page).keys() >= {*NAMES.values()}
    assert page.find_all("svg")
    assert {"../sign-in", "../buy"} <= {*page.links}


@pytest.mark.clause("pages")
@pytest.mark.clause("15.6")
async def test_visitors_see_only_the_coverage_of_any_other_asset(served):
    page = await asset_page(served, "MATIC", is_member=False)
    assert "Readings of MATIC are for members" in " ".join(page.text.split())
    assert "1h, 4h, 1d" in page.text
    assert {"../sign-in", "../buy"} <= {*page.links}
    assert page.rows == page.find_all("svg") == page.find_all("time") == []


@pytest.mark.clause("pages")
async def test_before_the_first_run_the_page_says_to_wait(
    served_empty: RunningService,
):
    for is_member in (True, False):
        answer = await served_empty.get_page("/assets/BTC", is_member=is_member)
        page = check_page(answer, 503, "Not ready yet")
        assert "Nothing has been computed yet" in page.text
        assert answer.headers["retry-after"] == "900"


def read_tickers(page: Page) -> list[str]:
    """Return the tickers of the rows that the page lists."""
    return [row[0].split()[0] for row in page.rows if len(row) == 3 and row[0] != "Asset"]


@pytest.mark.clause("19.8")
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


@pytest.mark.clause("19.8")
async def test_members_see_the_same_list_and_no_cache_keeps_it(served: RunningService):
    page = check_page(await served.get_page("/assets", is_member=True), 200, "Assets")
    assert len(read_tickers(page)) == len(make_coverage().tracked)


@pytest.mark.clause("19.8")
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


@pytest.mark.clause("19.8")
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
