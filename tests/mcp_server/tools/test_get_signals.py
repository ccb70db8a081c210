"""The feed of changes and the alerts tier."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from mcp_server.tools.get_signals import render_page
from schemas.coverage import Coverage
from schemas.signals import SignalsQuery
from schemas.vocabulary import (
    DAY_MS,
    INDICATOR_IDS,
    READING_NAMES,
    Action,
    Timeframe,
    format_instant,
)
from serving.json_text import to_json
from serving.response_cache import ResponseCache
from serving.snapshot_cache import SnapshotCache
from store.market_rows import AlertRow, Batch
from store.opening import open_sqlite_market
from tests.support.bad_inputs import CATALOG, FLIPS, SIGNALS, STATE
from tests.support.example_market import (
    HOUR_MS,
    LATER,
    NAMES,
    NOON,
    make_batch,
    make_change,
    make_coverage,
    make_flips,
    seed_market,
)
from tests.support.running_service import RunningService, served as served
from tests.support.store_homes import open_and_close

pytestmark = pytest.mark.clause("feed")


@pytest.mark.clause(
    "1.16",
    "2.1.1",
    "2.1.3",
    "2.1.4",
    "2.1.5",
    "2.1.6",
    "2.1.8",
    "2.1.10",
    "2.1.12",
    "2.1.19",
    "3.2.4",
)
async def test_a_row_has_exactly_the_fields_of_its_table(served, transport):
    (row,) = await feed(served, transport, ticker="nvda")
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


@pytest.mark.clause("2.6.4", "2.6.5", "2.6.6", "3.2.2", "3.2.3", "3.2.4", "3.2.5", "3.2.6", "3.2.7")
@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ("bullish", "bearish", "reversal"),
        ("bearish", "bullish", "reversal"),
        ("neutral", "bullish", "activation"),
        ("neutral", "bearish", "activation"),
        ("bullish", "neutral", "deactivation"),
        ("bearish", "neutral", "deactivation"),
    ],
)
async def test_a_change_type_follows_from_both_readings(
    served_alone, transport, before, after, kind
):
    numbers = {name: number for number, name in READING_NAMES.items()}
    later = NOON + 3_600_000
    moved = make_change(later, "ETH", "llnr", "1d", numbers[after], numbers[before])._replace(
        price=0.1 + 0.2
    )
    await served_alone.market.commit(make_batch(later, [moved]))
    row = (await served_alone.fetch_answer(transport, SIGNALS, limit=1))["signals"][0]
    assert row["transition"] == {"from": before, "to": after}
    assert (row["direction"], row["change_type"]) == (after, kind)
    (asset,) = (await served_alone.fetch_answer(transport, STATE, ticker="ETH", indicator="llnr"))[
        "assets"
    ]
    assert asset["signals"]["llnr"]["1d"] == after
    ((flip,),) = [
        group["flips"]
        for group in (await served_alone.fetch_answer(transport, FLIPS))["groups"]
        if group["ticker"] == "ETH"
    ]
    assert (flip["from"], flip["to"], flip["change_type"]) == (before, after, kind)
    assert flip["price"] == row["price"] == 0.1 + 0.2


@pytest.mark.clause("4.7.5", "4.7.6", "4.7.7")
@pytest.mark.prove
async def test_an_indicator_is_found_by_id_screener_id_and_display_name(served_alone, transport):
    turned = [
        make_change(LATER + n, "BTC", id_, "4h", -1, 1)._replace(published=True)
        for n, id_ in enumerate(INDICATOR_IDS)
    ]
    await served_alone.market.commit(make_batch(LATER, turned))
    for id_ in INDICATOR_IDS:
        for name in (id_, id_.replace("_", "-"), NAMES[id_], NAMES[id_].upper()):
            rows = (await served_alone.fetch_answer(transport, SIGNALS, indicator=name))["signals"]
            assert {row["indicator"] for row in rows} == {id_}, name


@pytest.mark.clause("4.7.5", "4.7.7")
async def test_a_display_name_unlike_the_id_finds_its_indicator_as_the_id_does(
    served_alone, transport
):
    published = make_coverage()
    renamed = [
        one.model_copy(update={"name": "Second Wind"}) if one.id == "enzo" else one
        for one in published.indicators
    ]
    await served_alone.market.publish_coverage(
        published.model_copy(update={"indicators": tuple(renamed)})
    )
    for name in ("enzo", "Second Wind", "second-wind"):
        rows = (await served_alone.fetch_answer(transport, SIGNALS, indicator=name))["signals"]
        assert {(row["indicator"], row["indicator_name"]) for row in rows} == {
            ("enzo", "Second Wind")
        }


@pytest.mark.clause("4.7.8", "4.7.29")
async def test_each_of_the_seven_ids_is_accepted_and_a_refusal_names_them_all(served, transport):
    for id_ in INDICATOR_IDS:
        await served.fetch_answer(transport, SIGNALS, indicator=id_)
    refusal = (400, "unknown_indicator", f"accepted: {', '.join(INDICATOR_IDS)}")
    await served.check_refusal(transport, SIGNALS, *refusal, indicator="macd")


@pytest.mark.clause("4.7.4", "4.7.28")
async def test_a_ticker_is_matched_exactly_in_any_case(served, transport):
    answer = await served.fetch_answer(transport, SIGNALS, ticker="BTC")
    assert {row["ticker"] for row in answer["signals"]} == {"BTC"}
    assert await served.fetch_answer(transport, SIGNALS, ticker="bTc") == answer
    for near in ("BT", "BTCX", "Bitcoi"):
        await served.check_refusal(transport, SIGNALS, 400, "unknown_ticker", ticker=near)


@pytest.mark.clause("2.2.1", "2.2.2", "2.2.3", "2.2.4", "2.2.5", "2.2.6", "2.3.1", "4.7.17")
@pytest.mark.parametrize(
    ("page", "limit", "offset", "returned", "has_more"),
    [
        ({}, 50, 0, 8, False),
        ({"limit": 3, "offset": 0}, 3, 0, 3, True),
        ({"limit": 3, "offset": 6}, 3, 6, 2, False),
    ],
)
async def test_a_page_says_which_limit_and_offset_it_used(
    served, transport, page, limit, offset, returned, has_more
):
    answer = await served.fetch_answer(transport, SIGNALS, **page)
    assert set(answer) == {"signals", "pagination", "meta"}
    times = [row["created_at"] for row in answer["signals"]]
    assert times == sorted(times, reverse=True)
    assert answer["pagination"] == {
        "limit": limit,
        "offset": offset,
        "returned": returned,
        "has_more": has_more,
        "next_cursor": times[0],
    }
    assert offset or times[0] == "2026-09-30T12:03:00.005Z"
    assert len(times) == returned


@pytest.mark.clause("4.7.12", "4.7.13", "8.16", "8.17", "8.18", "8.19")
@pytest.mark.prove
async def test_a_page_has_up_to_200_rows_and_50_by_default(served_alone, transport):
    later = NOON + 300 * 3_600_000
    await served_alone.market.commit(make_batch(later, make_flips(later, 201)))
    for arguments, rows in (({}, 50), ({"limit": 1}, 1), ({"limit": 200}, 200)):
        answer = await served_alone.fetch_answer(transport, SIGNALS, **arguments)
        assert len(answer["signals"]) == answer["pagination"]["returned"] == rows
        assert answer["pagination"]["limit"] == rows
        assert answer["pagination"]["has_more"] is True


@pytest.mark.clause("2.1.1", "2.2.5", "4.7.19", "4.7.20", "6.9")
async def test_rows_that_come_between_two_pages_shift_the_second(served_alone, transport):
    whole = (await served_alone.fetch_answer(transport, SIGNALS))["signals"]
    page = await served_alone.fetch_answer(transport, SIGNALS, limit=4)
    first, cursor = page["signals"], page["pagination"]["next_cursor"]
    await served_alone.market.commit(make_batch(LATER, make_flips(LATER, 2)))
    rows = list(first)
    while page["pagination"]["has_more"]:
        offset = page["pagination"]["offset"] + 4
        page = await served_alone.fetch_answer(transport, SIGNALS, limit=4, offset=offset)
        rows += page["signals"]
    assert rows == [*first, *first[2:], *whole[4:]]
    # The rows that came meanwhile are later than the cursor of the first page.
    polled = (await served_alone.fetch_answer(transport, SIGNALS, since=cursor))["signals"]
    assert [row["created_at"] for row in polled] == [
        format_instant(LATER + 1),
        format_instant(LATER),
    ]


@pytest.mark.clause("4.6.12", "4.7.22")
async def test_the_newest_row_of_a_cell_turned_to_its_current_reading(served_alone, transport):
    later = NOON + 10 * HOUR_MS
    await served_alone.market.commit(make_batch(later, make_flips(later, 4)))
    rows = (await served_alone.fetch_answer(transport, SIGNALS))["signals"]
    newest = {
        (row["ticker"], row["indicator"], row["timeframe"]): row["direction"]
        for row in reversed(rows)
    }
    held = {
        (asset["ticker"], indicator, timeframe): reading
        for asset in (await served_alone.fetch_answer(transport, STATE))["assets"]
        for indicator, readings in asset["signals"].items()
        for timeframe, reading in readings.items()
    }
    assert {cell: held[cell] for cell in newest} == newest
    assert len(newest) == 4 < len(rows)


@pytest.mark.clause("6.11")
async def test_polling_faster_than_the_runs_returns_identical_data(served_alone, transport):
    answers = []
    for now in (NOON + 60_000, NOON + 200_000, NOON + 59 * 60_000):  # ETH is late at NOON.
        served_alone.clock.now = now
        answer = await served_alone.fetch_answer(
            transport, SIGNALS, since="2026-09-30T12:03:00.000Z"
        )
        answer["meta"].pop("nothing_new_before", None)
        answers.append(answer)
    assert answers[0]["pagination"]["returned"] == 5
    assert answers[0] == answers[1] == answers[2]
    served_alone.clock.now = NOON + 90 * 60_000  # The next run is overdue.
    overdue = await served_alone.fetch_answer(transport, SIGNALS, since="2026-09-30T12:03:00.000Z")
    assert overdue["meta"].get("stale", False) is True
    changed = {"nothing_new_before", "stale", "note"}
    for answer in (overdue, answers[0]):
        answer["meta"] = {key: answer["meta"][key] for key in answer["meta"].keys() - changed}
    assert overdue == answers[0]


@pytest.mark.clause("8.38", "8.40")
async def test_rows_beyond_retention_are_never_returned(served_alone, transport):
    later = NOON + 365 * 86_400_000
    await served_alone.market.commit(
        make_batch(later, [make_change(later, "ETH", "llnr", "1d", -1, 1)])
    )
    answer = await served_alone.fetch_answer(transport, SIGNALS, since="2020-01-01T00:00:00Z")
    # All rows of NOON's batch except the first are younger than 365 days.
    assert len(answer["signals"]) == 6
    assert "since is too early: rows are kept from 2026-" in answer["meta"]["note"]


@pytest.mark.clause("answers", "fresh")
@pytest.mark.prove
async def test_pages_with_any_since_equal_those_that_are_rendered_for_it(tmp_path):
    """One snapshot caches pages, the others none."""
    async with open_and_close(open_sqlite_market(tmp_path / "market.db")) as store:
        await seed_market(store, make_coverage())
        times = [NOON - HOUR_MS, *(NOON + n for n in range(6)), NOON - 365 * DAY_MS, NOON - DAY_MS]
        instants = [None, *(format_instant(at + by) for at in times for by in (-1, 0, 1))]
        snapshots = SnapshotCache(store)
        cached = await snapshots.snapshot()
        ledger, texts = await snapshots.ledger(cached), set()
        for now in (NOON + HOUR_MS // 2, NOON + 2 * HOUR_MS, NOON + HOUR_MS // 2):
            for filters, since in product(PAGES, instants):
                query = SignalsQuery(since=since, **filters)
                fresh = replace(cached, responses=ResponseCache(), feeds={})
                expected = render_page(query, ledger, fresh, now).text
                assert render_page(query, ledger, cached, now).text == expected, query
                texts.add(expected)
        assert len(texts) > 60


PAGES = (
    {},
    {"limit": 3},
    {"limit": 3, "order": "oldest"},
    {"limit": 2, "offset": 2},
    {"tier": "all", "ticker": "btc"},
    {"tier": "alerts"},
    {"indicator": "enzo", "timeframe": "1h", "direction": "bullish"},
    {"indicator": "trend_oracle", "timeframe": "1h", "direction": "bullish"},
    {"ticker": "DARK"},
)


@pytest.mark.clause("2.13.15")
@pytest.mark.parametrize("tier", ["universe", "alerts", "all"])
async def test_a_poll_that_finds_nothing_takes_at_most_450_characters(
    served_alone, transport, tier
):
    later, published = NOON + HOUR_MS, make_coverage()
    followed = [one.model_copy(update={"alerts": ("4h",)}) for one in published.assets]
    followed_too = published.model_copy(update={"assets": tuple(followed)})
    await served_alone.market.publish_coverage(followed_too)
    alert = AlertRow(later, "BTC", "enzo", "4h", later // 1000, 0, "LONG", 100.0)
    batch = make_batch(later, [make_change(later + 1, "BTC", "enzo", "1h", 1, -1)])
    await served_alone.market.commit(replace(batch, alerts=[alert], watermarks=[]))
    served_alone.clock.now = later + 10 * 60_000
    since = {"tier": tier, "since": format_instant(later + 1), "limit": 200}
    answer = await served_alone.fetch_answer(transport, SIGNALS, **since)
    assert len(to_json(answer)) <= 450
    assert set(answer["meta"]) == {
        *("source", "simulated", "as_of", "next_update"),
        *("nothing_new_before", "note"),
    }
    assert answer["meta"].get("note", "") == "No such row has come since then."
    assert answer["meta"].get("nothing_new_before") == format_instant(later + HOUR_MS)


@pytest.mark.clause("2.13.15")
async def test_a_poll_that_finds_nothing_names_the_assets_that_are_late(served, transport):
    answer = await served.fetch_answer(transport, SIGNALS, since="2026-09-30T12:03:00.005Z")
    assert answer["meta"].get("late_assets", {}) == {"ETH": ["1h"]}


@pytest.mark.clause("4.7.35")
@pytest.mark.parametrize(
    ("arguments", "tickers"),
    [
        ({"ticker": "btc, NVDA"}, {"BTC", "NVDA"}),
        ({"ticker": "BTC,ETH,NVDA,XAU"}, {"BTC", "ETH", "NVDA"}),
        ({"asset_class": "crypto"}, {"BTC", "ETH"}),
        ({"asset_class": "stock"}, {"NVDA"}),
        ({"asset_class": "crypto", "ticker": "NVDA,BTC"}, {"BTC"}),
        ({"asset_class": "metal"}, set()),
        ({"asset_class": "stock", "ticker": "BTC"}, set()),
    ],
)
async def test_the_feed_of_several_tickers_or_of_a_class_is_the_whole_feed_of_these(
    served, transport, arguments, tickers
):
    whole = (await served.fetch_answer(transport, SIGNALS))["signals"]
    answer = await served.fetch_answer(transport, SIGNALS, **arguments)
    assert answer["signals"] == [row for row in whole if row["ticker"] in tickers]
    assert {row["ticker"] for row in answer["signals"]} == tickers
    older = await served.fetch_answer(transport, SIGNALS, **arguments, offset=1, limit=1)
    assert older["signals"] == answer["signals"][1:2]


FOLLOWED: dict[str, tuple[Timeframe, ...]] = {"BTC": ("4h", "1d"), "NVDA": ("4h", "1d")}
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


async def publish_alerts(served_alone: RunningService) -> None:
    """Publish a run of alerts, with two changes between them."""
    await served_alone.market.publish_coverage(followed_coverage())
    turned = [
        make_change(LATER, "ETH", "enzo", "4h", 0, 1),
        make_change(LATER + 3, "ETH", "llnr", "4h", -1, 1),
    ]
    await served_alone.market.commit(Batch(LATER, changes=turned, alerts=ALERTS))


@pytest.fixture
async def alerted(served_alone: RunningService) -> RunningService:
    await publish_alerts(served_alone)
    return served_alone


async def feed(served_alone: RunningService, transport: str, **arguments: Any) -> list[Row]:
    return (await served_alone.fetch_answer(transport, SIGNALS, **arguments))["signals"]


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
async def test_an_alert_has_exactly_the_fields_of_its_table(alerted, transport):
    (row,) = await feed(alerted, transport, tier="alerts", direction="exit")
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


@pytest.mark.clause(
    "1.16",
    "1.22",
    "2.1.2",
    "2.1.9",
    "2.1.11",
    "2.1.13",
    "2.1.14",
    "2.1.15",
    "3.1.2",
    "3.3.2",
    "4.7.1",
    "4.7.2",
    "4.7.3",
    "4.7.17",
    "4.7.25",
    "9.18",
)
async def test_each_tier_shows_its_own_rows_and_all_merges_them_in_one_order(alerted, transport):
    universe = await feed(alerted, transport)
    alerts = await feed(alerted, transport, tier="alerts")
    both = await feed(alerted, transport, tier="all")
    assert [row["id"] for row in alerts] == [row.id for row in reversed(ALERTS)]
    assert {row["action"]: row["direction"] for row in alerts} == {
        "LONG": "bullish",
        "BUY": "bullish",
        "SHORT": "bearish",
        "SELL": "bearish",
        "CLOSE": "exit",
    }
    assert {(row["transition"], row["change_type"]) for row in alerts} == {(None, None)}
    assert {(row["tier"], row["action"]) for row in universe} == {("universe", None)}
    assert both == sorted([*universe, *alerts], key=lambda row: row["created_at"], reverse=True)
    assert [row["tier"] for row in both][:7] == [
        *["alerts"] * 3,
        "universe",
        *["alerts"] * 2,
        "universe",
    ]


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
@pytest.mark.prove
async def test_filters_narrow_both_tiers_alike(alerted, transport):
    for tier in ("universe", "alerts", "all"):
        whole = await feed(alerted, transport, tier=tier)
        for filters in FILTERS:
            found = await feed(alerted, transport, tier=tier, **filters)
            assert found == [row for row in whole if matches(row, filters)], (tier, filters)


@pytest.mark.clause(
    "2.2.4", "4.7.3", "4.7.11", "4.7.14", "4.7.15", "4.7.18", "4.7.22", "8.19", "8.20", "8.21"
)
@pytest.mark.parametrize("tier", ["universe", "all"])
async def test_pages_are_the_whole_feed_and_polling_with_any_row_gives_the_newer_ones(
    alerted, transport, tier
):
    whole = await feed(alerted, transport, tier=tier)
    pages = [
        await alerted.fetch_answer(transport, SIGNALS, tier=tier, limit=4, offset=offset)
        for offset in range(0, len(whole) + 4, 4)
    ]
    assert [row for page in pages for row in page["signals"]] == whole
    more = [page["pagination"]["has_more"] for page in pages]
    assert more == [True] * (len(whole) // 4) + [False] * (len(pages) - len(whole) // 4)
    for n, row in enumerate(whole):
        assert await feed(alerted, transport, tier=tier, since=row["created_at"]) == whole[:n]


@pytest.mark.clause("8.39", "8.40")
async def test_alerts_are_shown_for_90_days_and_changes_for_longer(alerted, transport):
    end = LATER + 2 + 90 * DAY_MS
    await alerted.market.commit(Batch(end, changes=[make_change(end, "ETH", "enzo", "4h", 1, 0)]))
    alerted.clock.now = end
    since = {"since": "2020-01-01T00:00:00Z"}
    shown = [row.id for row in reversed(ALERTS[2:])]
    assert [row["id"] for row in await feed(alerted, transport, tier="alerts", **since)] == shown
    both = await feed(alerted, transport, tier="all", **since)
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
async def test_an_empty_page_of_alerts_says_why_it_is_empty(alerted, transport, arguments, reason):
    answer = await alerted.fetch_answer(transport, SIGNALS, **arguments)
    assert (answer["signals"], answer["pagination"]["next_cursor"]) == ([], None)
    assert reason in answer["meta"].get("note", "")


@pytest.mark.clause("2.1.16", "2.13.9", "3.2.9", "3.3.8", "3.3.9", "9.17")
async def test_meta_has_the_timing_and_the_catalog_all_else(served_alone, transport):
    meta = (await served_alone.fetch_answer(transport, SIGNALS, tier="all"))["meta"]
    assert "3 to 5 minutes" in meta["timing"]
    assert "timing" not in (await served_alone.fetch_answer(transport, SIGNALS, offset=999))["meta"]
    catalog = await served_alone.fetch_answer(transport, CATALOG)
    tiers = catalog["tiers"]
    kept = {tier: tiers[tier]["retention_days"] for tier in ("universe", "alerts")}
    assert kept == {"universe": 365, "alerts": 90}
    assert "milliseconds apart" in catalog["cadence"]["publication"]
    for words in (
        *("80 hours on 4h, 20 days on 1d", "held", "published late"),
        "without saying whether it was long or short",
    ):
        assert words in tiers["alerts"]["note"]


@pytest.mark.parametrize(
    ("tier", "expected"),
    [
        ("universe", "2026-10-01T00:03:00.000Z"),
        ("alerts", "2026-09-30T14:03:00.000Z"),
        ("all", "2026-09-30T14:03:00.000Z"),
    ],
)
async def test_a_held_alert_may_come_at_any_hour_on_every_timeframe(
    alerted, transport, tier, expected
):
    alerted.clock.now = LATER + 200_000
    answer = await alerted.fetch_answer(transport, SIGNALS, tier=tier, timeframe="1d")
    assert answer["meta"].get("nothing_new_before") == expected
