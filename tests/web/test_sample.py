"""The sample pages of assets agree with the sample board and the sample feed."""

import re

import pytest

from rest_shim.sample import build_sample
from schemas.vocabulary import TIMEFRAMES, find_latest_run
from serving.argument_values import parse_instant_ms
from tests.support.example_market import HOUR_MS, NAMES, NOON, make_batch, make_change
from tests.support.running_service import RunningService
from tests.support.running_service import served as served
from tests.support.web_page import TITLE, check_page, get_board, parse_board, parse_heat_map
from tools.member_sessions import create_session_cookie
from web.sample import SAMPLE_TICKERS, build_sample_asset, build_sample_model


@pytest.mark.clause("15.6")
def test_every_asset_of_the_sample_board_has_a_page_that_ends_in_its_readings() -> None:
    for timeframe in TIMEFRAMES:
        board = build_sample_model(timeframe).state.assets
        assert {asset.ticker for asset in board} == SAMPLE_TICKERS
        for asset in board:
            model = build_sample_asset(asset.ticker, timeframe)
            assert model is not None
            assert model.chart is not None
            ends = {lane.indicator: lane.spans[-1].reading for lane in model.chart.lanes}
            assert model.chart.bars is not None
            assert model.price is not None
            if timeframe == "1h":
                assert model.chart.bars.closes[-1] == pytest.approx(model.price.last_close)
            assert ends == {key: cells[timeframe] for key, cells in asset.signals.items()}
    assert build_sample_asset("DOGE", "4h") is None


@pytest.mark.clause("15.6")
def test_rows_of_the_sample_feed_are_on_the_pages_with_a_bar_at_their_price() -> None:
    for row in build_sample().signals:
        model = build_sample_asset(row.ticker, row.timeframe)
        assert model is not None
        assert model.chart is not None
        assert row in model.rows
        fired = find_latest_run(parse_instant_ms("created_at", row.created_at)) - 180_000
        bar = model.chart.axis.find_bar(fired)
        assert bar is not None
        assert model.chart.bars is not None
        assert model.chart.bars.closes[bar] == pytest.approx(row.price)
        assert fired in {mark.at for mark in model.chart.marks}


SAMPLED = {"BTC", "ETH", "SOL", "XRP", "NVDA", "AAPL", "TSLA", "XAU", "XAG"}


@pytest.mark.clause("pages")
async def test_visitors_see_the_sample_marked_as_such_and_how_to_get_access(served):
    page = await get_board(served, is_member=False)
    shown = parse_heat_map(page)
    assert shown.keys() == SAMPLED
    assert tuple(shown["BTC"]) == tuple(NAMES.values())
    assert page.text.count("Sample, not live data") == 2  # The badge and the notice.
    assert "a simulated market" in page.text
    assert {"./sign-in", "./buy", "./docs"} <= {link["href"] for link in page.find_all("a")}


@pytest.mark.clause("pages")
async def test_the_sample_board_agrees_with_the_sample_feed(served):
    sample = (await served.client.get("/api/v1/signals/sample")).json()
    changes = [row for row in sample["signals"] if row["transition"]]
    assert len(changes) == 3
    for row in changes:
        page = await get_board(served, is_member=False, timeframe=row["timeframe"])
        cells = parse_board(page)[row["ticker"]]
        assert cells[row["indicator_name"]] == row["transition"]["to"]
        assert float(cells["Price"].replace(",", "")) == row["price"]


@pytest.mark.clause("pages")
@pytest.mark.clause("1.38")
async def test_a_viewer_without_a_plan_sees_the_visitors_page(served):
    cookie = await create_session_cookie(served.access, served.clock, is_member=False)
    lapsed = check_page(await served.get_page("/", cookie=cookie), 200, TITLE)
    assert parse_heat_map(lapsed) == parse_heat_map(await get_board(served, is_member=False))
    asset = await served.get_page("/assets/BTC", cookie=cookie)
    assert "Sample, not live data" in asset.text


@pytest.mark.clause("pages")
async def test_visitors_see_the_public_counts(served):
    page = await get_board(served, is_member=False)
    text = " ".join(page.text.split())
    stats = (await served.client.get("/api/v1/stats")).json()
    assert "4 of 5 assets: 3 crypto, 2 stocks and metals" in text
    assert f"Changes in 30 days{stats['universe_tier']['total_signals']} " in text


@pytest.mark.clause("pages")
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


@pytest.mark.clause("pages")
async def test_before_the_first_run_members_get_503_and_visitors_the_sample(
    served_empty: RunningService,
):
    page = check_page(await served_empty.get_page("/", is_member=True), 503, "Not ready yet")
    assert "Nothing has been computed yet" in page.text
    assert parse_heat_map(await get_board(served_empty, is_member=False)).keys() == SAMPLED
