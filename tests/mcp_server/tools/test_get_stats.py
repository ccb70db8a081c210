import re
from collections.abc import Iterator
from typing import Any

import pytest

from access.billing.provider import NoBilling
from mcp_server.tools.tool_table import TOOLS
from schemas.coverage import Coverage
from schemas.vocabulary import DAY_MS, INDICATOR_IDS, format_instant
from serving.tool import to_mcp_tool
from store.market_rows import Batch
from store.store_errors import StoreError
from tests.mcp_server.tools.test_get_catalog import changed
from tests.mcp_server.tools.test_get_signals import ALERTS, alert, followed_coverage, publish_alerts
from tests.support.bad_inputs import CATALOG, SIGNALS, STATE, STATS, USAGE
from tests.support.example_market import (
    ASSETS,
    LATER,
    NOON,
    make_batch,
    make_change,
    make_coverage,
)
from tests.support.running_service import RunningService, run_service, served as served
from tests.support.store_homes import GatedMarket

pytestmark = pytest.mark.clause("answers")

EDGE = NOON - 30 * DAY_MS
OLDEST_SHOWN = NOON - 365 * DAY_MS + 1
FORBIDDEN = re.compile(r"(win|wins|winrate|accuracy|return|returns|pnl|profit|profits|roi)")
PROMISED = re.compile(r"\b(win rates?|wins|accuracy|pnl|p&l|profit\w*|return figures?)\b", re.I)


async def published_at(served: RunningService, *times: int) -> None:
    """Publish one change at each time and a run at NOON, in an empty store."""
    await served.market.publish_coverage(make_coverage())
    rows = [make_change(at, "BTC", "enzo", "1h", 1, 0) for at in times]
    await served.market.commit(
        make_batch(NOON, [row._replace(close_time=n) for n, row in enumerate(rows)])
    )


async def alerted_at(served: RunningService, *times: int) -> None:
    """Publish one alert at each time and a run at NOON, in an empty store."""
    await served.market.publish_coverage(followed_coverage())
    rows = [alert(at, "LONG", "BTC", id_) for at, id_ in zip(times, INDICATOR_IDS, strict=False)]
    await served.market.commit(Batch(NOON, alerts=rows))


def tally(rows: list[dict[str, Any]], name: str) -> dict[str, int]:
    return {row[name]: row["signals"] for row in rows}


@pytest.mark.clause("2.8.3", "2.8.4", "2.8.5", "2.8.6", "2.8.7", "2.13.1", "2.13.2", "2.13.3")
async def test_counts_come_in_the_order_of_the_vocabulary_and_add_up(served, transport):
    tier = (await served.fetch_answer(transport, STATS))["universe_tier"]
    # Six hourly flips, one ceres on 4h, one llnr on 1d; perpkit's change is not published.
    assert (tier["total_signals"], tier["signals_per_day"]) == (8, 8 / 30)
    assert [*tally(tier["by_indicator"], "indicator").items()] == [
        ("trend_oracle", 3),
        ("bayesian_trend", 0),
        ("reversals", 0),
        ("ceres", 1),
        ("enzo", 3),
        ("llnr", 1),
    ]
    assert [*tally(tier["by_timeframe"], "timeframe").items()] == [("1h", 6), ("4h", 1), ("1d", 1)]
    directions = tally(tier["by_direction"], "direction")
    assert [*directions.items()] == [("bullish", 3), ("bearish", 4), ("neutral", 1)]
    assert tier["by_indicator"][1]["indicator_name"] == "Bayesian Trend"


@pytest.mark.clause("2.13.1")
async def test_an_unlogged_indicator_is_listed_once_it_has_rows(served_alone, transport):
    row = make_change(LATER, "BTC", "perpkit", "4h", 1, 0)._replace(published=True)
    await served_alone.market.commit(make_batch(LATER, [row]))
    tier = (await served_alone.fetch_answer(transport, STATS))["universe_tier"]
    assert tally(tier["by_indicator"], "indicator")["perpkit"] == 1
    assert tier["total_signals"] == sum(row["signals"] for row in tier["by_indicator"]) == 9


@pytest.mark.clause("2.8.1", "2.8.2", "4.4.1")
async def test_the_window_is_the_30_days_up_to_the_snapshot(served, transport):
    window = (await served.fetch_answer(transport, STATS))["window"]
    # The newest row of the last run is five milliseconds after its market time.
    assert window == {
        "days": 30,
        "since": format_instant(EDGE + 5),
        "until": format_instant(NOON + 5),
    }


@pytest.mark.clause("2.8.2", "4.4.1")
@pytest.mark.parametrize(
    ("publish", "tier"), [(published_at, "universe_tier"), (alerted_at, "alerts_tier")]
)
async def test_a_row_at_since_is_out_and_one_at_until_is_in(served_empty, transport, publish, tier):
    await publish(served_empty, EDGE - 1, EDGE, EDGE + 1, NOON)
    answer = await served_empty.fetch_answer(transport, STATS)
    assert (answer["window"]["since"], answer["window"]["until"]) == (
        format_instant(EDGE),
        format_instant(NOON),
    )
    assert answer[tier]["total_signals"] == 2


BEGIN_INSIDE = "The changes begin inside the window"


@pytest.mark.clause("2.8.3", "2.8.4", "2.8.9", "2.8.10")
@pytest.mark.parametrize(
    ("times", "starts_at", "counted", "note", "other"),
    [
        (
            (OLDEST_SHOWN - 2, OLDEST_SHOWN - 1, OLDEST_SHOWN, NOON),
            *(OLDEST_SHOWN, 1, "", BEGIN_INSIDE),
        ),
        ((NOON - DAY_MS,), NOON - DAY_MS, 1, BEGIN_INSIDE, "No change"),
        ((), None, 0, "No change has been published yet", BEGIN_INSIDE),
    ],
    ids=["older than the feed shows", "younger than the window", "none"],
)
async def test_history_starts_with_the_oldest_row_that_the_feed_shows(
    served_empty, transport, times, starts_at, counted, note, other
):
    await published_at(served_empty, *times)
    answer = await served_empty.fetch_answer(transport, STATS)
    tier = answer["universe_tier"]
    shown = [
        row["created_at"]
        for row in (await served_empty.fetch_answer(transport, SIGNALS))["signals"][-1:]
    ]
    assert [tier["history_starts_at"]] == (shown or [None])
    assert shown == [format_instant(at) for at in (starts_at,) if at]
    assert (tier["total_signals"], tier["signals_per_day"]) == (counted, counted / 30)
    assert tally(tier["by_timeframe"], "timeframe") == {"1h": counted, "4h": 0, "1d": 0}
    assert note in answer["meta"].get("note", "")
    assert other not in answer["meta"].get("note", "")


NOT_COVERED = {
    "total_signals": None,
    "signals_per_day": None,
    "by_indicator": [],
    "by_timeframe": [],
    "by_direction": [],
    "history_starts_at": None,
}


def make_dark_coverage() -> Coverage:
    return changed(make_coverage(), **{asset.ticker: {"timeframes": ()} for asset in ASSETS})


@pytest.mark.clause("2.8.3", "2.13.4")
async def test_a_tier_that_covers_nothing_is_null_and_the_note_says_why(served_empty, transport):
    await published_at(served_empty)
    answer = await served_empty.fetch_answer(transport, STATS)
    assert (answer["alerts_tier"], answer["universe_tier"]["total_signals"]) == (NOT_COVERED, 0)
    assert "The alert engines follow no asset" in answer["meta"].get("note", "")
    assert "no data for any tracked asset" not in answer["meta"].get("note", "")
    await served_empty.market.publish_coverage(make_dark_coverage())
    answer = await served_empty.fetch_answer(transport, STATS)
    assert answer["universe_tier"] == NOT_COVERED
    assert "The source has no data for any tracked asset" in answer["meta"].get("note", "")


@pytest.mark.clause("2.8.3")
async def test_rows_are_counted_although_their_assets_are_no_longer_covered(
    served_alone, transport
):
    before = await served_alone.fetch_answer(transport, STATS)
    await served_alone.market.publish_coverage(make_dark_coverage())
    after = await served_alone.fetch_answer(transport, STATS)
    assert after["universe_tier"] == before["universe_tier"]


@pytest.mark.clause("2.8.8", "2.8.9", "2.8.10", "2.13.3", "2.13.4")
async def test_alerts_are_counted_by_indicator_timeframe_and_direction(served_alone, transport):
    await publish_alerts(served_alone)
    answer = await served_alone.fetch_answer(transport, STATS)
    tier = answer["alerts_tier"]
    assert (tier["total_signals"], tier["signals_per_day"]) == (5, 5 / 30)
    indicators = tally(tier["by_indicator"], "indicator")
    assert {id_: n for id_, n in indicators.items() if n} == {"perpkit": 4, "enzo": 1}
    assert list(indicators) == [*INDICATOR_IDS]
    assert tally(tier["by_timeframe"], "timeframe") == {"4h": 4, "1d": 1}
    assert tally(tier["by_direction"], "direction") == {"bullish": 2, "bearish": 2, "exit": 1}
    assert tier["history_starts_at"] == format_instant(ALERTS[0].created_at)
    assert "The alerts begin inside the window" in answer["meta"].get("note", "")


@pytest.mark.clause("2.13.2")
async def test_followed_assets_without_alerts_count_zero(served_alone, transport):
    await served_alone.market.publish_coverage(followed_coverage())
    answer = await served_alone.fetch_answer(transport, STATS)
    tier = answer["alerts_tier"]
    assert (tier["total_signals"], tier["history_starts_at"]) == (0, None)
    assert set(tally(tier["by_timeframe"], "timeframe")) == {"4h", "1d"}
    assert "No alert has been published yet" in answer["meta"].get("note", "")


async def test_meta_names_the_source_of_the_counts(served, transport):
    meta = (await served.fetch_answer(transport, STATS))["meta"]
    assert (meta["source"], meta.get("simulated", False), meta.get("stale", False)) == (
        "simulated",
        True,
        False,
    )
    assert meta["as_of"] == "2026-09-30T12:03:00.000Z"
    assert "Simulated" not in meta.get("note", "")


@pytest.mark.clause("4.4.2", "7.29")
async def test_a_store_whose_rows_cannot_be_read_is_unavailable_until_they_can(transport, tmp_path):
    async def fail() -> None:
        raise StoreError("disk I/O error")

    async with run_service(tmp_path, make_coverage(), store_class=GatedMarket) as failing:
        failing.market.gated_reads.before = fail
        error = await failing.check_refusal(transport, STATS, 503, "unavailable")
        assert "disk" not in error["message"]
        response = await failing.get_api("/stats")
        assert (response.status_code, response.headers["retry-after"]) == (503, "60")
        await failing.fetch_answer(transport, STATE)
        failing.market.gated_reads.before = None
        assert (await failing.fetch_answer(transport, STATS))["universe_tier"]["total_signals"] == 8


def fields_of(value: Any) -> Iterator[str]:
    """Yield every key of a result or schema, at any depth."""
    if isinstance(value, dict):
        yield from value
    for part in value.values() if isinstance(value, dict) else value:
        if isinstance(part, dict | list):
            yield from fields_of(part)


def descriptions_of(value: Any) -> Iterator[str]:
    """Yield every description of a listed tool, at any depth."""
    for name, part in value.items() if isinstance(value, dict) else enumerate(value):
        if name == "description" and isinstance(part, str):
            yield part
        elif isinstance(part, dict | list):
            yield from descriptions_of(part)


def is_performance(field: str) -> bool:
    return any(FORBIDDEN.fullmatch(word) for word in re.split(r"[^a-z]+", field.lower()))


@pytest.mark.clause("1.43")
@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
async def test_no_result_has_a_field_on_performance(served, tool):
    shown = to_mcp_tool(tool, None).model_dump(mode="json", by_alias=True, exclude_none=True)
    answer = await served.fetch_answer("mcp", tool.name)
    fields = {*fields_of(shown), *fields_of(answer)}
    assert fields >= set(answer)
    assert [field for field in fields if is_performance(field)] == []
    assert [text for text in descriptions_of(shown) if PROMISED.search(text)] == []


@pytest.mark.clause("1.43")
@pytest.mark.parametrize("path", ["", "/openapi.json", "/signals/sample"])
async def test_no_open_document_has_a_field_on_performance(served, path):
    document = (await served.client.get(f"/api/v1{path}")).json()
    assert [field for field in fields_of(document) if is_performance(field)] == []


@pytest.mark.clause("1.42")
async def test_stats_have_only_volume_and_the_catalog_only_coverage(served):
    stats = await served.fetch_answer("mcp", STATS)
    tier = ["total_signals", "signals_per_day", "by_indicator", "by_timeframe", "by_direction"]
    assert {name: list(part) for name, part in stats.items() if name != "meta"} == {
        "window": ["days", "since", "until"],
        "universe_tier": [*tier, "history_starts_at"],
        "alerts_tier": [*tier, "history_starts_at"],
    }
    counted = {name for by in tier[2:] for row in stats["universe_tier"][by] for name in row}
    assert counted == {"indicator", "indicator_name", "timeframe", "direction", "signals"}
    assert set(await served.fetch_answer("mcp", CATALOG)) == {
        "generated_at",
        "note",
        "assets",
        "timeframes",
        "indicators",
        "indicator_fields",
        "indicator_statuses",
        "legacy_indicator_keys",
        "tiers",
        "coverage",
        "cadence",
        "meta",
    }


def test_a_field_on_performance_would_be_found():
    deep = {"a": [{"b": {"win_rate": 1, "description": "The accuracy of it."}}]}
    assert [field for field in fields_of(deep) if is_performance(field)] == ["win_rate"]
    assert [text for text in descriptions_of(deep) if PROMISED.search(text)]


@pytest.mark.clause(
    "2.11.1", "2.11.2", "2.11.3", "2.11.4", "2.11.5", "2.13.11", "4.10.1", "5.18", "8.1"
)
async def test_label_mode_and_quota_are_returned_and_the_call_itself_counts(served, transport):
    answer = await served.fetch_answer(transport, USAGE)
    meta = answer.pop("meta")
    assert answer == {
        "key": {"label": "tests"},
        "mode": "test",
        "quota": {
            "daily_limit": 10_000,
            "used_today": 1,
            "remaining_today": 9_999,
            "resets_at": "2026-10-01T00:00:00.000Z",
        },
    }
    named = ("REST", "tools/call", "10,000 per UTC day", "00:00 UTC")
    assert not [part for part in named if part not in meta["counted"]], meta["counted"]
    assert meta.get("note") is None
    assert (meta["source"], meta.get("simulated", False)) == ("simulated", True)


@pytest.mark.clause("2.11.2", "2.11.5", "5.18", "8.1")
async def test_without_billing_the_mode_is_null_and_calls_are_counted_all_the_same(
    tmp_path, transport
):
    async with run_service(tmp_path, provider=NoBilling(), daily_limit=5) as served_alone:
        answer = await served_alone.fetch_answer(transport, USAGE)
    assert (answer["mode"], answer["quota"]["remaining_today"]) == (None, 4)
    assert "5 per UTC day" in answer["meta"]["counted"]


@pytest.mark.clause("2.13.11")
async def test_it_works_before_coverage_is_published_and_names_no_source(served_empty, transport):
    answer = await served_empty.fetch_answer(transport, USAGE)
    assert answer["key"] == {"label": "tests"}
    meta = answer["meta"]
    assert (meta["source"], meta.get("simulated", False)) == (None, False)
