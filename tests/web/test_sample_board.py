"""The visitors' board: a labelled sample and public counts, but no live data."""

import re

import pytest

from tests.support.example_market import HOUR_MS, NAMES, NOON, make_batch, make_change
from tests.support.running_service import RunningService
from tests.support.shared_service import served as served
from tests.support.web_board import TITLE, get_board, parse_board, parse_heat_map
from tests.support.web_page import check_page
from tools.member_sessions import create_session_cookie

pytestmark = pytest.mark.clause("pages")

SAMPLED = {"BTC", "ETH", "SOL", "XRP", "NVDA", "AAPL", "TSLA", "XAU", "XAG"}


async def test_visitors_see_the_sample_marked_as_such_and_how_to_get_access(served):
    page = await get_board(served, is_member=False)
    shown = parse_heat_map(page)
    assert shown.keys() == SAMPLED
    assert tuple(shown["BTC"]) == tuple(NAMES.values())
    assert page.text.count("Sample, not live data") == 2  # The badge and the notice.
    assert "a simulated market" in page.text
    assert {"./sign-in", "./buy", "./docs"} <= {link["href"] for link in page.find_all("a")}


async def test_the_sample_board_agrees_with_the_sample_feed(served):
    sample = (await served.client.get("/api/v1/signals/sample")).json()
    changes = [row for row in sample["signals"] if row["transition"]]
    assert len(changes) == 3
    for row in changes:
        page = await get_board(served, is_member=False, timeframe=row["timeframe"])
        cells = parse_board(page)[row["ticker"]]
        assert cells[row["indicator_name"]] == row["transition"]["to"]
        assert float(cells["Price"].replace(",", "")) == row["price"]


@pytest.mark.clause("1.38")
async def test_a_viewer_without_a_plan_sees_the_visitors_page(served):
    cookie = await create_session_cookie(served.access, served.clock, is_member=False)
    lapsed = check_page(await served.get_page("/", cookie=cookie), 200, TITLE)
    assert parse_heat_map(lapsed) == parse_heat_map(await get_board(served, is_member=False))
    asset = await served.get_page("/assets/BTC", cookie=cookie)
    assert "Sample, not live data" in asset.text


async def test_visitors_see_the_public_counts(served):
    page = await get_board(served, is_member=False)
    text = " ".join(page.text.split())
    stats = (await served.client.get("/api/v1/stats")).json()
    assert "4 of 5 assets: 3 crypto, 2 stocks and metals" in text
    assert f"Changes in 30 days{stats['universe_tier']['total_signals']} " in text


@pytest.mark.clause("1.38")
async def test_no_reading_ever_reaches_a_visitor(
    served_alone: RunningService,
):
    async def seen() -> list[str]:
        paths = ("/", "/?timeframe=1d", "/?text=btc", "/assets/BTC", "/assets/MATIC?timeframe=1h")
        pages = [await served_alone.get_page(path) for path in paths]
        counted = re.compile(r"(Changes in 30 days</dt><dd>)[0-9,]+")
        return [counted.sub(r"\1", page.text) for page in pages]

    before, members = await seen(), parse_heat_map(await get_board(served_alone))
    later = NOON + HOUR_MS
    rows = [
        make_change(later, row.ticker, row.indicator, row.timeframe, -1 if row.reading else 1, 0)
        for row in await served_alone.market.readings()
    ]
    spaced = [row._replace(created_at=later + place) for place, row in enumerate(rows)]
    await served_alone.market.commit(make_batch(later, spaced))
    assert parse_heat_map(await get_board(served_alone)) != members
    assert await seen() == before
    assert "101.5" not in "".join(before)  # The price of every row of the store.


async def test_before_the_first_run_members_get_503_and_visitors_the_sample(
    served_empty: RunningService,
):
    page = check_page(await served_empty.get_page("/", is_member=True), 503, "Not ready yet")
    assert "Nothing has been computed yet" in page.text
    assert parse_heat_map(await get_board(served_empty, is_member=False)).keys() == SAMPLED
