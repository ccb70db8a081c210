"""The board at `/` shows members the results of the tools.

Score, order and prices of its rows, calculated by hand.
"""

import csv
import io
import itertools
import random
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from schemas.catalog import CatalogAsset
from schemas.coverage import CoveredAsset
from schemas.result import SIMULATED_NOTE
from schemas.state import AssetState
from schemas.vocabulary import INDICATOR_IDS, TIMEFRAMES
from serving.context import Context
from serving.freshness import GRACE_MS, STALE_NOTE
from serving.prices import Prices, PriceSummary
from serving.snapshot_cache import SnapshotCache
from store.market_rows import BarBlock
from store.sql.market_store import MarketStore
from tests.support.example_market import (
    ASSETS,
    HOUR_MS,
    LATER,
    NAMES,
    NOON,
    make_batch,
    make_change,
    make_coverage,
    make_full_coverage,
)
from tests.support.row_builders import create_session_cookie
from tests.support.running_service import (
    RunningService,
    fetch,
    publish_assets,
    run_service,
    served as served,
)
from tests.support.web_page import (
    MAX_BYTES,
    TITLE,
    WELCOME,
    Page,
    check_page,
    fetch_readings,
    get_board,
    parse_board,
    parse_heat_map,
    read_page_files,
)
from web.board import BoardQuery, build_heat_map, load_board
from web.value_texts import build_path, format_percent, format_signed


@pytest.mark.clause("pages")
@pytest.mark.parametrize("timeframe", TIMEFRAMES)
async def test_each_cell_equals_state(served, timeframe):
    assert parse_heat_map(await get_board(served, timeframe=timeframe)) == await fetch_readings(
        served, timeframe
    )


@pytest.mark.clause("pages")
async def test_4h_is_the_default_timeframe_and_unknown_parameters_are_ignored(served):
    page = await get_board(served, utm_source="letter")
    assert parse_heat_map(page) == parse_heat_map(await get_board(served, timeframe="4h"))
    (chosen,) = [link for link in page.find_all("a") if link.get("aria-current") == "true"]
    assert chosen["href"] == "?timeframe=4h"


@pytest.mark.clause("pages")
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
    assert read == {asset["ticker"] for asset in answer["assets"]} - {"MATIC"} != set()
    if "indicator" in filters:
        assert {tuple(cells) for cells in shown.values()} == {("Ceres",)}


@pytest.mark.clause("pages")
@pytest.mark.parametrize(
    ("text", "tickers"),
    [("bit", {"BTC"}), ("GOLD", {"XAU"}), (" a", {"XAU", "DARK", "NVDA"}), ("?", set())],
)
async def test_a_text_finds_tickers_and_names_in_any_case(served, text, tickers):
    page = await get_board(served, text=text)
    assert parse_heat_map(page).keys() == tickers
    assert f"{len(tickers)} of 5 assets shown" in " ".join(page.text.split())


@pytest.mark.clause("pages")
async def test_the_form_keeps_its_values_and_the_tabs_keep_the_filter(served):
    page = await get_board(served, timeframe="1d", text="b", direction="bullish", indicator="")
    assert {"timeframe": "1d", "text": "b"}.items() <= page.fields.items()
    chosen = {option["value"] for option in page.find_all("option") if "selected" in option}
    assert chosen == {"bullish"}
    assert "?timeframe=1h&direction=bullish&text=b" in {link["href"] for link in page.find_all("a")}


@pytest.mark.clause("pages")
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
    check_page(answer, 400, "Something went wrong", expected)


@pytest.mark.clause("pages")
async def test_simulated_data_are_marked_by_badge_and_sentence(served):
    times = ("2026-09-30 12:03 UTC", "2026-09-30 16:03 UTC")  # Of this and of the next update.
    page = await get_board(served, "Simulated market", SIMULATED_NOTE, *times)
    assert {"datetime": "2026-09-30T12:03:00.000Z"} in page.find_all("time")


@pytest.mark.clause("pages")
async def test_late_and_removed_assets_are_marked_in_their_rows(served):
    rows = {row[0] for row in (await get_board(served)).rows}
    assert {"ETH late Ethereum", "BTC Bitcoin"} <= rows
    removed = await get_board(served, show="removed")
    assert [row[0] for row in removed.rows[1:]] == ["MATIC removed Polygon"]
    assert "1 of 1 assets shown" in " ".join(removed.text.split())


@pytest.mark.clause("pages")
async def test_recorded_data_are_marked_as_such(tmp_path: Path):
    async with run_service(tmp_path, make_coverage("recorded", recorded_until=NOON)) as recorded:
        told = ("Recorded data", "Recorded market data, up to 2026-09-30T12:03:00.000Z.")
        await get_board(recorded, *told, without=[SIMULATED_NOTE])


@pytest.mark.clause("pages")
@pytest.mark.clause("fresh")
async def test_a_cached_page_turns_stale_when_the_tools_do(served_alone: RunningService):
    await get_board(served_alone, without=[STALE_NOTE])
    served_alone.clock.now = NOON + HOUR_MS + GRACE_MS + 1
    await get_board(served_alone, STALE_NOTE)


class MovingPrices(Prices):
    """Commits a run to the store while prices are first read."""

    def __init__(self, market: MarketStore, snapshots: SnapshotCache) -> None:
        super().__init__(snapshots)
        self.market = market
        self.has_moved = False

    async def load_summaries(self) -> Mapping[str, PriceSummary]:
        if not self.has_moved:
            self.has_moved = True
            await self.market.commit(
                make_batch(LATER, [make_change(LATER, "NVDA", "ceres", "4h", -1, 0)])
            )
        return await super().load_summaries()


@pytest.mark.clause("pages")
@pytest.mark.clause("feed")
async def test_a_page_never_mixes_two_snapshots_and_the_board_shows_the_newest(
    served_alone: RunningService,
):
    market, clock = served_alone.market, served_alone.clock
    before = parse_heat_map(await get_board(served_alone))
    snapshots = SnapshotCache(market)
    prices = MovingPrices(market, snapshots)
    context = Context(snapshots, served_alone.base_url, "", clock, "test", 10, prices=prices)
    board = await load_board(BoardQuery(), (), context)
    assert board.state.as_of == "2026-09-30T13:03:00.000Z"
    (nvidia,) = [row for row in board.heat.rows if row.ticker == "NVDA"]
    assert nvidia.readings["ceres"] == ("bearish",)
    after = parse_heat_map(await get_board(served_alone))
    assert before["NVDA"]["Ceres"] != after["NVDA"]["Ceres"] == "bearish"


@pytest.mark.clause("pages")
async def test_a_page_is_the_same_compressed_or_not(served):
    plain, packed = [
        await served.get_page("/", is_member=True, **{"accept-encoding": encoding})
        for encoding in ("identity", "gzip")
    ]
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert plain.headers["vary"] == packed.headers["vary"] == "Accept-Encoding, Cookie"
    assert plain.text == packed.text


@pytest.mark.clause("pages")
async def test_names_and_query_values_are_escaped(served_alone: RunningService):
    name = "<script>alert('x')</script>\"&"
    asset = CoveredAsset(ticker="B&C", name=name, asset_class="crypto", timeframes=TIMEFRAMES)
    await publish_assets(served_alone, *ASSETS, asset)
    page = await get_board(served_alone, text='"><script>')
    assert (len(page.find_all("script")), page.fields["text"]) == (2, '"><script>')
    whole = await get_board(served_alone)
    assert f"B&C late {name}" in {row[0] for row in whole.rows}
    assert len(whole.find_all("script")) == 2
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
        rows = [
            make_change(run, *cell, "4h", after, before)._replace(created_at=run + place)
            for place, cell in enumerate(itertools.product(tickers, INDICATOR_IDS))
        ]
        bars = [make_week(ticker) for ticker in tickers] if run == NOON else []
        await served.market.commit(replace(make_batch(run, rows), bars=bars))


@pytest.mark.clause("pages")
@pytest.mark.prove
async def test_the_first_page_with_its_files_is_small(served_empty: RunningService):
    await fill(served_empty)
    for is_member, title, most_rows in ((True, TITLE, 251), (False, WELCOME, 9)):
        answer = await served_empty.get_page("/", is_member=is_member)
        page = check_page(answer, 200, title)
        assert len(parse_heat_map(page)) == len(page.find_all("path")) == most_rows
        files = await read_page_files(served_empty, page)
        assert {"page.css", "board.css", "board.js"} <= files.keys()
        assert len(answer.content) + sum(map(len, files.values())) < MAX_BYTES


PRICE_COLUMNS = {"Price", "24 h", "7 days"}


def list_stars(page: Page) -> dict[str | None, str | None]:
    return {one["value"]: one["name"] for one in page.find_all("button") if "form" in one}


async def press(served: RunningService, cookie: str, **fields: str) -> str:
    """Press a star in a member's browser; return where that leads."""
    page = check_page(await served.get_page("/", cookie=cookie), 200, TITLE)
    body = {"form_token": page.fields["form_token"], **fields}
    answer = await served.client.post("/watchlist", data=body, headers={"cookie": cookie})
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


@pytest.mark.clause("pages")
@pytest.mark.clause("16.1")
async def test_the_score_agrees_with_confluence(served):
    shown = parse_board(await get_board(served, timeframe="1h"))
    for ticker, cells in shown.items():
        votes = [cells[name] for name in NAMES.values()]
        if set(votes) == {"no reading"}:
            assert cells["Score"] == "–"
            continue
        score = int(cells["Score"].replace("−", "-"))
        assert score == votes.count("bullish") - votes.count("bearish"), ticker
    agreed = await served.fetch_answer(
        "rest", "signals_get_confluence", timeframe="1h", min_agree=1, direction="bullish"
    )
    bullish = {
        result["ticker"]: result.get("current_agree", result["agree"])
        for result in agreed["results"]
    }
    assert {"BTC", "ETH"} <= bullish.keys()
    for ticker in ("BTC", "ETH"):
        bearish = list(shown[ticker].values()).count("bearish")
        assert shown[ticker]["Score"] == f"+{bullish[ticker] - bearish}"


@pytest.mark.clause("pages")
@pytest.mark.clause("16.2")
async def test_a_heading_sorts_and_then_reverses(served):
    page = await get_board(served, text="a", sort="asset")
    heads = {head["class"]: head for head in page.find_all("th") if head.get("scope") == "col"}
    assert heads["asset"]["aria-sort"] == "ascending"
    assert [head.get("aria-sort") for head in heads.values()].count(None) == len(heads) - 1
    (link,) = [href for href in page.links if "sort=asset" in href and "order=desc" in href]
    reverse = check_page(await served.get_page(f"/{link}", is_member=True), 200, TITLE)
    assert ([*parse_board(reverse)], reverse.fields["text"]) == ([*parse_board(page)][::-1], "a")
    (head,) = [head for head in reverse.find_all("th") if "aria-sort" in head]
    assert head["aria-sort"] == "descending"


@pytest.mark.clause("pages")
@pytest.mark.clause("16.3")
async def test_three_timeframes_stand_side_by_side(served):
    wide = parse_heat_map(await get_board(served, timeframe="all"))
    single = {each: parse_heat_map(await get_board(served, timeframe=each)) for each in TIMEFRAMES}
    assert wide.keys() == single["1h"].keys()
    for ticker, cells in wide.items():
        for name, text in cells.items():
            expected = (f"{each} {single[each][ticker][name]}" for each in TIMEFRAMES)
            assert " ".join(text.split()) == " ".join(expected)


@pytest.mark.clause("pages")
@pytest.mark.clause("16.4")
async def test_the_sample_has_prices_unless_the_operator_hides_them(served, tmp_path):
    shown = parse_board(await get_board(served, is_member=False))
    price = shown["BTC"]["Price"]
    chart = Page(await served.client.get("/assets/BTC?timeframe=1h")).chart
    assert price == f"{chart['bars'][3][-1]:,.2f}"
    assert re.fullmatch(r"[+−]\d+\.\d\d%", shown["BTC"]["24 h"])
    assert re.fullmatch(r"[+−]\d+\.\d\d%", shown["BTC"]["7 days"])
    async with run_service(tmp_path, make_coverage(), shows_prices=False) as without:
        hidden = (await without.client.get("/")).text
    assert not [name for name in PRICE_COLUMNS if f">{name}</a>" in hidden]
    assert price not in hidden


@pytest.mark.clause("pages")
@pytest.mark.clause("16.4")
async def test_members_see_the_closes_of_stored_bars(served_alone: RunningService):
    closed = NOON // HOUR_MS * 3600
    # Hourly closes of 25 hours: 100 a day before the last one, which is 103.
    opens = closed - 3600 * np.arange(25, 0, -1)
    closes = np.array([100.0] + [99.0] * 23 + [103.0])
    bars = [BarBlock("BTC", "1h", opens, np.column_stack([closes] * 5))]
    await served_alone.market.commit(replace(make_batch(NOON + 1, []), bars=bars))
    shown = parse_board(await get_board(served_alone))
    assert shown["BTC"].items() >= {"Price": "103.00", "24 h": "+3.00%"}.items()
    assert [shown["ETH"][name] for name in ("Price", "24 h", "7 days")] == ["–", "–", "–"]


@pytest.mark.clause("pages")
@pytest.mark.clause("16.5")
@pytest.mark.parametrize(
    ("file", "endpoint"),
    [
        *((f"/board.{kind}", "/state") for kind in ("csv", "json")),
        *((f"/feed.{kind}", "/signals") for kind in ("csv", "json")),
        ("/flips.json", "/flips"),
        ("/confluence.csv", "/confluence"),
    ],
)
async def test_a_file_refuses_a_key_with_the_endpoint_that_takes_it(
    served: RunningService, file: str, endpoint: str
) -> None:
    for headers in (served.key_headers, {"X-Api-Key": "nonsense"}):
        refused = await served.client.get(file, headers=headers)
        assert (refused.status_code, refused.json()["error"]) == (400, "invalid_parameter")
        assert f"GET {served.base_url}/api/v1{endpoint} instead" in refused.json()["message"]
    # A proxy's own credentials are no key.
    assert (await served.client.get(file, headers={"Authorization": "Basic x"})).status_code == 200


@pytest.mark.clause("16.5")
@pytest.mark.parametrize("is_member", [True, False])
@pytest.mark.parametrize(
    "query", ["", "?timeframe=all&sort=asset", "?indicator=ceres&direction=neutral&text=a"]
)
async def test_files_have_the_rows_and_the_order_of_the_page(served, query, is_member):
    title = TITLE if is_member or query else WELCOME
    page = check_page(await served.get_page(f"/{query}", is_member=is_member), 200, title)
    tickers = [*parse_board(page)]
    files = [href for href in page.links if href.startswith("./board.")]
    assert [href.partition("?")[0] for href in files] == ["./board.csv", "./board.json"]
    table, document = [await served.get_page(href[1:], is_member=is_member) for href in files]
    rows = list(csv.DictReader(io.StringIO(table.text)))
    assert table.headers["content-type"] == "text/csv; charset=utf-8"
    assert "attachment" in table.headers["content-disposition"]
    assert [row["ticker"] for row in rows] == tickers
    assert {row["source"] for row in rows} <= {"simulated" if is_member else "sample"}
    found = document.json()
    assert [asset["ticker"] for asset in found["assets"]] == tickers
    assert table.headers["cache-control"] == document.headers["cache-control"] == "no-store"
    for row, asset in zip(rows, found["assets"], strict=True):
        for indicator, readings in asset["readings"].items():
            for timeframe, reading in readings.items():
                assert row[f"{indicator}_{timeframe}"] == (reading or "")
        assert row["net_score"] == ("" if asset["net_score"] is None else str(asset["net_score"]))
        assert row["last_close_usd"] == str(asset["last_close_usd"] or "")


@pytest.mark.clause("pages")
@pytest.mark.clause("16.6")
async def test_a_member_stars_assets_without_a_script(served):
    ann, bob = [await create_session_cookie(served.access, served.clock) for _ in range(2)]
    for ticker, back, leads_to in (
        ("btc", "timeframe=1d&sort=asset&x=1", "./?timeframe=1d&sort=asset#BTC"),
        ("XAU", "sort=size", "./?timeframe=4h#XAU"),
    ):
        assert await press(served, ann, add=ticker, back=back) == leads_to
    page = check_page(await served.get_page("/", cookie=ann), 200, TITLE)
    stars = list_stars(page)
    assert {ticker for ticker, action in stars.items() if action == "remove"} == {"BTC", "XAU"}
    labels = {one.get("aria-label") for one in page.find_all("button")}
    assert {"Stop watching BTC", "Watch ETH"} <= labels
    only = check_page(await served.get_page("/?show=watched", cookie=ann), 200, TITLE)
    assert parse_board(only).keys() == {"BTC", "XAU"}
    # Bob gets the same cached board, without Ann's stars.
    others = check_page(await served.get_page("/", cookie=bob), 200, TITLE)
    assert set(list_stars(others).values()) == {"add"}
    assert "Your watchlist is empty" in (await served.get_page("/?show=watched", cookie=bob)).text
    await press(served, ann, remove="BTC")
    only = await served.get_page("/board.csv?show=watched", cookie=ann)
    assert [row["ticker"] for row in csv.DictReader(io.StringIO(only.text))] == ["XAU"]


@pytest.mark.clause("pages")
@pytest.mark.clause("16.6")
async def test_only_members_forms_change_a_watchlist(served):
    cookie = await create_session_cookie(served.access, served.clock)
    for fields in ({"add": "BTC"}, {"add": "BTC", "form_token": "0" * 64}):
        await fetch(
            served.client, "POST", "/watchlist", 403, data=fields, headers={"cookie": cookie}
        )
    assert (await served.client.post("/watchlist", data={"add": "BTC"})).status_code == 303
    page = check_page(await served.get_page("/", cookie=cookie), 200, TITLE)
    assert set(list_stars(page).values()) == {"add"}
    await fetch(
        served.client,
        "POST",
        "/watchlist",
        404,
        data={"add": "BTCC", "form_token": page.fields["form_token"]},
        headers={"cookie": cookie},
    )
    former = await create_session_cookie(served.access, served.clock, is_member=False)
    assert "form_token" in (await served.get_page("/", cookie=former)).text
    assert not list_stars(Page(await served.get_page("/", cookie=former)))


@pytest.mark.clause("16.9")
async def test_the_board_says_for_how_long_and_what_changed_at_the_last_candle(
    served_alone: RunningService,
):
    # At 16:03, BTC turns bullish on 4h; nothing else changes.
    later = NOON + 4 * HOUR_MS
    await served_alone.market.commit(
        make_batch(later, [make_change(later, "BTC", "ceres", "4h", 1, 0)])
    )
    page = await get_board(served_alone, sort="changed")
    assert "1 change at 16:03 UTC" in " ".join(page.text.split())
    head, first, *_ = page.rows
    cells = dict(zip(head, first, strict=True))
    assert (first[0], cells["Ceres"], cells["Changed"]) == ("BTC Bitcoin", "bullish now", "now")
    assert cells["Enzo"].split()[-1] in ("h", "d")
    (marked,) = [one for one in page.find_all("td") if "new" in (one.get("class") or "").split()]
    assert marked["class"] == "bullish new"
    assert parse_board(await get_board(served_alone, changed="last")).keys() == {"BTC"}
    document = (await served_alone.get_page("/board.json?changed=last", is_member=True)).json()
    assert document["assets"][0]["changed_at"] == "2026-09-30T16:03:00.000Z"


@pytest.mark.clause("pages")
@pytest.mark.clause("16.8")
async def test_the_time_of_the_data_is_cheap_to_ask(served_alone: RunningService):
    address = "/board/latest.json"
    first = await served_alone.client.get(address)
    assert first.json() == {
        "as_of": "2026-09-30T12:03:00.000Z",
        "next_update": "2026-09-30T13:03:00.000Z",
        "changes": 6,
    }
    known = {"if-none-match": first.headers["etag"]}
    assert (await fetch(served_alone.client, "GET", address, 304, headers=known)).content == b""
    page = await get_board(served_alone)
    (status,) = [one for one in page.find_all("p") if one.get("id") == "fresh"]
    shown = {"as_of": status["data-as-of"], "next_update": status["data-next"]}
    assert shown.items() <= first.json().items()
    await served_alone.market.commit(
        make_batch(LATER, [make_change(LATER, "NVDA", "ceres", "4h", -1, 0)])
    )
    newer = await fetch(served_alone.client, "GET", address, 200, headers=known)
    assert newer.json().items() >= {"as_of": "2026-09-30T13:03:00.000Z", "changes": 1}.items()


def make_state(ticker: str, **words: str) -> AssetState:
    """Return readings by indicator: a letter for 1h, 4h and 1d each, a dot for none."""
    names = {"U": "bullish", "D": "bearish", "N": "neutral"}
    signals = {
        indicator: {
            timeframe: names[letter]
            for timeframe, letter in zip(("1h", "4h", "1d"), word, strict=True)
            if letter in names
        }
        for indicator, word in words.items()
    }
    return AssetState.model_validate(
        {"ticker": ticker, "name": f"{ticker} Inc", "asset_class": "stock", "signals": signals}
    )


STATES = [
    make_state("AA", ceres="UUD", enzo="NUD", dexter="UUU"),  # 4h: +2, all: 3 - 2 = +1
    make_state("BB", ceres="DDU", enzo="DDN"),  # 4h: -2, all: 1 - 4 = -3
    make_state("CC", ceres="U.U", enzo=".U."),  # 4h: +1, all: +3
    make_state("DD", ceres="..."),
]
LISTED = [CatalogAsset(ticker=each.ticker, name=each.name, asset_class="stock") for each in STATES]
PRICES = {
    "AA": PriceSummary(110.0, 0, 0.05, (100.0, 90.0, 110.0)),  # A week: +10 %.
    "BB": PriceSummary(9.0, 0, None, (12.0, 9.0)),  # A week: -25 %.
    "CC": PriceSummary(40.0, 0, -0.01, (40.0,)),
}


# The last candle of 4h was computed at 12:03 of the day 1, the one of 1h at 13:03.
AS_OF = 37 * HOUR_MS + 180_000
CHANGED_AT = {
    ("AA", "ceres", "4h"): 36 * HOUR_MS + 180_000,
    ("AA", "enzo", "4h"): 0,
    ("BB", "ceres", "4h"): 32 * HOUR_MS,
    ("BB", "enzo", "4h"): 36 * HOUR_MS + 180_000,
    ("CC", "enzo", "4h"): 12 * HOUR_MS,
    ("CC", "ceres", "1h"): 37 * HOUR_MS + 180_000,
}


@pytest.mark.clause("16.1")
@pytest.mark.parametrize(
    ("timeframe", "scores"), [("4h", [2, -2, 1, None]), ("all", [1, -3, 3, None])]
)
@pytest.mark.clause("pages")
def test_the_score_is_bullish_minus_bearish_readings(timeframe, scores):
    query = BoardQuery(timeframe=timeframe, sort="asset", indicator="ceres")
    assert [row.score for row in build_heat_map(LISTED, STATES, {}, query).rows] == scores


@pytest.mark.clause("16.2", "16.3", "16.9")
@pytest.mark.parametrize(
    ("view", "tickers"),
    [
        *(
            ({"sort": sort, "order": order}, tickers)
            for sort, *both in (
                ("asset", "DD CC BB AA", "AA BB CC DD"),
                ("score", "AA CC BB DD", "BB CC AA DD"),
                ("price", "AA CC BB DD", "BB CC AA DD"),
                ("change", "AA CC BB DD", "CC AA BB DD"),
                ("week", "AA BB CC DD", "BB AA CC DD"),
                ("ceres", "AA BB CC DD", "BB AA CC DD"),
                ("enzo", "AA CC BB DD", "BB AA CC DD"),
                ("changed", "AA BB CC DD", "CC AA BB DD"),
            )
            for order, tickers in zip(("desc", "asc"), both, strict=True)
        ),
        ({"sort": "changed", "timeframe": "all"}, "CC AA BB DD"),
        ({"changed": "last"}, "AA BB"),
        ({"changed": "last", "timeframe": "1h"}, "CC"),
        ({"changed": "last", "direction": "bullish"}, "AA"),
        ({"changed": "last", "indicator": "enzo"}, "BB"),
        ({"changed": "24h", "sort": "asset"}, "AA BB"),
        ({"sort": "asset", "show": "first"}, "CC AA BB DD"),
        # The filter of readings and the sort see every shown timeframe: ceres has 2, 1, -1.
        ({"direction": "neutral"}, ""),
        ({"timeframe": "all", "direction": "neutral"}, "AA BB"),
        ({"timeframe": "all", "sort": "ceres"}, "CC AA BB DD"),
    ],
)
@pytest.mark.clause("pages")
def test_columns_sort_and_filter_the_rows_and_missing_values_come_last(view, tickers):
    query = BoardQuery.model_validate(view)
    heat = build_heat_map(LISTED, STATES, PRICES, query, ["CC"], CHANGED_AT, AS_OF)
    assert [row.ticker for row in heat.rows] == tickers.split()


@pytest.mark.clause("16.9")
@pytest.mark.clause("pages")
def test_the_strip_counts_the_last_candle_and_the_leanings_of_each_class():
    heat = build_heat_map(
        LISTED, STATES, PRICES, BoardQuery(asset_class="crypto"), (), CHANGED_AT, AS_OF
    )
    # AA's ceres turned bullish, BB's enzo bearish; AA and CC lean up, BB down.
    assert (heat.turned, heat.leanings) == ({"bullish": 1, "bearish": 1}, {"stock": (2, 1)})
    assert heat.rows == []


@pytest.mark.clause("16.9")
@pytest.mark.clause("pages")
def test_of_equal_scores_the_newest_change_stands_first_then_the_best_day():
    states = [make_state(ticker, ceres="..U") for ticker in ("AA", "BB", "CC", "DD")]
    changed_at = {("CC", "ceres", "1d"): 9, ("BB", "ceres", "1d"): 5, ("AA", "ceres", "1d"): 5}
    heat = build_heat_map(LISTED, states, PRICES, BoardQuery(timeframe="1d"), (), changed_at, AS_OF)
    assert [row.ticker for row in heat.rows] == ["CC", "AA", "BB", "DD"]


@pytest.mark.parametrize(
    ("closes", "path"),
    [
        ((), ""),
        ((5.0,), ""),
        ((5.0, 5.0), "M72 9l6 0"),
        # From the lowest, 18 px below the highest, to the middle; y grows downwards.
        ((10.0, 20.0, 15.0), "M66 19l6-18 6 9"),
    ],
)
@pytest.mark.clause("pages")
def test_a_sparkline_runs_from_the_oldest_close_to_the_newest(closes, path):
    assert build_path(closes) == path


@pytest.mark.clause("pages")
def test_a_long_sparkline_ends_with_the_newest_of_at_most_14_points():
    # Every third close from the newest back: 2, 5, ..., 41, over 18 px.
    path = build_path([float(close) for close in range(42)])
    assert path.startswith("M0 19l6-1 6-2 6-1")
    steps = [int(step) for step in path.partition("l6")[2].split(" 6")]
    assert (len(steps), sum(steps)) == (13, -18)


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (0.01234, "+1.23%"),
        (-0.004, "−0.40%"),
        (0.00001, "0.00%"),
        (-0.00001, "0.00%"),
        (12, "+1200.00%"),
    ],
)
@pytest.mark.clause("pages")
def test_changes_are_signed_percentages_and_scores_signed(fraction, text):
    assert format_percent(fraction) == text
    assert [format_signed(score) for score in (3, 0, -2)] == ["+3", "0", "−2"]
