import json

import jsonschema
import pytest

from mcp_server.tools.get_signals import GET_SIGNALS
from mcp_server.tools.json_schema import output_schema
from tests.serving import NOON, Served, change, flips, work


async def signals(served: Served, **arguments: object) -> dict:
    result = await served.call("signals_get_signals", arguments)
    assert result["isError"] is False, result
    jsonschema.validate(result["structuredContent"], output_schema(GET_SIGNALS.result))
    assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
    return result["structuredContent"]


async def test_the_feed_is_newest_first_and_complete(served):
    answer = await signals(served)
    times = [row["created_at"] for row in answer["signals"]]
    assert times == sorted(times, reverse=True)
    assert answer["pagination"] == {
        "limit": 50,
        "offset": 0,
        "returned": 8,
        "has_more": False,
        "next_cursor": "2026-09-30T12:03:00.005Z",
    }


async def test_a_row_has_exactly_the_fields_of_its_table(served):
    (row,) = (await signals(served, ticker="nvda"))["signals"]
    hour = (NOON - 3_600_000) // 3_600_000 * 3600
    assert row == {
        "id": f"universe.NVDA.llnr.1d.{hour}.1",
        "tier": "universe",
        "ticker": "NVDA",
        "asset_class": "stock",
        "indicator": "llnr",
        "indicator_name": "LLNR",
        "timeframe": "1d",
        "direction": "neutral",
        "transition": {"from": "bearish", "to": "neutral"},
        "change_type": "deactivation",
        "action": None,
        "price": 101.5,
        "created_at": "2026-09-30T11:03:00.001Z",
    }


@pytest.mark.parametrize("name", ["trend_oracle", "trend-oracle", "Trend Oracle", "TREND ORACLE"])
async def test_an_indicator_is_found_by_id_screener_id_and_display_name(served, name):
    answer = await signals(served, indicator=name)
    assert {row["indicator"] for row in answer["signals"]} == {"trend_oracle"}


async def test_filters_together_narrow_the_feed(served):
    answer = await signals(served, ticker="BTC", timeframe="4h", direction="bullish")
    assert [row["change_type"] for row in answer["signals"]] == ["activation"]


async def test_offset_pages_join_to_the_whole_feed(served):
    whole = (await signals(served))["signals"]
    first = await signals(served, limit=5)
    second = await signals(served, limit=5.0, offset=5)
    assert first["signals"] + second["signals"] == whole
    assert (first["pagination"]["has_more"], second["pagination"]["has_more"]) == (True, False)


async def test_has_more_is_false_when_the_page_ends_with_the_last_row(served):
    assert (await signals(served, limit=8))["pagination"]["has_more"] is False


async def test_polling_with_the_cursor_neither_loses_nor_repeats_a_row(served):
    seen = [row["id"] for row in (await signals(served))["signals"]]
    cursor = (await signals(served))["pagination"]["next_cursor"]
    assert (await signals(served, since=cursor))["signals"] == []
    later = NOON + 3_600_000
    await served.market.commit(work(later, flips(later, 2)))
    fresh = (await signals(served, since=cursor))["signals"]
    assert len(fresh) == 2
    assert not set(seen) & {row["id"] for row in fresh}


@pytest.mark.parametrize(
    "since",
    [
        "2026-09-30T12:03:00.003Z",
        "2026-09-30T12:03:00.003999Z",
        "2026-09-30T14:03:00.003+02:00",
        "2026-09-30T12:03:00.003+00:00",
        "2026-09-30T12:03:00.003 00:00",
        "2026-09-30 12:03:00,003z",
    ],
)
async def test_since_is_exclusive_in_every_spelling(served, since):
    assert len((await signals(served, since=since))["signals"]) == 2


async def test_rows_beyond_retention_are_never_returned(served):
    later = NOON + 365 * 86_400_000
    await served.market.commit(work(later, [change(later, "ETH", "llnr", "1d", -1, 1)]))
    answer = await signals(served, since="2020-01-01T00:00:00Z")
    # The rows of NOON's own pass but the first are younger than 365 days.
    assert len(answer["signals"]) == 6
    assert answer["meta"]["retention_days"] == {"universe": 365, "alerts": 90}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"direction": "exit"}, "alerts tier"),
        ({"indicator": "perpkit"}, "not logged"),
        ({"since": "2026-09-30T12:03:00.005Z"}, "next_update"),
        ({"since": "2027-01-01T00:00:00Z"}, "after the last compute"),
        ({"offset": 2**63 - 1}, "lower offset"),
        ({"offset": 10**30}, "lower offset"),
        ({"ticker": "XAU"}, "Nothing matching"),
    ],
)
async def test_an_empty_page_says_what_empty_means(served, arguments, reason):
    answer = await signals(served, **arguments)
    assert answer["signals"] == []
    assert answer["pagination"]["next_cursor"] is None
    assert reason in answer["meta"]["note"]
