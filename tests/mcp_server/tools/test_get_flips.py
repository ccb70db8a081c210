import json
import random
from collections.abc import Iterable

import pytest
from hypothesis import given, strategies as st

from compute.universe import load_universe
from mcp_server.tools.get_flips import (
    DESCRIPTION,
    GET_FLIPS,
    ROW_LIMIT,
    group_flips,
    select_newest_changes,
)
from schemas.coverage import CoveredAsset
from schemas.vocabulary import (
    INDICATOR_IDS,
    READING_NAMES,
    Timeframe,
    classify_change,
    format_instant,
)
from serving.snapshot import Snapshot, build_snapshot
from store.market_rows import ChangeRow, StoredSnapshot
from tests.support.bad_inputs import FLIPS, SIGNALS
from tests.support.example_market import (
    ASSETS,
    HOUR_MS,
    NAMES,
    NOON,
    make_batch,
    make_change,
    make_coverage,
)
from tests.support.response_schemas import parse_largest_size
from tests.support.running_service import RunningService, publish_assets, run_service
from tools.output_schemas import build_output_schema

pytestmark = pytest.mark.clause("answers")

# So late that no window includes the seeded rows.
END = NOON + 100 * HOUR_MS
LOGGED = [id_ for id_ in INDICATOR_IDS if id_ != "perpkit"]
WINDOWS = [("1h", 3, 6), ("4h", 12, 24), ("1d", 48, 72)]


def row(
    created_at: int,
    ticker: str,
    indicator: str,
    before: int,
    after: int,
    timeframe: Timeframe = "1d",
) -> ChangeRow:
    """Return a change with an id that is unique to its instant."""
    made = make_change(created_at, ticker, indicator, timeframe, after, before)
    return made._replace(close_time=created_at)


def turns(*turned: tuple[str, str, int, int]) -> list[ChangeRow]:
    """Return daily changes a millisecond apart, oldest first; the newest is at END."""
    first = END - len(turned) + 1
    return [row(first + number, *one) for number, one in enumerate(turned)]


async def commit(served: RunningService, rows: list[ChangeRow], market_time: int = END) -> None:
    """Commit rows and set the wall clock to the market time of their batch."""
    await served.market.commit(make_batch(market_time, rows))
    served.clock.now = market_time


def cells(answer: dict) -> dict[str, list[str]]:
    """Return the indicators of each ticker of a result, in its order."""
    return {
        group["ticker"]: [flip["indicator"] for flip in group["flips"]]
        for group in answer["groups"]
    }


@pytest.mark.clause("1.14", "2.6.3", "2.6.7", "2.6.9", "2.6.10", "2.6.17", "2.6.18", "4.9.16")
async def test_groups_and_flips_have_exactly_the_fields_of_their_tables(served, transport):
    await commit(served, turns(("NVDA", "trend_oracle", 1, -1), ("NVDA", "llnr", 0, 1)))
    answer = await served.fetch_answer(transport, FLIPS)
    assert set(answer) == {"as_of", "query", "groups", "counts", "capped", "meta"}
    assert answer["groups"] == [
        {
            "ticker": "NVDA",
            "name": "NVIDIA",
            "asset_class": "stock",
            "dominant": "mixed",
            "bullish": 1,
            "bearish": 1,
            "score": 1,
            "latest_at": "2026-10-04T16:03:00.000Z",
            "flips": [
                {
                    "indicator": "llnr",
                    "indicator_name": "LLNR",
                    "from": "neutral",
                    "to": "bullish",
                    "change_type": "activation",
                    "price": 101.5,
                    "created_at": "2026-10-04T16:03:00.000Z",
                },
                {
                    "indicator": "trend_oracle",
                    "indicator_name": "Trend Oracle",
                    "from": "bullish",
                    "to": "bearish",
                    "change_type": "reversal",
                    "price": 101.5,
                    "created_at": "2026-10-04T16:02:59.999Z",
                },
            ],
        }
    ]


@pytest.mark.clause(
    "4.9.3",
    "4.9.4",
    "4.9.5",
    "4.9.6",
    "4.9.7",
    "4.9.8",
    "4.9.9",
    "4.9.10",
    "4.9.11",
    "8.25",
    "8.26",
    "8.27",
    "8.28",
    "8.29",
    "8.30",
    "8.31",
    "8.32",
)
@pytest.mark.parametrize(("timeframe", "default", "most"), WINDOWS)
async def test_a_window_excludes_its_start_and_includes_its_end(
    served, transport, timeframe, default, most
):
    instants = [END - hours * HOUR_MS + late for hours in (most, default) for late in (0, 1)]
    rows = [
        row(created_at, "XAU", indicator, 1, -1, timeframe)
        for created_at, indicator in zip([*instants, END], LOGGED, strict=False)
    ]
    await commit(served, rows)
    answer = await served.fetch_answer(transport, FLIPS, timeframe=timeframe)
    assert cells(answer) == {"XAU": ["enzo", "ceres"]}
    assert answer["query"] == {"timeframe": timeframe, "hours": default, "direction": "all"}
    assert await served.fetch_answer(transport, FLIPS, timeframe=timeframe, hours=default) == answer
    for hours, found in ((most, ["enzo", "ceres", "reversals", "bayesian_trend"]), (1, ["enzo"])):
        answer = await served.fetch_answer(transport, FLIPS, timeframe=timeframe, hours=hours)
        assert (cells(answer), answer["query"]["hours"]) == ({"XAU": found}, hours)


@pytest.mark.clause("2.6.22", "4.9.2", "4.9.12", "4.9.18")
async def test_the_query_is_echoed_with_its_defaults(served, transport):
    answer = await served.fetch_answer(transport, FLIPS)
    assert answer["query"] == {"timeframe": "1d", "hours": 48, "direction": "all"}
    assert await served.fetch_answer(transport, FLIPS, **answer["query"]) == answer
    assert answer["counts"]["flips"] > 0
    requested = {"timeframe": "4h", "hours": 1, "direction": "bearish"}
    assert (await served.fetch_answer(transport, FLIPS, **requested))["query"] == requested


@pytest.mark.clause("2.6.18", "2.6.19", "4.9.13", "4.9.15")
async def test_the_newest_change_is_chosen_before_direction_applies(served, transport):
    await commit(
        served,
        turns(
            ("NVDA", "enzo", -1, 1),
            ("XAU", "enzo", -1, 1),
            ("NVDA", "enzo", 1, -1),
            ("NVDA", "llnr", -1, 1),
        ),
    )
    for direction, found in (
        ("all", {"NVDA": ["llnr", "enzo"], "XAU": ["enzo"]}),
        ("bullish", {"NVDA": ["llnr"], "XAU": ["enzo"]}),
        ("bearish", {"NVDA": ["enzo"]}),
    ):
        answer = await served.fetch_answer(transport, FLIPS, direction=direction)
        assert cells(answer) == found, direction


def test_groups_with_equal_score_and_latest_change_rank_by_ticker():
    # created_at is unique in a store, so this needs rows without a store.
    rows = [row(END, ticker, "enzo", -1, 1) for ticker in ("NVDA", "BTC", "XAU", "ETH")]
    groups = group_flips(select_newest_changes(rows), "all", seeded_board())
    assert [group.ticker for group in groups] == ["BTC", "ETH", "NVDA", "XAU"]


@pytest.mark.clause("2.6.21", "4.9.3", "4.9.14")
async def test_as_of_ends_the_window_and_moves_with_the_clock(served, transport):
    start = END - 48 * HOUR_MS
    rows = [row(start + 1000, "XAU", "enzo", 1, -1), row(END, "XAU", "llnr", 1, -1)]
    await commit(served, rows, END - 1)
    # A window never ends before the newest row, as with a clock that went back.
    for now, as_of, flips in (
        (NOON, END, ["llnr", "enzo"]),
        (END + 999, END + 999, ["llnr", "enzo"]),
        (END + 1000, END + 1000, ["llnr"]),
    ):
        served.clock.now = now
        answer = await served.fetch_answer(transport, FLIPS)
        assert (answer["as_of"], cells(answer)) == (format_instant(as_of), {"XAU": flips})
        assert answer["meta"]["as_of"] == format_instant(END - 1)


@pytest.mark.clause("4.9.3")
async def test_on_a_recording_the_window_ends_with_it(tmp_path, transport):
    async with run_service(tmp_path, make_coverage("recorded", END)) as served:
        await commit(served, [row(END - 48 * HOUR_MS + 1, "XAU", "llnr", 1, -1)])
        served.clock.now = END + 1000 * HOUR_MS
        answer = await served.fetch_answer(transport, FLIPS)
        assert (answer["as_of"], cells(answer)) == (format_instant(END), {"XAU": ["llnr"]})
        assert "next_update" not in answer["meta"]


@pytest.mark.clause("4.9.1")
async def test_only_the_requested_timeframe_is_read(served, transport):
    ids = {"1h": "llnr", "4h": "enzo", "1d": "ceres"}
    rows = [
        row(END - 2 + n, "NVDA", id_, 1, -1, timeframe)
        for n, (timeframe, id_) in enumerate(ids.items())
    ]
    await commit(served, rows)
    assert {
        timeframe: cells(await served.fetch_answer(transport, FLIPS, timeframe=timeframe))
        for timeframe in ids
    } == {timeframe: {"NVDA": [id_]} for timeframe, id_ in ids.items()}


@pytest.mark.clause("2.6.2", "4.9.14")
async def test_an_unpublished_change_or_a_first_reading_is_not_a_flip(served, transport):
    hidden = turns(
        ("BTC", "perpkit", 1, -1),
        ("BTC", "dexter", 1, -1),
        ("XAU", "enzo", 1, -1),
        ("ETH", "llnr", 1, -1),
    )
    hidden[2] = hidden[2]._replace(published=False)
    await commit(served, [row(END - 9, "XAU", "llnr", 1, -1)._replace(before=None), *hidden])
    assert cells(await served.fetch_answer(transport, FLIPS)) == {"ETH": ["llnr"]}


@pytest.mark.clause("2.6.2")
def test_the_schema_of_a_flip_names_only_the_logged_indicators():
    part = build_output_schema(GET_FLIPS.result)
    for name in ("groups", "flips"):
        part = part["properties"][name]["items"]
    assert part["properties"]["indicator"]["enum"] == LOGGED


@pytest.mark.clause("4.9.14")
async def test_the_last_changes_of_a_removed_asset_are_included(served, transport):
    await commit(served, turns(("MATIC", "enzo", 1, -1), ("ETH", "llnr", 1, -1)))
    answer = await served.fetch_answer(transport, FLIPS)
    assert (cells(answer), answer["counts"], answer["meta"].get("removed_assets", [])) == (
        {"MATIC": ["enzo"], "ETH": ["llnr"]},
        {"groups": 2, "flips": 2},
        ["MATIC"],
    )
    feed = await served.fetch_answer(transport, SIGNALS, ticker="MATIC")
    assert feed["pagination"]["returned"] == 1


@pytest.mark.clause("2.6.25", "4.9.14", "8.53")
@pytest.mark.prove
async def test_one_row_beyond_the_limit_caps_the_answer(served, transport):
    first = END - ROW_LIMIT + 1
    rows = [row(first, "XAU", "enzo", 1, -1)]
    rows += [row(first + n, "BTC", "enzo", 1, -1) for n in range(1, ROW_LIMIT)]
    await commit(served, rows)
    answer = await served.fetch_answer(transport, FLIPS)
    assert (answer["capped"], list(cells(answer))) == (False, ["BTC", "XAU"])
    assert "Capped" not in answer["meta"].get("note", "")
    await commit(served, [row(END + 1, "ETH", "enzo", 1, -1)], END + 1)
    answer = await served.fetch_answer(transport, FLIPS)
    assert (answer["capped"], list(cells(answer))) == (True, ["ETH", "BTC"])
    assert "only the newest 2000 changes" in answer["meta"].get("note", "")


@pytest.mark.clause("2.6.26", "2.13.10", "4.9.6", "4.9.8", "4.9.10")
async def test_the_rules_repeat_windows_and_row_limit(served, transport):
    rules = (await served.fetch_answer(transport, FLIPS))["meta"]["rules"]
    assert rules["hours"] == {
        timeframe: {"default": default, "max": most} for timeframe, default, most in WINDOWS
    }
    assert rules["row_limit"] == 2000
    texts = {"window", "newest", "grouping", "direction", "ranking"}
    assert set(rules) == {"hours", "row_limit", *texts}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"timeframe": "4h"}, "Nothing changed on 4h in the 12 h up to as_of"),
        ({"timeframe": "4h"}, "hours can be up to 24. Call again"),
        ({"hours": 1, "direction": "bullish"}, "No newest change on 1d in the 1 h up to as_of"),
        ({"direction": "bullish"}, "direction all shows the 2 that turned another way"),
    ],
)
async def test_an_empty_result_says_why_and_when_to_call_again(
    served, transport, arguments, reason
):
    await commit(served, turns(("XAU", "enzo", 1, -1), ("XAU", "llnr", 1, 0)))
    answer = await served.fetch_answer(transport, FLIPS, **arguments)
    assert (answer["groups"], answer["counts"]) == ([], {"groups": 0, "flips": 0})
    assert reason in answer["meta"].get("note", "")
    assert "Call again at meta.nothing_new_before" in answer["meta"].get("note", "")
    found = await served.fetch_answer(transport, FLIPS)
    assert "next_update" not in found["meta"].get("note", "")


def seeded_board() -> Snapshot:
    return build_snapshot(StoredSnapshot(make_coverage(), END, END, {"MATIC": {"enzo": {"1d": 1}}}))


def modelled(flips: list[dict], direction: str) -> list[dict]:
    """Group changes as an independent implementation: cell by cell, one stable sort per rule."""
    groups = []
    for asset in sorted(ASSETS, key=lambda asset: asset.ticker):
        newest = []
        for id_ in LOGGED:
            of_cell = [f for f in flips if (f["ticker"], f["indicator"]) == (asset.ticker, id_)]
            newest += sorted(of_cell, key=lambda flip: flip["created_at"])[-1:]
        kept = [flip for flip in newest if direction in ("all", flip["to"])]
        if kept:
            kept.sort(key=lambda flip: flip["created_at"], reverse=True)
            sides = [flip["to"] for flip in kept if flip["to"] != "neutral"]
            bullish, bearish = sides.count("bullish"), sides.count("bearish")
            lead = {-1: "bearish", 0: "mixed", 1: "bullish"}
            groups.append(
                {
                    "ticker": asset.ticker,
                    "name": asset.name,
                    "asset_class": asset.asset_class,
                    "dominant": lead[(bullish > bearish) - (bullish < bearish)],
                    "bullish": bullish,
                    "bearish": bearish,
                    "score": max(bullish, bearish),
                    "latest_at": kept[0]["created_at"],
                    "flips": [{key: flip[key] for key in flip if key != "ticker"} for flip in kept],
                }
            )
    groups.sort(key=lambda group: group["latest_at"], reverse=True)
    groups.sort(key=lambda group: group["score"], reverse=True)
    return groups


def plain(rows: Iterable[ChangeRow]) -> list[dict]:
    return [
        {
            "ticker": one.ticker,
            "indicator": one.indicator,
            "indicator_name": NAMES[one.indicator],
            "from": READING_NAMES[one.before],
            "to": READING_NAMES[one.after],
            "change_type": classify_change(one.before, one.after),
            "price": one.price,
            "created_at": format_instant(one.created_at),
        }
        for one in rows
    ]


TURNED = st.tuples(
    st.sampled_from([asset.ticker for asset in ASSETS]),
    st.sampled_from(LOGGED),
    st.sampled_from([(1, 0), (1, -1), (0, 1), (0, -1), (-1, 0), (-1, 1)]),
)


@pytest.mark.clause(
    "2.6.11",
    "2.6.12",
    "2.6.13",
    "2.6.14",
    "2.6.15",
    "2.6.16",
    "2.6.17",
    "2.6.19",
    "2.6.23",
    "2.6.24",
    "4.9.12",
    "4.9.15",
    "4.9.16",
    "4.9.17",
)
@given(
    turned=st.lists(TURNED, max_size=40), direction=st.sampled_from(["all", "bullish", "bearish"])
)
def test_grouping_equals_an_independent_implementation(turned, direction):
    rows = turns(*((ticker, id_, *readings) for ticker, id_, readings in turned))
    groups = group_flips(select_newest_changes(reversed(rows)), direction, seeded_board())
    assert [group.model_dump(by_alias=True) for group in groups] == modelled(plain(rows), direction)


async def fed(served: RunningService, transport: str, since: str, timeframe: str) -> list[dict]:
    """Read the feed after an instant page by page, and return its rows as flips, by ticker."""
    requested = {"since": since, "timeframe": timeframe, "limit": 25}
    page, rows = {"has_more": True}, []
    while page["has_more"]:
        answer = await served.fetch_answer(transport, SIGNALS, **requested, offset=len(rows))
        page = answer["pagination"]
        rows += answer["signals"]
    shared = ("ticker", "indicator", "indicator_name", "change_type", "price", "created_at")
    return [{**{key: one[key] for key in shared}, **one["transition"]} for one in rows]


@pytest.mark.clause("2.6.7", "4.7.18", "4.9.1", "4.9.13", "4.9.14", "4.9.15")
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.prove
async def test_flips_follow_from_the_feed(served, transport, seed):
    draw = random.Random(seed)
    tickers = [asset.ticker for asset in ASSETS]
    rows = [
        row(at, draw.choice(tickers), draw.choice(LOGGED), 1, draw.choice([0, -1]), frame)
        if draw.random() < 0.5
        else row(at, draw.choice(tickers), draw.choice(LOGGED), -1, 1, frame)
        for at in sorted(draw.sample(range(END - 20 * HOUR_MS, END), 120))
        for frame in [draw.choice(["4h", "1d"])]
    ]
    await commit(served, rows)
    for timeframe, hours in (("4h", 6), ("4h", 24), ("1d", 12)):
        feed = await fed(served, transport, format_instant(END - hours * HOUR_MS), timeframe)
        assert len(feed) > 10
        for direction in ("all", "bullish", "bearish"):
            requested = {"timeframe": timeframe, "hours": hours, "direction": direction}
            answer = await served.fetch_answer(transport, FLIPS, **requested)
            assert answer["groups"] == modelled(feed, direction)
            assert answer["counts"]["groups"] == len(answer["groups"]) > 0


@pytest.mark.prove
async def test_the_description_names_the_size_of_the_largest_answer(served):
    assets = [
        CoveredAsset(
            ticker=asset.ticker, name=asset.name, asset_class=asset.asset_class, timeframes=("1d",)
        )
        for asset in load_universe().assets
        if asset.removed_on is None
    ]
    await publish_assets(served, *assets)
    turned = [(asset.ticker, id_, -1, 1) for asset in assets for id_ in LOGGED]
    await commit(served, [one._replace(price=12345.67) for one in turns(*turned)])
    answer = await served.fetch_answer("mcp", FLIPS)
    assert (answer["counts"], answer["capped"]) == ({"groups": 251, "flips": 1506}, False)
    text = json.dumps(answer, separators=(",", ":"), ensure_ascii=False)
    assert len(text) == pytest.approx(parse_largest_size(DESCRIPTION), rel=0.05)


@pytest.mark.clause("4.9.24")
@pytest.mark.parametrize(
    ("arguments", "tickers"),
    [
        ({"ticker": "btc,XAU"}, {"BTC"}),
        ({"ticker": "BTC,ETH", "asset_class": "crypto"}, {"BTC", "ETH"}),
        ({"asset_class": "crypto"}, {"BTC", "ETH"}),
        ({"asset_class": "metal"}, set()),
        ({"asset_class": "stock", "ticker": "BTC"}, set()),
    ],
)
async def test_flips_of_some_tickers_or_of_a_class_are_those_of_all_without_the_others(
    served, transport, arguments, tickers
):
    whole = await served.fetch_answer(transport, FLIPS, timeframe="1h")
    answer = await served.fetch_answer(transport, FLIPS, timeframe="1h", **arguments)
    assert answer["groups"] == [g for g in whole["groups"] if g["ticker"] in tickers]
    assert {group["ticker"] for group in answer["groups"]} == tickers
    assert answer["query"] == whole["query"] | arguments
    assert (answer["meta"].get("note", "") == whole["meta"].get("note", "")) is bool(tickers)
