"""Past readings (`as_of`) over both transports equal those that were served at the time."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from schemas.vocabulary import DAY_MS, INDICATOR_IDS, STORED_KEYS, TIMEFRAMES, format_instant
from serving.freshness import GRACE_MS
from store.market_rows import ChangeRow, WatermarkRow
from store.sql.database import READ_LIMITS_S, Lane
from tests.support.bad_inputs import CONFLUENCE, STATE
from tests.support.example_market import (
    ASSETS,
    HOUR_MS,
    LATER,
    NOON,
    make_batch,
    make_change,
    make_coverage,
)
from tests.support.running_service import ManualClock, RunningService

pytestmark = pytest.mark.clause("answers")

EDGE = NOON - 365 * DAY_MS  # The retention, from the last run of the seeded store.
REMOVED = NOON - 3 * DAY_MS - 12 * HOUR_MS  # The first run on MATIC's last day, at 00:03.
MINUTE_MS = 60_000
Answer = dict[str, Any]
Cell = tuple[str, str, str]


async def state(served: RunningService, transport: Any, at: int, **filters: object) -> Answer:
    return await served.fetch_answer(transport, STATE, as_of=format_instant(at), **filters)


def readings(answer: Answer) -> dict[Cell, str]:
    return {
        (asset["ticker"], key, timeframe): reading
        for asset in answer["assets"]
        for key, cells in asset["signals"].items()
        for timeframe, reading in cells.items()
    }


def shown(answer: Answer) -> tuple[str, dict[Cell, str], dict[str, int]]:
    return answer["as_of"], readings(answer), answer["counts"]


async def commit(
    served: RunningService, run: int, *changes: ChangeRow, written_at: int | None, late: str = ""
) -> None:
    behind = [WatermarkRow(late, run // HOUR_MS * 3600 - 1, late=("1h",))] if late else []
    pass_ = replace(make_batch(run, list(changes)), written_at=written_at, watermarks=behind)
    await served.market.commit(pass_)
    served.clock.now = max(served.clock.now, (written_at or run) + DAY_MS)


@pytest.mark.clause("1.11", "2.4.1")
async def test_a_run_is_seen_whole_from_its_nominal_minute_although_its_rows_spill_over(
    served, transport
):
    # The last of the run's six rows was created five milliseconds after 12:03:00.000.
    turned = {("BTC", "trend_oracle", "1h"): "bearish", ("ETH", "enzo", "1h"): "bearish"}
    before = await state(served, transport, NOON - 1)
    after = await state(served, transport, NOON)
    assert before["as_of"] == "2026-09-30T11:03:00.000Z"
    assert after["as_of"] == "2026-09-30T12:03:00.000Z"
    assert readings(before) == readings(after) | dict.fromkeys(turned, "bullish")
    assert turned.items() <= readings(after).items()
    for later in (1, 4, 5, 6, 1000):
        assert shown(await state(served, transport, NOON + later)) == shown(after)


AT_12, AT_13, AT_14, AT_15, AT_17 = (
    f"2026-09-30T{hour}:03:00.000Z" for hour in (12, 13, 14, 15, 17)
)
WRITTEN_AT = NOON + HOUR_MS + 47 * MINUTE_MS
BACK = NOON + 5 * HOUR_MS + 20 * MINUTE_MS
# By case: the run and the time of writing of a batch, the times and readings of its changes of XAU,
# and the run and reading that are seen at a time.
RUNS: dict[str, tuple[int, int | None, dict[int, int], dict[int, tuple[str, str]]]] = {
    "hourly runs within one nominal batch are distinguished": (
        *(NOON + 3 * HOUR_MS, None),
        {NOON + HOUR_MS: 1, NOON + 2 * HOUR_MS: 0},
        {
            NOON + HOUR_MS - 1: (AT_12, "bearish"),
            NOON + HOUR_MS: (AT_13, "bullish"),
            NOON + 2 * HOUR_MS - 1: (AT_13, "bullish"),
            NOON + 2 * HOUR_MS: (AT_14, "neutral"),
            NOON + 3 * HOUR_MS - 1: (AT_14, "neutral"),
            NOON + 3 * HOUR_MS: (AT_15, "neutral"),
            NOON + 9 * HOUR_MS: (AT_15, "neutral"),
        },
    ),
    "a batch written late counts from the time of writing": (
        *(NOON + HOUR_MS, WRITTEN_AT),
        {WRITTEN_AT: 1},
        {
            NOON + HOUR_MS: (AT_12, "bearish"),
            NOON + HOUR_MS + MINUTE_MS: (AT_12, "bearish"),
            WRITTEN_AT - 1: (AT_12, "bearish"),
            WRITTEN_AT: (AT_13, "bullish"),
            WRITTEN_AT + 1: (AT_13, "bullish"),
            WRITTEN_AT + HOUR_MS: (AT_13, "bullish"),
        },
    ),
    "hours caught up after a stop appear at the time of writing": (
        *(NOON + 5 * HOUR_MS, BACK),
        {BACK: 1},
        {
            NOON + 10 * MINUTE_MS: (AT_12, "bearish"),
            BACK - 1: (AT_12, "bearish"),
            BACK: (AT_17, "bullish"),
        },
    ),
}


@pytest.mark.clause("4.6.6")
@pytest.mark.parametrize(("run", "written_at", "turned", "expected"), RUNS.values(), ids=RUNS)
async def test_a_run_is_seen_from_its_nominal_minute_or_from_its_writing(
    served, transport, run, written_at, turned, expected
):
    rows = [
        make_change(at + n, "XAU", key, "1d", reading)
        for at, reading in turned.items()
        for n, key in enumerate(("enzo", "llnr"))
    ]
    await commit(served, run, *rows, written_at=written_at)
    for at, (as_of, reading) in expected.items():
        answer = await state(served, transport, at, ticker="XAU")
        cells = readings(answer)
        assert (answer["as_of"], cells["XAU", "enzo", "1d"]) == (as_of, reading), format_instant(at)
        assert cells["XAU", "llnr", "1d"] == reading, format_instant(at)


@pytest.mark.parametrize("is_live", [True, False], ids=["live", "nominal"])
async def test_a_midnight_run_of_a_thousand_rows_is_never_half_visible(served, transport, is_live):
    midnight = NOON + 12 * HOUR_MS
    count = 1200
    rows = [
        make_change(midnight + n, "XAU", "enzo", "1d", 1 - 2 * (n % 2), 2 * (n % 2) - 1)._replace(
            close_time=midnight // 1000 - 2 * count + n
        )
        for n in range(count - 1)
    ]
    rows.append(make_change(midnight + count - 1, "BTC", "enzo", "1d", -1, 1))
    await commit(served, midnight, *rows, written_at=midnight if is_live else None)
    for after, reading in {-1: "bullish", 0: "bearish", 600: "bearish", count: "bearish"}.items():
        cells = readings(await state(served, transport, midnight + after, ticker="BTC"))
        assert cells["BTC", "enzo", "1d"] == reading, after


async def test_late_assets_are_listed_until_the_batch_that_has_their_bars(served, transport):
    await commit(served, LATER, written_at=LATER, late="BTC")
    turned = make_change(LATER + 30_000, "BTC", "enzo", "1h", -1, 1)
    await commit(served, LATER, turned, written_at=LATER + 30_000)
    expected = {
        NOON - 1: ([], "bullish"),
        NOON: (["ETH"], "bullish"),
        LATER - 1: (["ETH"], "bullish"),
        LATER: (["BTC"], "bullish"),
        LATER + 29_999: (["BTC"], "bullish"),
        LATER + 30_000: ([], "bearish"),
    }
    for at, (late, reading) in expected.items():
        answer = await state(served, transport, at, ticker="BTC")
        named = {key: ["1h"] for key in late if key == "BTC"}
        assert answer["meta"].get("late_assets", {}) == named, format_instant(at)
        assert readings(answer)["BTC", "enzo", "1h"] == reading
        assert answer["as_of"] == format_instant(
            max(t for t in (NOON - HOUR_MS, NOON, LATER) if t <= at)
        )


async def test_an_asset_counts_as_removed_from_its_day_on_and_keeps_its_readings(served, transport):
    for at, removed in {REMOVED - 1: [], REMOVED: ["MATIC"]}.items():
        answer = await state(served, transport, at, ticker="MATIC")
        assert answer["meta"].get("removed_assets", []) == removed
        assert answer["counts"] == {"assets": 1, "readings": 24}
        assert ("MATIC was removed" in answer["meta"].get("note", "")) == bool(removed)
        agreeing = await served.fetch_answer(transport, CONFLUENCE, as_of=format_instant(at))
        tickers = {result["ticker"] for result in agreeing["results"]}
        assert tickers == {"BTC", "ETH", "MATIC"} - set(removed)


async def test_dexter_has_its_reading_of_that_time(served, transport):
    await commit(served, LATER, make_change(LATER, "BTC", "dexter", "4h", -1, 1), written_at=LATER)
    for at, reading in {LATER - 1: "bullish", LATER: "bearish"}.items():
        answer = await state(served, transport, at, ticker="BTC")
        assert readings(answer)["BTC", "dexter", "4h"] == reading
        assert answer["meta"].get("legacy_keys", {}) == {"dexter": "enzo"}
        agreeing = await served.fetch_answer(transport, CONFLUENCE, as_of=format_instant(at))
        votes = {result["ticker"]: result["votes"] for result in agreeing["results"]}
        assert votes["BTC"]["dexter"] == reading


async def test_a_cell_that_had_no_reading_then_is_absent(served, transport):
    first = [
        make_change(LATER, "DARK", "enzo", "1h", 1),
        make_change(LATER + 1, "XAU", "dexter", "1d", 0),
    ]
    await commit(served, LATER, *first, written_at=LATER)
    before, after = await state(served, transport, LATER - 1), await state(served, transport, LATER)
    assert readings(after).keys() - readings(before).keys() == {
        ("DARK", "enzo", "1h"),
        ("XAU", "dexter", "1d"),
    }
    assert before["counts"] == {"assets": 5, "readings": 97}
    assert after["counts"] == {"assets": 6, "readings": 99}
    alone = await state(served, transport, LATER - 1, ticker="DARK")
    assert alone["assets"] == []
    assert "This deployment has no data for DARK." in alone["meta"].get("note", "")


async def test_all_seven_indicators_are_kept_although_the_feed_shows_six(served, transport):
    # perpkit of BTC changed at 11:03, unpublished.
    for at, reading in {NOON - HOUR_MS - 1: "bullish", NOON - HOUR_MS: "bearish"}.items():
        (asset,) = (await state(served, transport, at, ticker="ETH"))["assets"]
        assert list(asset["signals"]) == list(INDICATOR_IDS)
        assert readings(
            await state(served, transport, at, ticker="BTC", indicator="perpkit", timeframe="1h")
        ) == {("BTC", "perpkit", "1h"): reading}


async def test_now_is_an_instant_like_any_other(served, transport):
    await commit(served, NOON + HOUR_MS, written_at=NOON + HOUR_MS + 5, late="ETH")
    current = await served.fetch_answer(transport, STATE)
    past = await state(served, transport, served.clock.now)
    assert shown(past) == shown(current)
    assert (
        past["meta"].get("late_assets", {})
        == current["meta"].get("late_assets", {})
        == {"ETH": ["1h"]}
    )


async def fetch_past(served, transport, tool: str, at: str, **more: str) -> dict:
    return await served.fetch_answer(transport, tool, as_of=at, **more)


async def test_a_past_result_does_not_change_when_more_is_computed(served, transport):
    requested = [(STATE, {"view": view}) for view in ("full", "lines")] + [(CONFLUENCE, {})]
    at = format_instant(NOON + MINUTE_MS)
    before = [await fetch_past(served, transport, tool, at, **more) for tool, more in requested]
    for hour in (1, 2):
        run = NOON + hour * HOUR_MS
        rows = [make_change(run + n, a.ticker, "enzo", "1d", -1) for n, a in enumerate(ASSETS)]
        await commit(served, run, *rows, written_at=run)
    after = [await fetch_past(served, transport, tool, at, **more) for tool, more in requested]
    assert after == before


@pytest.mark.clause("monitoring")
async def test_a_past_board_that_waits_too_long_is_unavailable_and_delays_no_other_call(
    served, transport, monkeypatch
):
    async with served.market._engine.begin_read(Lane.PAST):
        monkeypatch.setitem(READ_LIMITS_S, Lane.PAST, 0.1)
        for tool in (STATE, CONFLUENCE):
            await served.check_refusal(
                transport, tool, 503, "unavailable", as_of=format_instant(NOON)
            )
            assert (await served.fetch_answer(transport, tool))["as_of"] == format_instant(NOON)
        checks = (await served.client.get("/readyz")).json()["checks"]
        assert checks["market_store"] == checks["access_store"] == "ok"
    monkeypatch.undo()
    assert (await state(served, transport, NOON))["as_of"] == format_instant(NOON)


async def test_an_instant_has_any_zone_or_is_utc(served, transport):
    expected = await state(served, transport, NOON - 1)
    for text in (
        "2026-09-30T14:02:59.999+02:00",
        "2026-09-30 12:02:59.9999Z",
        "2026-09-30T12:02:59.999",
    ):
        assert await served.fetch_answer(transport, STATE, as_of=text) == expected


SERVED_AT = ManualClock().now
MALFORMED = ["as_of", "2026-10-01T13:05:00.000Z"]


@pytest.mark.parametrize("tool", [STATE, CONFLUENCE])
@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            format_instant(EDGE - 1),
            ['as_of: "2025-09-30T12:02:59.999Z"', "accepted: 2025-09-30T12:03:00.000Z to now"],
        ),
        *(
            (
                format_instant(later),
                [f"to now ({format_instant(SERVED_AT)}); omit it for the current"],
            )
            for later in (SERVED_AT + 1, SERVED_AT + DAY_MS)
        ),
        *((text, MALFORMED) for text in ("last week", "2026-09-31", "1790769600")),
    ],
)
async def test_a_time_outside_of_the_past_or_malformed_is_refused(
    served, transport, tool, text, parts
):
    await served.check_refusal(transport, tool, 400, "invalid_parameter", *parts, as_of=text)
    for at, as_of in ((EDGE, EDGE), (SERVED_AT, NOON)):
        answer = await served.fetch_answer(transport, tool, as_of=format_instant(at))
        assert answer["as_of"] == format_instant(as_of)


async def test_rows_newer_than_a_clock_that_went_back_can_still_be_read(served, transport):
    served.clock.now = NOON - DAY_MS
    assert (await state(served, transport, NOON))["as_of"] == format_instant(NOON)
    future = format_instant(NOON + 6)
    await served.check_refusal(transport, STATE, 400, "invalid_parameter", as_of=future)


@pytest.mark.parametrize(
    ("written_at", "published_from", "earliest"),
    [
        (None, 0, NOON - HOUR_MS),
        (None, NOON - 20 * MINUTE_MS, NOON - 20 * MINUTE_MS),
        (NOON + MINUTE_MS, NOON, NOON + MINUTE_MS),
    ],
    ids=["first row", "publish_from", "first pass written"],
)
async def test_the_past_begins_with_the_feed_and_its_first_batch(
    served_empty, transport, written_at, published_from, earliest
):
    served, first = served_empty, written_at or NOON - HOUR_MS
    await served.market.publish_coverage(make_coverage())
    rows = [
        make_change(first, "BTC", "enzo", "1h", 1),
        make_change(first + 1, "ETH", "enzo", "1h", 1),
    ]
    await served.market.commit(
        replace(
            make_batch(NOON, rows),
            written_at=written_at,
            publish_from={"BTC": published_from, "ETH": published_from + DAY_MS},
        )
    )
    assert (await state(served, transport, earliest))["counts"] == {"assets": 2, "readings": 2}
    refusal = (400, "invalid_parameter", f"accepted: {format_instant(earliest)} to now")
    await served.check_refusal(transport, STATE, *refusal, as_of=format_instant(earliest - 1))


async def test_prune_changes_no_past_result_within_the_retention(served_empty, transport):
    served = served_empty
    await served.market.publish_coverage(make_coverage())
    start = EDGE - 30 * DAY_MS
    rows = [make_change(start + n, a.ticker, "enzo", "1d", -1) for n, a in enumerate(ASSETS)]
    times = [
        start + n * 7 * HOUR_MS for n in range(1, 140)
    ]  # Across the retention limit, and ten days more.
    rows += [
        make_change(at, ASSETS[n % 5].ticker, "enzo", "1d", n // 5 % 3 - 1, 0)
        for n, at in enumerate(times)
    ]
    await served.market.commit(make_batch(NOON, rows))
    moments = [EDGE, EDGE + 1, EDGE + 3 * DAY_MS, EDGE + 9 * DAY_MS, NOON]
    before = [shown(await state(served, transport, at)) for at in moments]
    assert await served.market.prune() > 90
    assert [shown(await state(served, transport, at)) for at in moments] == before


def polled(answer: Answer, timeframe: str, direction: str) -> Iterator[Answer]:
    """Yield the votes of each asset of a full state on a timeframe."""
    for asset in answer["assets"]:
        cells = {
            key: cells[timeframe] for key, cells in asset["signals"].items() if timeframe in cells
        }
        if cells and asset["ticker"] not in answer["meta"].get("removed_assets", []):
            agree = list(cells.values()).count(direction)
            agrees_as_dexter = cells.get("dexter") == direction
            yield {
                **{name: asset[name] for name in ("ticker", "name", "asset_class")},
                "agree": agree,
                "total_reporting": len(cells),
                "score": agree / len(cells),
                "votes": {key: cells[key] for key in STORED_KEYS if key in cells},
                **({"current_agree": agree - 1} if agrees_as_dexter else {}),
            }


@pytest.mark.clause("2.5.1", "2.13.12")
@pytest.mark.prove
async def test_past_confluence_follows_from_the_past_state(served, transport):
    await commit(
        served, LATER, make_change(LATER + 40, "ETH", "llnr", "4h", 0, 1), written_at=LATER + 40
    )
    for at in (REMOVED - 1, LATER + 39, LATER + 40):
        board = await state(served, transport, at)
        requested = itertools.product(TIMEFRAMES, (("bullish", 6), ("bearish", 1)))
        for timeframe, (direction, min_agree) in requested:
            answer = await served.fetch_answer(
                transport,
                CONFLUENCE,
                as_of=format_instant(at),
                timeframe=timeframe,
                direction=direction,
                min_agree=min_agree,
            )
            assert answer["results"] == sorted(
                (r for r in polled(board, timeframe, direction) if r["agree"] >= min_agree),
                key=lambda r: (
                    -Fraction(r["agree"], r["total_reporting"]),
                    -r["agree"],
                    r["ticker"],
                ),
            )
            assert (answer["as_of"], answer["query"]["as_of"]) == (
                board["as_of"],
                format_instant(at),
            )


async def test_an_empty_past_confluence_says_why(served, transport):
    requested = {"as_of": format_instant(NOON - 1), "asset_class": "crypto", "min_agree": 6}
    none = await served.fetch_answer(transport, CONFLUENCE, **requested, direction="bearish")
    assert "No vote on any crypto asset is bearish on 4h then." in none["meta"].get("note", "")
    few = await served.fetch_answer(
        transport, CONFLUENCE, **requested | {"asset_class": "metal"}, timeframe="1d"
    )
    assert "No vote on any metal asset is bullish on 1d then." in few["meta"].get("note", "")
    assert none["results"] == few["results"] == []


async def test_meta_of_a_past_snapshot_promises_no_update_and_says_so(served, transport):
    at = NOON + MINUTE_MS
    for tool in (STATE, CONFLUENCE):
        meta = (await served.fetch_answer(transport, tool, as_of=format_instant(at)))["meta"]
        assert "next_update" not in meta
        assert meta.get("nothing_new_before") is None
        assert (meta["as_of"], meta.get("stale", False)) == (format_instant(NOON), False)
        assert (meta["source"], meta.get("simulated", False)) == ("simulated", True)
        note = f"Readings as served at {format_instant(at)}; they no longer change."
        assert note in meta.get("note", "")


async def test_a_past_snapshot_that_was_stale_says_so(served, transport):
    overdue = NOON + HOUR_MS + GRACE_MS
    back = NOON + 5 * HOUR_MS
    await commit(served, back, written_at=back)
    for at, stale in {overdue: False, overdue + 1: True, back - 1: True, back: False}.items():
        meta = (await state(served, transport, at))["meta"]
        assert (meta.get("stale", False), "Stale" in meta.get("note", "")) == (stale, stale), (
            format_instant(at)
        )
