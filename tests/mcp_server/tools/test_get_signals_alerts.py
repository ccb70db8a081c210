"""The alerts tier and the merged feed, over both transports."""

from typing import Any

import pytest

from schemas.coverage import Coverage
from schemas.vocabulary import DAY_MS, Action, Timeframe
from store.market_rows import AlertRow, Batch
from tests.support.bad_inputs import SIGNALS
from tests.support.example_market import HOUR_MS, NOON, make_change, make_coverage
from tests.support.running_service import RunningService

pytestmark = pytest.mark.clause("feed")

FOLLOWED: dict[str, tuple[Timeframe, ...]] = {"BTC": ("4h", "1d"), "NVDA": ("4h", "1d")}
LATER = NOON + HOUR_MS
Row = dict[str, Any]


def alert(
    at: int, action: Action, ticker: str, indicator: str = "perpkit", timeframe: Timeframe = "4h"
) -> AlertRow:
    return AlertRow(at, ticker, indicator, timeframe, at // HOUR_MS * 3600, 0, action, 99.5)


ALERTS = [
    alert(LATER + 1, "LONG", "BTC", "enzo", "1d"),
    alert(LATER + 2, "CLOSE", "BTC"),
    alert(LATER + 4, "SHORT", "NVDA"),
    alert(LATER + 5, "BUY", "NVDA"),
    alert(LATER + 6, "SELL", "NVDA"),
]


def followed_coverage() -> Coverage:
    base = make_coverage()
    assets = tuple(
        asset.model_copy(update={"alerts": FOLLOWED.get(asset.ticker, ())}) for asset in base.assets
    )
    return base.model_copy(update={"assets": assets})


async def publish_alerts(served: RunningService) -> None:
    """Publish a run of alerts, with two changes between them."""
    await served.market.publish_coverage(followed_coverage())
    turned = [
        make_change(LATER, "ETH", "enzo", "4h", 0, 1),
        make_change(LATER + 3, "ETH", "llnr", "4h", -1, 1),
    ]
    await served.market.commit(Batch(LATER, changes=turned, alerts=ALERTS))


async def feed(served: RunningService, transport: str, **arguments: Any) -> list[Row]:
    return (await served.fetch_answer(transport, SIGNALS, **arguments))["signals"]


@pytest.mark.clause(
    "1.16",
    "1.22",
    "2.1.1",
    "2.1.2",
    "2.1.3",
    "2.1.5",
    "2.1.6",
    "2.1.7",
    "2.1.11",
    "2.1.13",
    "2.1.14",
    "3.1.2",
)
async def test_an_alert_has_exactly_the_fields_of_its_table(served, transport):
    await publish_alerts(served)
    (row,) = await feed(served, transport, tier="alerts", direction="exit")
    assert row == {
        "id": f"alerts.BTC.perpkit.4h.{LATER // HOUR_MS * 3600}.CLOSE.0",
        "tier": "alerts",
        "ticker": "BTC",
        "asset_class": "crypto",
        "indicator": "perpkit",
        "indicator_name": "PerpKit",
        "timeframe": "4h",
        "direction": "exit",
        "transition": None,
        "change_type": None,
        "action": "CLOSE",
        "price": 99.5,
        "created_at": "2026-09-30T13:03:00.002Z",
    }


@pytest.mark.clause("1.16", "2.1.2", "2.1.14", "4.7.1", "4.7.2", "4.7.3", "4.7.17", "4.7.25")
async def test_each_tier_shows_its_own_rows_and_all_merges_them_in_one_order(served, transport):
    await publish_alerts(served)
    universe = await feed(served, transport)
    alerts = await feed(served, transport, tier="alerts")
    both = await feed(served, transport, tier="all")
    assert [row["id"] for row in alerts] == [row.id for row in reversed(ALERTS)]
    assert {row["tier"] for row in universe} == {"universe"}
    assert {row["action"] for row in universe} == {None}
    merged = sorted([*universe, *alerts], key=lambda row: row["created_at"], reverse=True)
    assert both == merged
    assert [row["tier"] for row in both][:7] == [
        *["alerts"] * 3,
        "universe",
        *["alerts"] * 2,
        "universe",
    ]


@pytest.mark.clause("1.22", "2.1.9", "2.1.11", "2.1.13", "2.1.15", "3.1.2", "3.3.2", "9.18")
async def test_every_action_has_its_direction_the_legacy_ones_too(served, transport):
    await publish_alerts(served)
    rows = await feed(served, transport, tier="alerts")
    assert {row["action"]: row["direction"] for row in rows} == {
        "LONG": "bullish",
        "BUY": "bullish",
        "SHORT": "bearish",
        "SELL": "bearish",
        "CLOSE": "exit",
    }
    assert {(row["transition"], row["change_type"]) for row in rows} == {(None, None)}


FILTERS: list[dict[str, Any]] = [
    {"ticker": "nvda"},
    {"indicator": "PerpKit"},
    *({"timeframe": timeframe} for timeframe in ("1h", "4h", "1d")),
    *({"direction": direction} for direction in ("bullish", "bearish", "neutral", "exit")),
    {"ticker": "btc", "indicator": "enzo", "timeframe": "1d"},
    {"timeframe": "4h", "direction": "bullish"},
    {"ticker": "btc", "direction": "exit"},
]


def matches(row: Row, filters: Row) -> bool:
    names = {"ticker": str.upper, "indicator": str.lower}
    return all(row[key] == names.get(key, str)(value) for key, value in filters.items())


@pytest.mark.clause("4.7.4", "4.7.9", "4.7.10")
async def test_filters_narrow_both_tiers_alike(served, transport):
    await publish_alerts(served)
    for tier in ("universe", "alerts", "all"):
        whole = await feed(served, transport, tier=tier)
        for filters in FILTERS:
            found = await feed(served, transport, tier=tier, **filters)
            assert found == [row for row in whole if matches(row, filters)], (tier, filters)


@pytest.mark.clause("4.7.3", "4.7.11", "4.7.18")
async def test_pages_of_all_are_the_whole_feed_and_polling_loses_nothing(served, transport):
    await publish_alerts(served)
    whole = await feed(served, transport, tier="all")
    pages = [
        await served.fetch_answer(transport, SIGNALS, tier="all", limit=4, offset=offset)
        for offset in range(0, len(whole) + 4, 4)
    ]
    assert [row for page in pages for row in page["signals"]] == whole
    more = [page["pagination"]["has_more"] for page in pages]
    assert more == [True] * (len(whole) // 4) + [False] * (len(pages) - len(whole) // 4)
    assert await feed(served, transport, tier="all", since=whole[3]["created_at"]) == whole[:3]
    assert await feed(served, transport, tier="all", since=whole[0]["created_at"]) == []


@pytest.mark.clause("4.7.22")
async def test_overlapping_windows_without_their_repeats_are_every_row_once(served, transport):
    await publish_alerts(served)
    whole = await feed(served, transport, tier="all")
    starts = ["2020-01-01T00:00:00Z", *(row["created_at"] for row in whole[3::3])]
    read = [
        row for since in starts for row in await feed(served, transport, tier="all", since=since)
    ]
    kept = {(row["tier"], row["id"]): row for row in read}
    assert [*kept.values()] == whole
    assert len(read) > 2 * len(whole)


@pytest.mark.clause("8.39", "8.40")
async def test_alerts_are_shown_for_90_days_and_changes_for_longer(served, transport):
    await publish_alerts(served)
    end = LATER + 2 + 90 * DAY_MS
    await served.market.commit(Batch(end, changes=[make_change(end, "ETH", "enzo", "4h", 1, 0)]))
    served.clock.now = end
    since = {"since": "2020-01-01T00:00:00Z"}
    shown = [row.id for row in reversed(ALERTS[2:])]
    assert [row["id"] for row in await feed(served, transport, tier="alerts", **since)] == shown
    both = await feed(served, transport, tier="all", **since)
    assert [row["id"] for row in both if row["tier"] == "alerts"] == shown
    assert len(both) == len(shown) + 8 + 2 + 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"tier": "alerts", "direction": "neutral"}, "neutral is a direction of the universe tier"),
        ({"tier": "universe", "direction": "exit"}, "exit is a direction of the alerts tier"),
        ({"tier": "alerts", "ticker": "ETH"}, "the engines follow BTC, NVDA on 4h and 1d"),
        (
            {"tier": "alerts", "timeframe": "1h"},
            "No alert engine follows this ticker and timeframe",
        ),
        ({"tier": "alerts", "indicator": "ceres"}, "No row matched"),
        ({"tier": "all", "since": "2027-01-01T00:00:00Z"}, "after the last compute"),
        ({"tier": "alerts", "offset": 10**9}, "lower offset"),
        ({"indicator": "perpkit"}, "its actions from tier=alerts"),
    ],
)
async def test_an_empty_page_says_why_it_is_empty(served, transport, arguments, reason):
    await publish_alerts(served)
    answer = await served.fetch_answer(transport, SIGNALS, **arguments)
    assert (answer["signals"], answer["pagination"]["next_cursor"]) == ([], None)
    assert reason in answer["meta"]["note"]


async def test_without_followed_assets_the_note_says_so(served, transport):
    answer = await served.fetch_answer(transport, SIGNALS, tier="alerts")
    assert "no data for any asset with alert engines" in answer["meta"]["note"]


@pytest.mark.clause("2.1.16", "2.13.9", "3.2.9", "3.3.8", "3.3.9", "9.17")
async def test_meta_explains_timing_cooldown_retention_and_close(served, transport):
    without_alerts = (await served.fetch_answer(transport, SIGNALS))["meta"]
    meta = (await served.fetch_answer(transport, SIGNALS, tier="all"))["meta"]
    assert meta.keys() - without_alerts.keys() == {"cooldown", "close"}
    assert without_alerts["timing"] == meta["timing"]
    assert meta["retention_days"] == {"universe": 365, "alerts": 90}
    assert "3 to 5 minutes" in meta["timing"]
    assert "milliseconds apart" in meta["timing"]
    for words in ("20 candles", "80 hours on 4h, 20 days on 1d", "every change is logged", "held"):
        assert words in meta["cooldown"]
    assert "without saying whether it was long or short" in meta["close"]
    assert "missing from the feed or published late" in meta["close"]


@pytest.mark.parametrize(
    ("tier", "expected"),
    [
        ("universe", "2026-10-01T00:03:00.000Z"),
        ("alerts", "2026-09-30T14:03:00.000Z"),
        ("all", "2026-09-30T14:03:00.000Z"),
    ],
)
async def test_a_held_alert_may_come_at_any_hour_on_every_timeframe(
    served, transport, tier, expected
):
    await publish_alerts(served)
    served.clock.now = LATER + 200_000
    answer = await served.fetch_answer(transport, SIGNALS, tier=tier, timeframe="1d")
    assert answer["meta"]["nothing_new_before"] == expected
