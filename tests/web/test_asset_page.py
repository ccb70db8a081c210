"""Asset pages: readings, changes and chart equal the results of the tools.

The chart: axis, lanes, heights, candles and marks, compared with values calculated by hand.
"""

import json
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from schemas.vocabulary import DAY_MS, HOUR_MS, INDICATOR_IDS, TIMEFRAMES, Reading, format_instant
from serving.prices import NO_COLUMNS, BarColumns
from store.market_rows import AlertRow, ChangeRow
from tests.support.browser import BROWSER_TESTS, open_window
from tests.support.example_market import NAMES, NOON, make_batch, make_coverage
from tests.support.row_builders import BarRow, make_alert, make_blocks, make_change
from tests.support.running_service import RunningService, run_service, served as served
from tests.support.web_page import MAX_BYTES, Page, check_page
from web.asset_page import (
    PADDING,
    PRICE_HEIGHT,
    Span,
    TimeAxis,
    build_chart,
    build_lanes,
    build_marks,
    find_held_alerts,
    find_step,
)

TITLES = {
    "BTC": "Bitcoin (BTC)",
    "XAU": "Gold (XAU)",
    "DARK": "Uncovered (DARK)",
    "MATIC": "Polygon (MATIC)",
    "NVDA": "NVIDIA (NVDA)",
}


async def asset_page(
    served: RunningService,
    ticker: str,
    timeframe: str = "4h",
    *texts: str,
    is_member: bool = True,
    links: Iterable[str] = (),
    without: Iterable[str] = (),
) -> Page:
    answer = await served.get_page(f"/assets/{ticker}?timeframe={timeframe}", is_member=is_member)
    return check_page(answer, 200, TITLES[ticker.upper()], *texts, links=links, without=without)


def readings(page: Page) -> dict[str, list[str]]:
    """Return the readings by indicator, without the ages."""
    rows = [row for row in page.rows if len(row) == 1 + len(TIMEFRAMES)]
    return {row[0]: [" ".join(cell.split()[:2]) for cell in row[1:]] for row in rows}


@pytest.mark.clause("pages")
@pytest.mark.parametrize("ticker", ["BTC", "btc", "XAU", "MATIC"])
async def test_each_current_reading_equals_state_and_a_ticker_is_found_in_any_case(served, ticker):
    (asset,) = (await served.fetch_answer("rest", "signals_get_state", ticker=ticker))["assets"]
    shown = readings(await asset_page(served, ticker))
    for id_ in INDICATOR_IDS:
        cells = asset["signals"].get(id_, {})
        expected = [cells.get(timeframe, "no reading") for timeframe in TIMEFRAMES]
        for cell, word in zip(shown[NAMES[id_]], expected, strict=True):
            assert cell.startswith(word)
    assert ("Dexter (outdated, now Enzo)" in shown) == ("dexter" in asset["signals"])


@pytest.mark.clause("pages")
@pytest.mark.parametrize("is_member", [True, False])
async def test_an_unknown_ticker_is_not_found_and_the_nearest_is_named(served, is_member):
    for ticker, expected in (("BTCC", "did you mean BTC (Bitcoin)?"), ("<b>x", 'unknown "<b>x"')):
        answer = await served.get_page(f"/assets/{quote(ticker)}", is_member=is_member)
        assert not check_page(answer, 404, "Not found", expected).find_all("b")


@pytest.mark.clause("pages")
async def test_an_unknown_timeframe_is_400_with_the_accepted_ones(served):
    answer = await served.get_page("/assets/BTC?timeframe=2h", is_member=True)
    check_page(answer, 400, "Something went wrong", "accepted: 1h, 4h, 1d.")


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
    page = await asset_page(served, "BTC", "1h", links=["../feed?ticker=BTC"])
    rows = [row for row in page.rows if "101.50" in row]
    assert [" ".join(row[2].split()) for row in rows] == [
        f"{row['transition']['from']} → to {row['transition']['to']} {row['transition']['to']}"
        for row in feed["signals"]
    ]
    assert [row[0] for row in rows] == ["09-30 10:00", "09-30 08:00", "09-30 06:00"]
    # Each time leads to its bar on the chart.
    assert [one["data-at"] for one in page.find_all("a") if "data-at" in one] == [
        str(NOON // HOUR_MS * 3600 - hours * 3600) for hours in (2, 4, 6)
    ]


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
    assert [rect["width"] for rect in page.find_all("rect") if rect["class"] == "bearish"] == [
        *("0.58%", "2.63%", "2.34%"),
    ]


@pytest.mark.clause("pages", "15.3")
@pytest.mark.parametrize("shows_prices", [True, False])
async def test_the_chart_shows_prices_unless_the_operator_hides_them(
    tmp_path: Path, seeded: Path, shows_prices: bool
) -> None:
    shutil.copytree(seeded, tmp_path, dirs_exist_ok=True)
    last = NOON // HOUR_MS * 3600
    closes = {25: 130.0, 3: 126.0, 1: 125.5}
    bars = make_blocks(
        *(
            BarRow("NVDA", "1h", last - 3600 * n, 100.0, 130.0, 90.0, close, 5.0)
            for n, close in closes.items()
        ),
        source="x",
    )
    async with run_service(tmp_path, shows_prices=shows_prices) as running:
        await running.market.commit(replace(make_batch(NOON + 1, []), bars=bars))
        page = await asset_page(running, "NVDA", "1h")
    assert len(page.find_all("path")) == (9 if shows_prices else 5)
    # The last close; 125.5 / 130 - 1, as on the board; since a reading began at 101.50.
    for text in ("125.50", "−3.46%", "101.50 +23.65%"):
        assert (text in page.text) is shows_prices
    if shows_prices:
        columns = [[100.0] * 3, [130.0] * 3, [90.0] * 3, [*closes.values()], [5.0] * 3]
        assert page.chart["bars"] == columns
        assert page.chart["closes"] == [last - 24 * 3600, last - 7200, last]
    else:
        assert page.chart["bars"] is None
        assert len(page.chart["opens"]) == 14 * 24 - 1


@pytest.mark.clause("pages", "15.3")
@pytest.mark.parametrize("shows_prices", [True, False])
async def test_an_alert_has_a_mark_with_and_without_prices(
    tmp_path: Path, seeded: Path, shows_prices: bool
) -> None:
    shutil.copytree(seeded, tmp_path, dirs_exist_ok=True)
    last = NOON // HOUR_MS * 3600
    alert = make_alert(NOON + 9, ticker="NVDA", timeframe="1h", close_time=last)
    bars = make_blocks(BarRow("NVDA", "1h", last, 100.0, 130.0, 90.0, 125.5, 5.0), source="x")
    async with run_service(tmp_path, shows_prices=shows_prices) as running:
        await running.market.commit(replace(make_batch(NOON + 9, []), bars=bars, alerts=[alert]))
        page = await asset_page(running, "NVDA", "1h")
    (mark,) = [each for each in page.find_all("use") if "data-text" in each]
    assert mark["class"] == "mark bullish alert"
    assert str(mark["data-text"]).splitlines()[1] == "Alert LONG of PerpKit"


@pytest.mark.clause("pages")
@pytest.mark.parametrize("is_member", [True, False])
async def test_a_removed_asset_and_one_without_data_say_so(served, is_member):
    page = await asset_page(
        served,
        "MATIC",
        "1d",
        "MATIC was removed on 2026-09-27 and continues as POL",
        is_member=is_member,
        without=["Next 1d update", "Current readings"],
    )
    dark = await asset_page(
        served, "DARK", "4h", "none: the data source does not have this asset", is_member=is_member
    )
    if is_member:
        # The lanes end at the removal.
        assert format_instant(1000 * page.chart["closes"][-1]) == "2026-09-27T00:00:00.000Z"
        assert "There are no readings of DARK." in dark.text


@pytest.mark.clause("pages")
async def test_a_timeframe_that_is_not_covered_has_no_chart(served):
    page = await asset_page(served, "XAU", "4h", "There is no chart of XAU on 4h.")
    assert page.find_all("svg") == []
    assert (await asset_page(served, "XAU", "1d")).find_all("svg")


@pytest.mark.clause("pages")
@pytest.mark.clause("15.5")
async def test_each_page_leads_to_its_neighbours_on_the_board_and_finds_any_asset(served):
    # By class, then by ticker: BTC, DARK, ETH, MATIC, NVDA, XAU.
    await asset_page(
        served,
        "NVDA",
        links=["../assets/MATIC?timeframe=4h", "../assets/XAU?timeframe=4h"],
    )
    first, last = await asset_page(served, "BTC"), await asset_page(served, "XAU")
    for page, neighbour in ((first, "DARK"), (last, "NVDA")):
        links = [link for link in page.links if "timeframe=4h" in link]
        assert links[1:] == [f"../assets/{neighbour}?timeframe=4h"]
    options = " ".join(str(option["value"]) for option in first.find_all("option"))
    assert options == "BTC DARK ETH MATIC NVDA XAU"
    assert "../assets" in [form.get("action") for form in first.find_all("form")]


@pytest.mark.clause("pages")
async def test_only_the_page_of_a_late_asset_says_so_and_simulated_data_are_marked(served):
    for ticker, title in (("BTC", "Bitcoin (BTC)"), ("ETH", "Ethereum (ETH)")):
        answer = await served.get_page(f"/assets/{ticker}", is_member=True)
        marks = ("Simulated market", "Simulated market data: no price is real")
        assert ("Late" in check_page(answer, 200, title, *marks).text) is (ticker == "ETH")


@pytest.mark.clause("pages")
@pytest.mark.clause("15.6")
async def test_visitors_see_only_the_coverage_of_any_other_asset(served):
    page = await asset_page(
        served, "MATIC", "4h", "1h, 4h, 1d", is_member=False, links=["../sign-in", "../buy"]
    )
    assert "Readings of MATIC are for members" in " ".join(page.text.split())
    assert page.rows == page.find_all("svg") == page.find_all("time") == []


@pytest.mark.clause("19.8")
async def test_the_list_has_every_tracked_asset_and_no_cache_keeps_that_of_a_member(
    served: RunningService,
):
    answer = await served.client.get("/assets")
    tracked = make_coverage().tracked
    page = check_page(
        answer,
        200,
        "Assets",
        f"{len(tracked)} of {len(tracked)} assets",
        cache="public, max-age=60",
        links=[f"./assets/{asset.ticker}" for asset in tracked],
    )
    by_ticker = {row[0].split()[0]: row for row in page.rows if len(row) == 3 and row[0] != "Asset"}
    assert sorted(by_ticker) == sorted(asset.ticker for asset in tracked)
    for asset in tracked:
        name, *covered = by_ticker[asset.ticker]
        assert asset.name in name
        assert covered == [
            " ".join(asset.timeframes) or "no data",
            " ".join(asset.alerts) or "–",
        ]
    assert len(answer.content) < MAX_BYTES
    members = await served.get_page("/assets", is_member=True)
    assert check_page(members, 200, "Assets").rows == page.rows


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
    listed = [row[0].split()[0] for row in page.rows if len(row) == 3 and row[0] != "Asset"]
    assert (listed, page.fields["text"]) == (expected, query.get("text", "").strip())
    (nothing,) = [one for one in page.find_all("span") if one.get("id") == "nothing"]
    assert ("hidden" in nothing) is bool(expected)


@pytest.mark.clause("19.8")
async def test_a_bad_filter_is_an_error_and_text_is_escaped(served: RunningService):
    assert (await served.client.get("/assets?asset_class=bond")).status_code == 400
    assert not Page(await served.client.get("/assets", params={"text": "<b>"})).find_all("b")


BARS = BarColumns(
    [0, 4 * HOUR_MS, 8 * HOUR_MS],
    [100.0, 110.0, 105.0],
    [112.0, 120.0, 106.0],
    [100.0, 104.0, 101.0],
    [110.0, 105.0, 105.0],
    [10.0, 20.0, 0.0],
)
AXIS = TimeAxis(BARS.open_times, "4h")
# A cooldown of 4h is 80 hours.
RUN_MS = 180_000


def fired(hour: int, published: int, action: str = "LONG") -> AlertRow:
    return make_alert(published * HOUR_MS + RUN_MS, action, close_time=hour * 3600)


@pytest.mark.clause("15.3")
def test_prices_fill_the_pane_from_the_lowest_low_to_the_highest_high() -> None:
    chart = build_chart([], [], {}, NAMES, BARS, "4h", 0, 12 * HOUR_MS, 0)
    assert chart is not None
    assert [chart.find_y(price) for price in (120, 100)] == [PADDING, PRICE_HEIGHT - PADDING]
    assert [label for _, label in chart.list_price_ticks()] == ["100", "105", "110", "115", "120"]
    # One candle rose; one fell, and one closed where it opened.
    top, middle, bottom = map(chart.find_y, (112, 110, 100))
    assert chart.draw_candles(rising=True).startswith(f"M5 {top}V{bottom}M2 {middle}h6")
    assert [chart.draw_candles(rising=each).count("z") for each in (True, False)] == [2, 1]
    assert chart.draw_volumes().startswith(f"M2 {PRICE_HEIGHT}h6v-18.0h-6z")


@pytest.mark.clause("15.3")
@pytest.mark.parametrize(("size", "step"), [(10, 2), (26, 5), (0.9, 0.2), (48_000, 10_000)])
def test_price_ticks_are_round(size: float, step: float) -> None:
    assert find_step(size) == pytest.approx(step)


@pytest.mark.clause("15.3")
def test_marks_stand_at_the_bar_that_fired_and_side_by_side_if_they_share_it() -> None:
    changes = [
        make_change(5 * HOUR_MS, before=0, after=1, close_time=4 * 3600),
        make_change(5 * HOUR_MS + 1, before=1, after=1, indicator="perpkit", close_time=4 * 3600),
        make_change(9 * HOUR_MS, before=None, after=-1, close_time=8 * 3600),
    ]
    marks = build_marks(changes, [fired(4, 12, "CLOSE")], AXIS, NAMES, 0)
    assert [(mark["bar"], mark["x"], mark["level"], mark["shape"]) for mark in marks] == [
        (0, 1.0, 0, "up"),
        (0, 1.0, 1, "up"),
        (0, 1.0, 0, "alert-flat"),
    ]
    assert marks[0]["text"] == "1970-01-01 04:00 UTC\nEnzo: neutral → bullish\nPrice 0.3000"


@pytest.mark.clause("15.3")
@pytest.mark.parametrize(
    ("published", "published_from", "silent", "marked"),
    [
        # Bars close at 4, 8 and 12; the axis has room for another after them.
        ((True, True), 0, 0.0, [0, 1]),
        ((False, True), 0, 1.0, [0, 1]),  # an asset that joined later
        ((False, True), 8, 2.0, [1]),
        ((True, True), 8, 2.0, [1]),  # quiet before the first start
        ((True, True), 1, 0.0, [0, 1]),  # less than a bar
        ((False, False), 99, 4, []),  # removed before the first start
    ],
)
def test_readings_before_the_service_published_are_silent_and_have_no_marks(
    published: tuple[bool, bool], published_from: int, silent: float, marked: list[int]
) -> None:
    changes = [
        make_change(5 * HOUR_MS, before=0, after=1, close_time=4 * 3600),
        make_change(9 * HOUR_MS, before=1, after=0, close_time=8 * 3600),
    ]
    rows = [row._replace(published=each) for row, each in zip(changes, published, strict=True)]
    ends, since = 12 * HOUR_MS, published_from * HOUR_MS
    chart = build_chart(rows, [], {"enzo": "neutral"}, NAMES, BARS, "4h", 0, ends, since)
    assert chart is not None
    assert (chart.silent, [mark["bar"] for mark in chart.marks]) == (silent, marked)
    assert chart.lanes["enzo"][0][1] == 0.0


@pytest.mark.clause("15.3")
def test_an_alert_is_held_if_it_fired_before_the_end_of_a_cooldown() -> None:
    newest_first = [
        fired(170, 170),  # in a cooldown of CLOSE, not of LONG
        fired(169, 169, "CLOSE"),
        fired(30, 90),  # held until the cooldown ended, 80 hours after the first
        fired(10, 10),
    ]
    assert find_held_alerts(newest_first) == {newest_first[2].id}
    # A daily alert whose bar came a day late was not held.
    late = make_alert(DAY_MS * 2 + RUN_MS, timeframe="1d", close_time=86_400)
    for at_once in ([fired(90, 90), fired(10, 10)], [late]):
        assert find_held_alerts(at_once) == set()


@pytest.mark.clause("15.3")
def test_a_held_alert_is_marked_where_it_fired_and_says_until_when_it_was_held() -> None:
    axis = TimeAxis(range(0, 100 * HOUR_MS, 4 * HOUR_MS), "4h")
    held, first = build_marks([], [fired(32, 92), fired(12, 12)], axis, NAMES, 0)[::-1]
    assert (first["kind"], first["x"], held["kind"], held["x"]) == ("alert", 3.0, "held", 8.0)
    assert "Alert LONG of PerpKit, held 60 hours until 1970-01-04 20:03 UTC" in held["text"]


@pytest.mark.clause("15.3")
def test_without_prices_the_lanes_have_an_axis_of_their_own() -> None:
    chart = build_chart([], [], {"enzo": "bullish"}, NAMES, NO_COLUMNS, "1h", 0, 5 * HOUR_MS, 0)
    assert chart is not None
    assert (chart.price_height, list(chart.axis.opens)) == (0, [HOUR_MS * n for n in range(5)])
    document = json.loads(chart.to_json())
    assert document["bars"] is None
    assert document["lanes"] == [{"name": "Enzo", "spans": [["bullish", 0.0, 6.0]]}]
    assert build_chart([], [], {}, NAMES, NO_COLUMNS, "1h", 0, 5 * HOUR_MS, 0) is None


FULL_HOUR = NOON // HOUR_MS * HOUR_MS
BEGINS, ENDS = FULL_HOUR - 10 * HOUR_MS, FULL_HOUR
HOURS = TimeAxis(range(BEGINS, ENDS, HOUR_MS), "1h")
# Two sessions of two hours, on Monday and on Tuesday.
SESSIONS = TimeAxis([0, HOUR_MS, DAY_MS, DAY_MS + HOUR_MS], "1h")


def turned(hours_ago: int, before: int | None, after: int, indicator: str = "ceres") -> ChangeRow:
    """Return a change at the close of a bar, written three minutes later."""
    closed = FULL_HOUR - hours_ago * HOUR_MS
    return make_change(
        closed + 180_000, indicator=indicator, before=before, after=after, close_time=closed // 1000
    )


@pytest.mark.clause("15.2")
@pytest.mark.parametrize(
    ("rows", "now", "spans"),
    [
        # A reading changes at the close of the bar that fired.
        (
            [(6, -1, 0), (2, 0, 1)],
            "bullish",
            [("bearish", 0.0, 4.0), ("neutral", 4.0, 8.0), ("bullish", 8.0, 11.0)],
        ),
        # Without a change the current reading fills the lane.
        ([], "bearish", [("bearish", 0.0, 11.0)]),
        # A lane is empty before the first reading.
        ([], None, []),
        ([(3, None, 1)], "bullish", [("bullish", 7.0, 11.0)]),
        # There is room after the last bar, in which a change at its close is seen.
        ([(0, 0, 1)], "bullish", [("neutral", 0.0, 10.0), ("bullish", 10.0, 11.0)]),
        # A change before the begin stays inside the lane.
        ([(12, 0, 1)], "bullish", [("bullish", 0.0, 11.0)]),
    ],
)
def test_a_lane_shows_its_readings_over_time(
    rows: list[tuple[int, int | None, int]], now: Reading | None, spans: list[Span]
) -> None:
    changes, readings = [turned(*row) for row in rows], {} if now is None else {"ceres": now}
    assert build_lanes(changes, readings, ["ceres"], HOURS, BEGINS, ENDS) == {"ceres": spans}


@pytest.mark.clause("15.2")
def test_each_indicator_has_a_lane_of_its_own() -> None:
    lanes = build_lanes([turned(1, 0, -1, "enzo")], {}, ["ceres", "enzo"], HOURS, BEGINS, ENDS)
    assert (lanes["ceres"], lanes["enzo"][1]) == ([], ("bearish", 9.0, 11.0))


@pytest.mark.clause("15.2")
def test_hours_without_trading_take_no_room_on_the_axis() -> None:
    assert [SESSIONS.place(at) for at in (0, HOUR_MS, HOUR_MS * 3 // 2)] == [0, 1, 1.5]
    assert [SESSIONS.place(at) for at in (2 * HOUR_MS, 9 * HOUR_MS, DAY_MS)] == [2, 2, 2]
    assert [SESSIONS.place(at) for at in (DAY_MS + 2 * HOUR_MS, 9 * DAY_MS)] == [4, 4]
    assert SESSIONS.find_bar(2 * HOUR_MS) == 1
    assert SESSIONS.find_bar(9 * HOUR_MS) is None


@pytest.mark.clause("15.2")
def test_a_bar_that_ends_off_the_hour_closes_at_the_next_one() -> None:
    half = TimeAxis([HOUR_MS * 27 // 2, HOUR_MS * 29 // 2], "1h")  # 13:30 and 14:30
    assert (half.closes, half.place(15 * HOUR_MS)) == ([15 * HOUR_MS, 16 * HOUR_MS], 1)


@pytest.mark.clause("15.2")
def test_ticks_stand_at_full_days_or_months_and_are_few() -> None:
    # 2026-09-30T12:00 is the end: two weeks of hours, and a year of days.
    hours = TimeAxis(range(FULL_HOUR - 14 * DAY_MS, FULL_HOUR, HOUR_MS), "1h").list_ticks()
    assert [label for _, label in hours][:3] == ["Sep 18", "Sep 20", "Sep 22"]
    assert hours[1][0] - hours[0][0] == 48
    midnight = FULL_HOUR // DAY_MS * DAY_MS
    days = TimeAxis(range(midnight - 365 * DAY_MS, midnight, DAY_MS), "1d").list_ticks()
    assert [label for _, label in days] == ["Nov 2025", "Jan 2026"] + [
        f"{month} 2026" for month in ("Mar", "May", "Jul", "Sep")
    ]
    assert [label for _, label in SESSIONS.list_ticks()] == ["01:00", "Jan 2", "01:00"]


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
