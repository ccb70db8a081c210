"""The chart of 30 days of calls, by itself and on the API access page."""

from dataclasses import replace

import pytest

from schemas.vocabulary import DAY_MS
from store.access_rows import DayUsage, ToolUsage
from tests.support.running_service import RunningService, Transport
from tests.support.web_page import buy_plan, open_member_browser
from web.api_access import CHART_DAYS, ToolCalls, build_usage_chart

pytestmark = pytest.mark.clause("18.7")

# 1970-02-10, so that the first of the 30 days is 1970-01-12.
TODAY = 40
NOW = TODAY * DAY_MS + 5
STATE, CONFLUENCE = "signals_get_state", "signals_get_confluence"


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
        ToolCalls(0, STATE, 30),
        ToolCalls(2, CONFLUENCE, 45),
        ToolCalls(7, "not recorded", 15),
    ]
    # 60 calls are as high as the chart, 120 units. The first tool stands at the bottom.
    assert days[-1]["parts"] == [(0, 60, 60), (2, 30, 30), (7, 0, 30)]
    assert (days[0]["parts"], days[1]["parts"]) == ([(2, 60, 60)], [])
    assert days[-1]["x"] + chart["bar_width"] <= chart["width"]


def test_without_calls_there_is_nothing_to_draw() -> None:
    chart = build_usage_chart([], NOW)
    assert (chart["calls"], chart["tools"], len(chart["days"])) == (0, [], CHART_DAYS)


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


async def test_another_members_calls_are_not_shown(served: RunningService) -> None:
    caller = replace(served, api_key=await buy_plan(served, "other@example.com"))
    await caller.fetch_answer("rest", STATE)
    assert await served.call_log.flush()
    await buy_plan(served)
    async with open_member_browser(served) as member:
        assert "No calls yet" in (await member.get_home()).text
