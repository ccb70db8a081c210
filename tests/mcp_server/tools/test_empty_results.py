"""An empty result gives its true reason, and invites another call only if something can come."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from schemas.coverage import Coverage
from schemas.vocabulary import DAY_MS, format_instant
from store.market_rows import MissingBarsRow, WatermarkRow
from tests.support.bad_inputs import CONFLUENCE, FLIPS, SIGNALS, STATE
from tests.support.example_market import ASSETS, HOUR_MS, NOON, make_batch, make_coverage
from tests.support.row_builders import make_bar, make_blocks
from tests.support.running_service import RunningService, run_service

pytestmark = pytest.mark.clause("answers", "fresh")

NO_DATA = "This deployment has no data for DARK."
REMOVED = "MATIC was removed on 2026-09-27 and continues as POL; its readings no longer change."
ONLY_DAILY = "This deployment has no 4h readings of XAU, only 1d."
NO_CALL = "Nothing more will come, so do not call again for it."
CALL = "Call again at meta.nothing_new_before or, without it, in 15 minutes."
NEXT_RUN = "2026-09-30T13:03:00.000Z"
NEXT_FOUR_HOURLY_RUN = "2026-09-30T16:03:00.000Z"
LATER = "2027-01-01T00:00:00Z"

# Tool, arguments, the end of the note, `nothing_new_before`.
Case = tuple[str, dict[str, object], str, str | None]
SIMULATED: list[Case] = [
    (STATE, {"ticker": "DARK"}, f"now: {NO_DATA} {NO_CALL}", None),
    (
        STATE,
        {"asset_class": "metal", "timeframe": "1h"},
        f"has no 1h readings of any metal asset, only 1d. {NO_CALL} Set timeframe to 1d.",
        None,
    ),
    (STATE, {"ticker": "XAU", "timeframe": "4h"}, f"{ONLY_DAILY} {NO_CALL} Set", None),
    (
        STATE,
        {"ticker": "BTC,XAU", "asset_class": "stock"},
        f"none of the requested tickers is a stock asset; omit asset_class. {NO_CALL}",
        None,
    ),
    (
        STATE,
        {"ticker": "ETH", "direction": "bearish", "timeframe": "4h"},
        f"none of these readings is bearish; omit direction to see them. {CALL}",
        NEXT_FOUR_HOURLY_RUN,
    ),
    (
        STATE,
        {"ticker": "MATIC", "direction": "bearish"},
        f"none of these readings is bearish; omit direction to see them. {NO_CALL}",
        None,
    ),
    (STATE, {"ticker": "NEW"}, f"needs more bars than there are so far. {CALL}", NEXT_RUN),
    (SIGNALS, {"ticker": "DARK"}, f"{NO_DATA} {NO_CALL}", None),
    (SIGNALS, {"ticker": "DARK", "since": LATER, "tier": "all"}, f"{NO_DATA} {NO_CALL}", None),
    (SIGNALS, {"ticker": "DARK", "tier": "alerts", "offset": 5}, f"{NO_DATA} {NO_CALL}", None),
    (SIGNALS, {"ticker": "MATIC"}, f"{REMOVED} {NO_CALL} Ask for POL instead.", None),
    (SIGNALS, {"ticker": "MATIC", "since": LATER}, f"{REMOVED} {NO_CALL} Ask", None),
    (SIGNALS, {"ticker": "XAU", "timeframe": "4h"}, f"{ONLY_DAILY} {NO_CALL} Set", None),
    (
        SIGNALS,
        {"ticker": "XAU"},
        f"No row matched; rows are kept from 2025-09-30T12:03:00.000Z. {CALL}",
        NEXT_RUN,
    ),
    (
        SIGNALS,
        {"ticker": "XAU", "since": "2020-01-01T00:00:00Z"},
        f"No row matched; rows are kept from 2025-09-30T12:03:00.000Z. {CALL}",
        NEXT_RUN,
    ),
    (
        SIGNALS,
        {"since": "2026-09-30T12:03:00.005Z"},
        "No such row has come since then.",
        NEXT_RUN,
    ),
    (SIGNALS, {"ticker": "NEW"}, f"needs more bars than there are so far. {CALL}", NEXT_RUN),
    (
        SIGNALS,
        {"since": LATER},
        f"after the last compute (as_of), so no row can match yet. {CALL}",
        NEXT_RUN,
    ),
    (SIGNALS, {"direction": "exit"}, f"no universe row can match. {NO_CALL}", None),
    (
        SIGNALS,
        {"ticker": "BTC,ETH", "asset_class": "stock"},
        f"None of the requested tickers is a stock asset; omit asset_class. {NO_CALL}",
        None,
    ),
    (SIGNALS, {"tier": "alerts"}, f"no data for any asset with alert engines. {NO_CALL}", None),
    (
        CONFLUENCE,
        {"asset_class": "crypto", "direction": "bearish", "min_agree": 1},
        "No vote on any crypto asset is bearish on 4h now.",
        NEXT_FOUR_HOURLY_RUN,
    ),
    (SIGNALS, {"indicator": "perpkit"}, f"its actions from tier=alerts. {NO_CALL}", None),
    (SIGNALS, {"offset": 999}, "No row matched at offset 999; lower offset.", NEXT_RUN),
    (CONFLUENCE, {"asset_class": "metal"}, "No metal asset has a reading on 4h.", None),
]


def cover(source: str, recorded_until: int | None, **last_closes: int) -> Coverage:
    """Return the usual coverage and NEW, which has no reading yet; some recordings have ended."""
    new = ASSETS[0].model_copy(update={"ticker": "NEW", "name": "New"})
    assets = [
        asset.model_copy(
            update={"last_close": last_closes[asset.ticker], "outdated_from": NOON - HOUR_MS}
            if asset.ticker in last_closes
            else {}
        )
        for asset in (*ASSETS, new)
    ]
    return make_coverage(source, recorded_until).model_copy(update={"assets": tuple(assets)})


@pytest.fixture
async def with_new(served_alone: RunningService) -> RunningService:
    await served_alone.market.publish_coverage(cover("simulated", None))
    return served_alone


@pytest.mark.clause("2.2.5", "4.7.26", "4.7.33", "4.7.35", "8.20")
@pytest.mark.parametrize(
    ("tool", "arguments", "reason", "nothing_new_before"),
    SIMULATED,
    ids=lambda value: value if isinstance(value, str) and "signals_" in value else None,
)
async def test_an_empty_result_gives_its_true_reason(
    with_new, transport, tool, arguments, reason, nothing_new_before
):
    answer = await with_new.fetch_answer(transport, tool, **arguments)
    assert [] in (answer.get(rows) for rows in ("assets", "signals", "results"))
    assert reason in answer["meta"].get("note", "")
    assert answer["meta"].get("nothing_new_before") == nothing_new_before
    assert (NO_CALL in answer["meta"].get("note", "")) == (nothing_new_before is None)


async def test_the_reason_is_that_of_the_calls_own_since(served_alone, transport):
    until = "2026-09-30T12:00:00.000Z"
    for since, reason in (
        ("2026-09-30T12:00:06.000Z", "since is not before until"),
        ("2026-09-30T11:59:54.000Z", "No row matched up to until"),
    ):
        page = await served_alone.fetch_answer(transport, SIGNALS, since=since, until=until)
        assert reason in page["meta"]["note"]


async def test_a_page_of_a_removed_asset_with_rows_says_that_no_more_come(served_alone, transport):
    btc = ASSETS[1].model_copy(update={"removed_on": date(2026, 9, 30)})
    removed = make_coverage().model_copy(update={"assets": (btc, *ASSETS[2:])})
    await served_alone.market.publish_coverage(removed)
    page = await served_alone.fetch_answer(transport, SIGNALS, ticker="BTC")
    assert page["signals"]
    assert f"BTC was removed on 2026-09-30; its readings no longer change. {NO_CALL}" in page[
        "meta"
    ].get("note", "")
    assert page["meta"].get("nothing_new_before") is None
    for ticker, expected in (("BTC", (None, True)), ("BTC,NVDA", (NEXT_RUN, False))):
        meta = (await served_alone.fetch_answer(transport, STATE, ticker=ticker))["meta"]
        assert (meta.get("nothing_new_before"), NO_CALL in meta.get("note", "")) == expected


async def test_readings_that_began_after_as_of_say_so(with_new, transport):
    await with_new.market.commit(make_batch(NOON + HOUR_MS, []))
    then = format_instant(NOON - HOUR_MS)
    answer = await with_new.fetch_answer(transport, STATE, ticker="NEW", as_of=then)
    reason = "there was no such reading yet at as_of; choose a later time or omit as_of."
    assert (
        answer["meta"].get("note", "").endswith(f"No reading matches these filters then: {reason}")
    )
    assert answer["meta"].get("nothing_new_before") is None


@pytest.fixture
async def recorded(tmp_path: Path) -> AsyncIterator[RunningService]:
    """A finished recording in which XAU ended in 2013."""
    async with run_service(tmp_path, cover("recorded", NOON, XAU=NOON - 4900 * DAY_MS)) as running:
        yield running


@pytest.mark.parametrize(
    ("tool", "arguments", "reason"),
    [
        (SIGNALS, {"ticker": "XAU"}, "The last bar of XAU closed at 2013-05-01T12:03:00.000Z."),
        (SIGNALS, {"ticker": "NEW"}, "Their bars are too few for a first reading."),
        (SIGNALS, {"timeframe": "4h", "ticker": "ETH"}, "The recording ended at 2026-09-30T12:03"),
        (SIGNALS, {"since": LATER}, "The recording ended at 2026-09-30T12:03:00.000Z."),
        (STATE, {"ticker": "NEW"}, "Their bars are too few for a first reading."),
        (
            STATE,
            {"ticker": "BTC", "direction": "neutral", "indicator": "enzo"},
            "The recording ended",
        ),
        (FLIPS, {"timeframe": "4h", "direction": "bearish"}, "The recording ended at"),
    ],
)
async def test_after_a_recording_nothing_invites_another_call(
    recorded, transport, tool, arguments, reason
):
    meta = (await recorded.fetch_answer(transport, tool, **arguments))["meta"]
    assert reason in meta.get("note", "")
    assert NO_CALL in meta.get("note", "")
    assert "Call again" not in meta.get("note", "")
    assert meta.get("nothing_new_before") is None


@pytest.mark.parametrize("tool", [SIGNALS, FLIPS, CONFLUENCE])
async def test_a_timeframe_that_no_asset_has_is_named_with_those_that_have_readings(
    tmp_path, transport, tool
):
    published = make_coverage("recorded", NOON + DAY_MS)
    daily = [a.model_copy(update={"timeframes": ("1d",)}) for a in published.assets]
    async with run_service(tmp_path) as served:
        await served.market.publish_coverage(published.model_copy(update={"assets": tuple(daily)}))
        await served.market.commit(make_batch(NOON, []))
        meta = (await served.fetch_answer(transport, tool, timeframe="1h"))["meta"]
    expected = f"This deployment has no 1h readings of any asset, only 1d. {NO_CALL}"
    assert f"{expected} Set timeframe to 1d." in meta.get("note", "")
    assert meta.get("nothing_new_before") is None


FOUR = {asset.ticker: NOON - n * DAY_MS for n, asset in enumerate(ASSETS[:4], 2)}


@pytest.mark.parametrize(
    ("ended", "sentence"),
    [
        (
            {"XAU": NOON - 4900 * DAY_MS},
            "The recorded bars of XAU ended at 2013-05-01T12:03:00.000Z, so its readings are "
            "outdated.",
        ),
        (
            FOUR,
            "The recorded bars of 4 assets ended between 2026-09-25T12:03:00.000Z and "
            "2026-09-28T12:03:00.000Z, so their readings are outdated; meta.ended_assets lists "
            "them.",
        ),
    ],
    ids=["one", "many"],
)
async def test_assets_whose_recording_has_ended_are_named_or_counted(
    tmp_path, transport, ended, sentence
):
    async with run_service(tmp_path, cover("recorded", NOON, **ended)) as served:
        meta = (await served.fetch_answer(transport, STATE))["meta"]
    assert meta.get("ended_assets", []) == sorted(ended)
    assert sentence in meta.get("note", "")
    assert (meta.get("stale", False), "XAU" in meta.get("late_assets", {})) == (False, False)


@pytest.mark.clause("2.4.17")
async def test_bars_that_never_came_are_counted_for_the_assets_of_an_answer(
    served_alone, transport
):
    hour = (NOON - 180_000) // 1000
    row = MissingBarsRow("ETH", 0, 3, hour - 7200, hour)
    blocks = make_blocks(make_bar("ETH", hour - 3600))
    batch = replace(make_batch(NOON, []), bars=blocks, missing_bars=[row])
    await served_alone.market.commit(batch)
    for asset_class, named in (("crypto", {"ETH": 3}), ("stock", {})):
        for tool in (STATE, CONFLUENCE):
            answer = await served_alone.fetch_answer(transport, tool, asset_class=asset_class)
            assert answer["meta"].get("missing_bars", {}) == named


@pytest.mark.clause("2.4.16")
async def test_answers_for_an_asset_that_is_being_built_say_so(tmp_path, transport):
    new = ASSETS[0].model_copy(update={"ticker": "NEW", "name": "New"})
    published = make_coverage("live")
    published = published.model_copy(update={"assets": (*published.assets, new)})
    row = WatermarkRow("NEW", -1, history="building")
    async with run_service(tmp_path, published) as served:
        batch = replace(make_batch(NOON, []), watermarks=[row], publish_from={"NEW": NOON})
        await served.market.commit(batch)
        for tool in (STATE, SIGNALS, FLIPS, CONFLUENCE):
            meta = (await served.fetch_answer(transport, tool))["meta"]
            assert not {"late_assets", "nothing_new_before"} & meta.keys()
        meta = (await served.fetch_answer(transport, STATE, ticker="NEW"))["meta"]
        assert meta["building_assets"] == ["NEW"]
        assert "The history of NEW is still being built" in meta["note"]
        assert "Their history is still being built. Call again in a few minutes." in meta.get(
            "note"
        )
        await served.market.commit(make_batch(NOON, []))
        assert not (await served.fetch_answer(transport, STATE))["meta"].get("building_assets")


@pytest.mark.clause("2.4.15")
async def test_an_asset_has_not_ended_before_its_next_bar_was_due(tmp_path, transport):
    async with run_service(tmp_path, cover("recorded", NOON, XAU=NOON - 5 * DAY_MS)) as served:
        for run, ended in ((NOON - HOUR_MS - 1, []), (NOON - HOUR_MS, ["XAU"])):
            past = await served.fetch_answer(transport, STATE, as_of=format_instant(run))
            assert past["meta"].get("ended_assets", []) == ended


@pytest.mark.clause("2.4.14")
async def test_state_names_the_assets_whose_last_bar_is_not_of_the_last_hour(recorded, transport):
    hour = (NOON - 180_000) // 1000
    bars = [make_bar(ticker, hour - 3600) for ticker in ("BTC", "ETH")]
    bars.append(make_bar("XAU", hour - 4900 * 86_400, "1d"))
    await recorded.market.commit(replace(make_batch(NOON, []), bars=make_blocks(*bars)))
    state = await recorded.fetch_answer(transport, STATE)
    assert state["meta"].get("last_bars", []) == [
        {"closed_at": "2013-05-03T00:00:00.000Z", "tickers": ["XAU"]},
    ]
    gold = await recorded.fetch_answer(transport, STATE, ticker="XAU", view="lines")
    assert gold["meta"].get("last_bars", []) == state["meta"]["last_bars"]
    page = await recorded.get_page("/assets/XAU?timeframe=1d", is_member=True)
    for text in ("2013-05-03 00:00 UTC", "The recorded bars of XAU have ended", "Last readings"):
        assert text in page.text
    board = await recorded.get_page("/?timeframe=1d", is_member=True)
    assert "XAU</a> <em>ended 2013-05-03</em> <span>Gold</span>" in board.text
    assert board.text.count("<em>ended") == 1
