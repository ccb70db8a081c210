"""Asset pages: readings, changes and timeline equal the results of the tools."""

from urllib.parse import quote

import pytest

from schemas.vocabulary import INDICATOR_IDS, TIMEFRAMES, format_instant
from tests.support.running_service import RunningService
from tests.support.shared_service import served as served
from tests.support.web_page import Page, check_page
from tools.example_market import HOUR_MS, NAMES, NOON, make_batch, make_change

pytestmark = pytest.mark.clause("pages")

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
    return {row[0]: row[1:] for row in page.rows if len(row) == 1 + len(TIMEFRAMES)}


@pytest.mark.parametrize("ticker", ["BTC", "XAU", "MATIC"])
async def test_each_current_reading_equals_state(served, ticker):
    (asset,) = (await served.fetch_answer("rest", "signals_get_state", ticker=ticker))["assets"]
    shown = readings(await asset_page(served, ticker))
    for id_ in INDICATOR_IDS:
        cells = asset["signals"].get(id_, {})
        assert shown[NAMES[id_]] == [cells.get(timeframe, "no reading") for timeframe in TIMEFRAMES]
    assert ("Dexter (outdated, now Enzo)" in shown) == ("dexter" in asset["signals"])


async def test_a_ticker_is_found_in_any_case(served):
    assert readings(await asset_page(served, "btc")) == readings(await asset_page(served, "BTC"))


@pytest.mark.parametrize("is_member", [True, False])
async def test_an_unknown_ticker_is_not_found_and_the_nearest_is_named(served, is_member):
    for ticker, expected in (("BTCC", "did you mean BTC?"), ("<b>x", 'unknown "<b>x"')):
        answer = await served.get_page(f"/assets/{quote(ticker)}", is_member=is_member)
        page = check_page(answer, 404, "Not found")
        assert expected in page.text
        assert not page.find_all("b")


async def test_an_unknown_timeframe_is_400_with_the_accepted_ones(served):
    answer = await served.get_page("/assets/BTC?timeframe=2h", is_member=True)
    assert "accepted: 1h, 4h, 1d." in check_page(answer, 400, "Something went wrong").text


async def test_changes_are_feed_rows_and_the_timeline_draws_them(served):
    feed = await served.fetch_answer(
        "rest", "signals_get_signals", ticker="BTC", timeframe="1h", tier="all"
    )
    page = await asset_page(served, "BTC", "1h")
    turned = [" ".join(row[2].split()) for row in page.rows if len(row) == 4 and row[3] == "101.5"]
    assert turned == [
        f"{row['transition']['from']} → to {row['transition']['to']} {row['transition']['to']}"
        for row in feed["signals"]
    ]
    said = [picture["aria-label"] for picture in page.find_all("svg")]
    assert len(said) == 6
    assert said[0] == f"Trend Oracle: {feed['signals'][0]['direction']} at the end, 3 changes"
    assert "Changes of PerpKit are not logged." in " ".join(page.text.split())


async def test_a_timeline_begins_where_the_feed_does(served):
    page = await asset_page(served, "BTC", "4h")
    first, last = page.find_all("time")[-3:-1]
    stats = (await served.client.get("/api/v1/stats")).json()
    assert first == {"datetime": stats["universe_tier"]["history_starts_at"]}
    assert last == {"datetime": format_instant(NOON)}
    # The oldest row of this feed is from ceres, which was neutral until then.
    spans = {(span["class"], span["x"], span["width"]) for span in page.find_all("rect")}
    assert spans == {("bullish", "0.0", "1000.0"), ("neutral", "0.0", "0.0")}


async def test_more_rows_than_a_page_of_the_feed_holds_shorten_the_timeline(
    served_alone: RunningService,
):
    run = NOON + 300 * HOUR_MS
    rows = [
        make_change(run + place, "NVDA", "enzo", "1h", place % 3 - 1, (place - 1) % 3 - 1)._replace(
            close_time=NOON // 1000 + 3600 * place
        )
        for place in range(250)
    ]
    await served_alone.market.commit(make_batch(run, rows))
    await served_alone.market.commit(make_batch(run + HOUR_MS, []))
    page = await asset_page(served_alone, "NVDA", "1h")
    times = page.find_all("time")
    assert {"datetime": format_instant(run + 50)} in times
    assert {"datetime": format_instant(run + 49)} not in times
    assert (
        sum(time == {"datetime": format_instant(run + 50)} for time in times) == 2
    )  # On the axis and in the row.


async def test_a_removed_asset_says_so_and_its_timeline_ends_at_the_removal(served):
    for is_member in (True, False):
        text = (await asset_page(served, "MATIC", is_member=is_member)).text
        assert "MATIC was removed on 2026-09-27 and continues as POL" in text
    # The feed of this store begins after that day.
    assert "There is no timeline of MATIC on 4h." in text or is_member is False
    assert (await asset_page(served, "MATIC")).find_all("svg") == []


async def test_an_asset_without_data_says_so(served):
    for is_member in (True, False):
        page = await asset_page(served, "DARK", is_member=is_member)
        assert "none: the data source does not have this asset" in page.text
    assert "There are no readings of DARK." in (await asset_page(served, "DARK")).text


async def test_a_timeframe_that_is_not_covered_has_no_timeline(served):
    page = await asset_page(served, "XAU", "4h")
    assert "There is no timeline of XAU on 4h." in page.text
    assert (await asset_page(served, "XAU", "1d")).find_all("svg")


async def test_an_asset_is_called_late_only_on_its_own_page(served):
    assert "Late" not in (await asset_page(served, "BTC")).text
    late = check_page(await served.get_page("/assets/ETH", is_member=True), 200, "Ethereum (ETH)")
    assert "Late" in late.text


async def test_simulated_data_are_marked_here_too(served):
    text = (await asset_page(served, "BTC")).text
    assert "Simulated market" in text
    assert "prices and readings are not those of a real market" in text


async def test_visitors_see_only_the_coverage_of_an_asset(served):
    page = await asset_page(served, "BTC", is_member=False)
    assert "Readings of BTC are for members" in " ".join(page.text.split())
    assert "1h, 4h, 1d" in page.text
    assert {"../sign-in", "../docs/buy"} <= {link["href"] for link in page.find_all("a")}
    assert page.rows == page.find_all("svg") == page.find_all("time") == []


async def test_before_the_first_run_the_page_says_to_wait(
    served_empty: RunningService,
):
    for is_member in (True, False):
        answer = await served_empty.get_page("/assets/BTC", is_member=is_member)
        page = check_page(answer, 503, "Temporarily unavailable")
        assert "Nothing has been computed yet" in page.text
        assert answer.headers["retry-after"] == "900"
