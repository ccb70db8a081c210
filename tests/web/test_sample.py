"""Visitors see the sample on the same pages as members, and nothing of the live store."""

import re
import shutil
from pathlib import Path

import pytest

from rest_shim.sample import render_sample
from schemas.signals import SignalsResponse
from schemas.vocabulary import TIMEFRAMES
from tests.support.example_market import HOUR_MS, NAMES, NOON, make_batch, make_change
from tests.support.row_builders import create_session_cookie
from tests.support.running_service import RunningService, run_service
from tests.support.running_service import served as served
from tests.support.web_page import (
    WELCOME,
    Page,
    check_page,
    get_board,
    parse_board,
    parse_heat_map,
)

SAMPLED = {"BTC", "ETH", "SOL", "XRP", "NVDA", "AAPL", "TSLA", "XAU", "XAG"}
# Those that the deployment covers: any other asset has no page.
COVERED = ("BTC", "ETH", "NVDA", "XAU")


@pytest.mark.clause("15.6")
@pytest.mark.parametrize("timeframe", TIMEFRAMES)
async def test_every_asset_of_the_sample_board_has_a_page_that_ends_in_its_readings(
    served: RunningService, timeframe: str
) -> None:
    board = (await served.client.get(f"/board.json?timeframe={timeframe}")).json()["assets"]
    assert {asset["ticker"] for asset in board} == SAMPLED
    for asset in board:
        if asset["ticker"] not in COVERED:
            continue
        path = f"/assets/{asset['ticker']}?timeframe={timeframe}"
        chart = Page(await served.client.get(path)).chart
        ends = {lane["name"]: lane["spans"][-1][0] for lane in chart["lanes"]}
        assert ends == {NAMES[key]: cells[timeframe] for key, cells in asset["readings"].items()}
        if timeframe == "1h":
            assert chart["bars"][3][-1] == asset["last_close_usd"]


@pytest.mark.clause("15.6")
async def test_rows_of_the_sample_feed_are_on_the_pages_with_a_bar_at_their_price(
    served: RunningService,
) -> None:
    sample = SignalsResponse.model_validate_json(render_sample())
    rows = [row for row in sample.signals if row.ticker in COVERED]
    assert rows
    for row in rows:
        fired_s = int(row.id.rsplit(".", 3 if row.action else 2)[1])
        page = Page(await served.get_page(f"/assets/{row.ticker}?timeframe={row.timeframe}"))
        closes = dict(zip(page.chart["closes"], page.chart["bars"][3], strict=True))
        assert closes[fired_s] == row.price
        marks = [mark["data-text"] for mark in page.find_all("use") if "data-text" in mark]
        assert any(row.indicator_name in mark for mark in marks)
        assert row.indicator_name in [cells[1] for cells in page.rows if len(cells) == 4]


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
@pytest.mark.prove
async def test_the_sample_board_agrees_with_the_sample_feed(served):
    sample = (await served.client.get("/api/v1/signals/sample")).json()
    newest = {}
    for row in sample["signals"][::-1]:
        if row["transition"]:
            newest[row["ticker"], row["indicator"], row["timeframe"]] = row
    assert len(newest) > 3
    for row in newest.values():
        page = await get_board(served, is_member=False, timeframe=row["timeframe"])
        cells = parse_board(page)[row["ticker"]]
        assert cells[row["indicator_name"]] == row["transition"]["to"]


@pytest.mark.clause("pages")
@pytest.mark.clause("1.38")
async def test_a_viewer_without_a_plan_sees_the_visitors_page(served):
    cookie = await create_session_cookie(served.access, served.clock, is_member=False)
    lapsed = check_page(await served.get_page("/", cookie=cookie), 200, WELCOME)
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
    assert "101.50" not in "".join(before)  # The price of every row of the store.


@pytest.mark.clause("pages")
async def test_before_the_first_run_members_get_503_and_visitors_the_sample(
    served_empty: RunningService,
):
    page = check_page(await served_empty.get_page("/", is_member=True), 503, "Not ready yet")
    assert "Nothing has been computed yet" in page.text
    board = await get_board(served_empty, is_member=False)
    assert parse_heat_map(board).keys() == SAMPLED
    assert "no data of its own yet. Nothing has been computed yet" in " ".join(board.text.split())


@pytest.mark.clause("15.6")
async def test_no_time_passes_in_the_sample(served_alone: RunningService) -> None:
    served_alone.clock.now += 60 * 24 * HOUR_MS
    answer = await served_alone.client.get("/confluence?as_of=2026-11-01T00:00:00Z")
    assert answer.status_code == 400
    assert "2026-10-02" in answer.text


@pytest.mark.clause("15.6")
@pytest.mark.parametrize(
    ("query", "is_outside"), [("ticker=ADA", True), ("ticker=BTC&ticker=ETH", False)]
)
async def test_only_an_asset_outside_of_the_sample_is_said_to_be_there(
    served: RunningService, query: str, is_outside: bool
) -> None:
    answer = await served.client.get(f"/feed?{query}")
    assert answer.status_code == 400
    assert ("The sample does not have this asset." in answer.text) is is_outside


@pytest.mark.clause("16.4")
async def test_only_the_board_hides_the_prices_of_the_sample(tmp_path: Path, seeded: Path) -> None:
    shutil.copytree(seeded, tmp_path, dirs_exist_ok=True)
    async with run_service(tmp_path, shows_prices=False) as running:
        board = (await running.client.get("/board.json")).json()["assets"]
        chart = Page(await running.client.get("/assets/BTC")).chart
        feed = (await running.client.get("/feed.csv")).text
    assert not any("last_close_usd" in asset for asset in board)
    assert chart["bars"]
    assert "price" in feed.splitlines()[0].split(",")
