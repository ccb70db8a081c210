"""The time axis and the lanes of an asset's chart, compared with positions calculated by hand.

The chart of 30 days of calls, by itself and on the API access page.
"""

from dataclasses import replace

import pytest

from schemas.vocabulary import DAY_MS, HOUR_MS, Reading
from store.access_rows import DayUsage, ToolUsage
from store.market_rows import ChangeRow
from tests.support.example_market import NOON
from tests.support.row_builders import make_change
from tests.support.running_service import RunningService, Transport
from tests.support.web_page import buy_plan, open_member_browser
from web.api_access import CHART_DAYS, build_usage_chart
from web.asset_chart import Span, TimeAxis, build_lanes

FULL_HOUR = NOON // HOUR_MS * HOUR_MS
BEGINS, ENDS = FULL_HOUR - 10 * HOUR_MS, FULL_HOUR
AXIS = TimeAxis(range(BEGINS, ENDS, HOUR_MS), "1h")
# Two sessions of two hours, on Monday and on Tuesday.
SESSIONS = TimeAxis([0, HOUR_MS, DAY_MS, DAY_MS + HOUR_MS], "1h")


def turned(hours_ago: int, before: int | None, after: int, indicator: str = "ceres") -> ChangeRow:
    """Return a change at the close of a bar, written three minutes later."""
    closed = FULL_HOUR - hours_ago * HOUR_MS
    return make_change(
        closed + 180_000,
        indicator=indicator,
        before=before,
        after=after,
        close_time=closed // 1000,
    )


def lane(*rows: ChangeRow, now: Reading | None = "bullish") -> list[Span]:
    """Return the spans of the lane of rows that are oldest first."""
    readings = {} if now is None else {"ceres": now}
    return build_lanes(rows, readings, ["ceres"], AXIS, BEGINS, ENDS)["ceres"]


@pytest.mark.clause("15.2")
def test_a_reading_changes_at_the_close_of_the_bar_that_fired() -> None:
    assert lane(turned(6, -1, 0), turned(2, 0, 1)) == [
        ("bearish", 0.0, 4.0),
        ("neutral", 4.0, 8.0),
        ("bullish", 8.0, 11.0),
    ]


@pytest.mark.clause("15.2")
def test_without_a_change_the_current_reading_fills_the_lane() -> None:
    assert lane(now="bearish") == [("bearish", 0.0, 11.0)]


@pytest.mark.clause("15.2")
def test_a_lane_is_empty_before_the_first_reading() -> None:
    assert lane(now=None) == []
    assert lane(turned(3, None, 1)) == [("bullish", 7.0, 11.0)]


@pytest.mark.clause("15.2")
def test_a_change_at_the_end_or_before_the_begin_stays_inside_the_lane() -> None:
    # There is room after the last bar, in which a change at its close is seen.
    assert lane(turned(0, 0, 1)) == [
        ("neutral", 0.0, 10.0),
        ("bullish", 10.0, 11.0),
    ]
    assert lane(turned(12, 0, 1)) == [("bullish", 0.0, 11.0)]


@pytest.mark.clause("15.2")
def test_each_indicator_has_a_lane_of_its_own() -> None:
    lanes = build_lanes([turned(1, 0, -1, "enzo")], {}, ["ceres", "enzo"], AXIS, BEGINS, ENDS)
    assert lanes["ceres"] == []
    assert lanes["enzo"][1] == ("bearish", 9.0, 11.0)


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
    assert half.closes == [15 * HOUR_MS, 16 * HOUR_MS]
    assert half.place(15 * HOUR_MS) == 1


@pytest.mark.clause("15.2")
def test_an_axis_without_prices_has_every_closed_bar() -> None:
    axis = TimeAxis.build_regular(NOON - 2 * DAY_MS, NOON, "4h")
    assert list(axis.opens) == [FULL_HOUR - 4 * HOUR_MS * n for n in range(11, 0, -1)]


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


# 1970-02-10, so that the first of the 30 days is 1970-01-12.
TODAY = 40
NOW = TODAY * DAY_MS + 5
STATE, CONFLUENCE = "signals_get_state", "signals_get_confluence"


@pytest.mark.clause("18.7")
def test_each_day_has_a_bar_stacked_by_tool_in_proportion_to_the_busiest_day() -> None:
    rows = [
        DayUsage(TODAY - 29, CONFLUENCE, 30),
        DayUsage(TODAY, "", 15),
        DayUsage(TODAY, CONFLUENCE, 15),
        DayUsage(TODAY, STATE, 30),
    ]
    chart = build_usage_chart(rows, NOW)
    days = chart["days"]
    assert (len(days), chart["calls"], chart["busiest"]["calls"]) == (CHART_DAYS, 90, 60)
    assert (days[0]["date"], days[-1]["date"]) == ("1970-01-12", "1970-02-10")
    assert chart["tools"] == [
        (0, STATE, 30),
        (2, CONFLUENCE, 45),
        (7, "not recorded", 15),
    ]
    # 60 calls are as high as the chart, 120 units. The first tool stands at the bottom.
    assert days[-1]["parts"] == [(0, 60, 60), (2, 30, 30), (7, 0, 30)]
    assert (days[0]["parts"], days[1]["parts"]) == ([(2, 60, 60)], [])
    assert days[-1]["x"] + chart["bar_width"] <= chart["width"]


@pytest.mark.clause("18.7")
def test_without_calls_there_is_nothing_to_draw() -> None:
    chart = build_usage_chart([], NOW)
    assert (chart["calls"], chart["tools"], len(chart["days"])) == (0, [], CHART_DAYS)


@pytest.mark.clause("18.7")
async def test_the_page_shows_a_members_calls_by_day_and_tool(
    served: RunningService, transport: Transport
) -> None:
    caller = replace(served, api_key=await buy_plan(served))
    async with open_member_browser(served) as member:
        assert "No calls yet" in (await member.get_home()).text
        for _ in range(2):
            await caller.fetch_answer(transport, STATE, ticker="BTC")
        await caller.fetch_refusal(transport, CONFLUENCE, min_agree=99)
        await served.access.add_tool_usage([ToolUsage(2, served.clock() // DAY_MS - 30, STATE, 50)])
        # Calls are stored by tool some seconds later than they are counted.
        assert "Calls in the last 30 days: 3" in (await member.get_home()).text
        assert await served.call_log.flush()
        page = await member.get_home()
    rows = [[cell.strip() for cell in row] for row in page.rows]
    # A call with a bad argument counts; what is older than 30 days does not.
    assert "Calls in the last 30 days: 3" in page.text
    assert [STATE, "2 of 3", "2"] in rows
    assert [CONFLUENCE, "1 of 3", "1"] in rows
    assert ["2026-09-30", "3", f"{STATE} 2, {CONFLUENCE} 1"] in rows
    (chart,) = [one for one in page.find_all("svg") if one.get("role") == "img"]
    assert "Most on 2026-09-30: 3" in str(chart["aria-label"])
    assert [one["value"] for one in page.find_all("meter")] == ["2", "1"]
    assert not [one for _, one in page.elements if "style" in one]


@pytest.mark.clause("18.7")
async def test_another_members_calls_are_not_shown(served: RunningService) -> None:
    caller = replace(served, api_key=await buy_plan(served, "other@example.com"))
    await caller.fetch_answer("rest", STATE)
    assert await served.call_log.flush()
    await buy_plan(served)
    async with open_member_browser(served) as member:
        assert "No calls yet" in (await member.get_home()).text
