"""The board at `/` shows members the results of the tools."""

import itertools
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import numpy as np
import pytest

from access.members import Watchlists
from schemas.coverage import CoveredAsset
from schemas.vocabulary import INDICATOR_IDS, TIMEFRAMES
from serving.context import Context
from serving.freshness import GRACE_MS, SIMULATED_NOTE, STALE_NOTE
from serving.prices import Prices, PriceSummary
from serving.snapshot_cache import SnapshotCache
from store.market_rows import BarBlock
from store.sql.market_store import MarketStore
from tests.support.example_market import (
    ASSETS,
    HOUR_MS,
    NOON,
    make_batch,
    make_change,
    make_coverage,
)
from tests.support.full_universe import make_full_coverage
from tests.support.running_service import RunningService, publish_assets, run_service
from tests.support.shared_service import served as served
from tests.support.web_board import TITLE, fetch_readings, get_board, parse_heat_map
from tests.support.web_page import MAX_BYTES, check_page
from web.board import BoardPage, BoardView
from web.board_model import BoardQuery

pytestmark = pytest.mark.clause("pages")

MEMBERS_VIEW = BoardView(BoardQuery(), None, is_member=True, watched=())


@pytest.mark.parametrize("timeframe", TIMEFRAMES)
async def test_each_cell_equals_state(served, timeframe):
    assert parse_heat_map(await get_board(served, timeframe=timeframe)) == await fetch_readings(
        served, timeframe
    )


async def test_4h_is_the_default_timeframe(served):
    page = await get_board(served)
    assert parse_heat_map(page) == parse_heat_map(await get_board(served, timeframe="4h"))
    (chosen,) = [link for link in page.find_all("a") if link.get("aria-current") == "true"]
    assert chosen["href"] == "?timeframe=4h"


@pytest.mark.parametrize(
    "filters",
    [
        {"direction": "neutral"},
        {"indicator": "ceres"},
        {"indicator": "ceres", "direction": "bullish"},
        {"asset_class": "stock"},
        {"asset_class": "crypto", "indicator": "ceres", "direction": "neutral"},
    ],
)
async def test_a_filter_leaves_the_same_assets_as_state(served, filters):
    answer = await served.fetch_answer("rest", "signals_get_state", timeframe="4h", **filters)
    shown = parse_heat_map(await get_board(served, timeframe="4h", **filters))
    read = {ticker for ticker, cells in shown.items() if set(cells.values()) != {"no reading"}}
    assert read == {asset["ticker"] for asset in answer["assets"]} != set()
    if "indicator" in filters:
        assert {tuple(cells) for cells in shown.values()} == {("Ceres",)}


@pytest.mark.parametrize(
    ("text", "tickers"),
    [("bit", {"BTC"}), ("GOLD", {"XAU"}), (" a", {"MATIC", "XAU", "DARK", "NVDA"}), ("?", set())],
)
async def test_a_text_finds_tickers_and_names_in_any_case(served, text, tickers):
    page = await get_board(served, text=text)
    assert parse_heat_map(page).keys() == tickers
    assert f"{len(tickers)} of 6 assets shown" in " ".join(page.text.split())


async def test_the_form_keeps_its_values_and_the_tabs_keep_the_filter(served):
    page = await get_board(served, timeframe="1d", text="b", direction="bullish", indicator="")
    assert {"timeframe": "1d", "text": "b"}.items() <= page.fields.items()
    chosen = {option["value"] for option in page.find_all("option") if "selected" in option}
    assert chosen == {"bullish"}
    assert "?timeframe=1h&direction=bullish&text=b" in {link["href"] for link in page.find_all("a")}


@pytest.mark.parametrize("is_member", [True, False])
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("timeframe=5h", 'timeframe: "5h" is not accepted; accepted: 1h, 4h, 1d, all.'),
        ("asset_class=bond", "accepted: crypto, stock, metal."),
        ("direction=exit", "accepted: bullish, bearish, neutral."),
        ("indicator=cere", '"cere" is not an indicator; accepted: trend_oracle,'),
        (f"text={'a' * 61}", "at most 60 characters"),
        ("text=a&text=b", "text: is repeated; send it once."),
    ],
)
async def test_a_bad_value_gets_a_page_that_says_what_is_accepted(
    served, query, expected, is_member
):
    answer = await served.get_page(f"/?{query}", is_member=is_member)
    assert expected in check_page(answer, 400, "Something went wrong").text


async def test_unknown_query_parameters_are_ignored(served):
    assert parse_heat_map(await get_board(served, utm_source="letter")) == parse_heat_map(
        await get_board(served)
    )


async def test_simulated_data_are_marked_by_badge_and_sentence(served):
    page = await get_board(served)
    assert "Simulated market" in page.text
    assert SIMULATED_NOTE in page.text
    assert "2026-09-30 12:03 UTC" in page.text
    assert "2026-09-30 16:03 UTC" in page.text  # The next update.
    assert {"datetime": "2026-09-30T12:03:00.000Z"} in page.find_all("time")


async def test_late_and_removed_assets_are_marked_in_their_rows(served):
    rows = {row[0] for row in (await get_board(served)).rows}
    assert {"ETH Ethereum late", "MATIC Polygon removed", "BTC Bitcoin"} <= rows


async def test_recorded_data_are_marked_as_such(tmp_path: Path):
    async with run_service(tmp_path, make_coverage("recorded", recorded_until=NOON)) as recorded:
        page = await get_board(recorded)
    assert "Recorded data" in page.text
    assert "Recorded market data, up to 2026-09-30T12:03:00.000Z." in page.text
    assert SIMULATED_NOTE not in page.text


@pytest.mark.clause("fresh")
async def test_a_cached_page_turns_stale_when_the_tools_do(served_alone: RunningService):
    assert STALE_NOTE not in (await get_board(served_alone)).text
    served_alone.clock.now = NOON + HOUR_MS + GRACE_MS + 1
    assert STALE_NOTE in (await get_board(served_alone)).text


class MovingPrices(Prices):
    """Commits a run to the store while prices are first read."""

    def __init__(self, market: MarketStore, snapshots: SnapshotCache) -> None:
        super().__init__(snapshots)
        self.market = market
        self.has_moved = False

    async def load_summaries(self) -> Mapping[str, PriceSummary]:
        if not self.has_moved:
            self.has_moved = True
            change = make_change(NOON + HOUR_MS, "NVDA", "ceres", "4h", -1, 0)
            await self.market.commit(make_batch(NOON + HOUR_MS, [change]))
        return await super().load_summaries()


def open_board(served: RunningService, prices: type[MovingPrices] | None = None) -> BoardPage:
    """Return a board of the service's stores, apart from its server."""
    snapshots = SnapshotCache(served.market)
    shown = None if prices is None else prices(served.market, snapshots)
    url, clock = served.base_url, served.clock
    context = Context(snapshots, url, f"{url}/docs", clock, "test", 10, prices=shown)
    sessions: Any = None  # Only whole requests need them.
    return BoardPage(context, sessions, Watchlists(served.access, clock))


async def test_a_members_board_shows_the_newest_snapshot(served_alone: RunningService):
    before = parse_heat_map(await get_board(served_alone))
    later = NOON + HOUR_MS
    turned = make_change(later, "NVDA", "ceres", "4h", -1, 0)
    await served_alone.market.commit(make_batch(later, [turned]))
    after = parse_heat_map(await get_board(served_alone))
    assert before["NVDA"]["Ceres"] != after["NVDA"]["Ceres"] == "bearish"


@pytest.mark.clause("feed")
async def test_a_page_never_mixes_two_snapshots(served_alone: RunningService):
    model, heat = await open_board(served_alone, MovingPrices).load_map(MEMBERS_VIEW)
    assert model.state.as_of == "2026-09-30T13:03:00.000Z"
    (nvidia,) = [row for row in heat.rows if row.ticker == "NVDA"]
    assert nvidia.readings["ceres"] == ("bearish",)


async def test_a_page_is_the_same_compressed_or_not(served):
    plain, packed = [
        await served.get_page("/", is_member=True, **{"accept-encoding": encoding})
        for encoding in ("identity", "gzip")
    ]
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert plain.headers["vary"] == packed.headers["vary"] == "Accept-Encoding"
    assert plain.text == packed.text


async def test_names_and_query_values_are_escaped(served_alone: RunningService):
    name = "<script>alert('x')</script>\"&"
    asset = CoveredAsset(ticker="B&C", name=name, asset_class="crypto", timeframes=TIMEFRAMES)
    await publish_assets(served_alone, *ASSETS, asset)
    page = await get_board(served_alone, text='"><script>')
    assert len(page.find_all("script")) == 1
    assert page.fields["text"] == '"><script>'
    whole = await get_board(served_alone)
    assert f"B&C {name} late" in {row[0] for row in whole.rows}
    assert len(whole.find_all("script")) == 1
    assert "./assets/B%26C" in {link["href"] for link in whole.find_all("a")}


def make_week(ticker: str) -> BarBlock:
    """Return hourly bars of a week up to the last run, with prices of seven digits."""
    draw = random.Random(ticker)
    closes = np.array([1000 * (100 + draw.random()) for _ in range(7 * 24)])
    opens = NOON // HOUR_MS * 3600 - 3600 * np.arange(len(closes), 0, -1)
    return BarBlock(ticker, "1h", opens, np.column_stack([closes] * 5))


async def fill(served: RunningService) -> None:
    """Give each asset of the universe a week of bars, and readings that all change at the end."""
    published = make_full_coverage()
    await served.market.publish_coverage(published)
    tickers = [asset.ticker for asset in published.assets]
    for run, after, before in ((NOON - HOUR_MS, -1, None), (NOON, 1, -1)):
        cells = itertools.product(tickers, INDICATOR_IDS)
        rows = [
            make_change(run, *cell, "4h", after, before)._replace(created_at=run + place)
            for place, cell in enumerate(cells)
        ]
        bars = [make_week(ticker) for ticker in tickers] if run == NOON else []
        await served.market.commit(replace(make_batch(run, rows), bars=bars))


async def test_the_first_page_with_its_files_is_small(served_empty: RunningService):
    await fill(served_empty)
    for is_member, most_rows in ((True, 252), (False, 9)):
        answer = await served_empty.get_page("/", is_member=is_member)
        page = check_page(answer, 200, TITLE)
        assert len(parse_heat_map(page)) == len(page.find_all("path")) == most_rows
        files = [link["href"] for link in page.find_all("link")]
        files += [script["src"] for script in page.find_all("script")]
        assert {"page.css", "board.css", "board.js"} <= {
            urlsplit(str(file)).path[6:] for file in files
        }
        size = len(answer.content)
        for file in files:
            size += len((await served_empty.client.get(urljoin("/", str(file)))).content)
        assert size < MAX_BYTES, (is_member, size)
