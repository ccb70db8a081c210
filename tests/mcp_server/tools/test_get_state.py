import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mcp_server.tools.get_state import get_state
from schemas.state import StateQuery
from schemas.vocabulary import DAY_MS, INDICATOR_IDS, TIMEFRAMES, format_instant
from serving.context import Context
from serving.snapshot_cache import SnapshotCache
from store.opening import open_sqlite_market
from store.sql.market_store import MarketStore
from tests.support.bad_inputs import CATALOG, STATE
from tests.support.example_market import (
    HOUR_MS,
    NOON,
    fill_full_universe,
    make_batch,
    make_change,
)
from tests.support.row_builders import list_commits
from tests.support.running_service import RunningService
from tests.support.running_service import served as served

pytestmark = pytest.mark.clause("answers")


async def state(served: RunningService, **arguments: object) -> dict:
    return await served.fetch_answer("mcp", STATE, **arguments)


@pytest.mark.clause("1.10", "1.11", "2.4.1", "2.4.2", "4.6.6")
async def test_an_unfiltered_state_lists_every_asset_with_readings_by_ticker(served):
    answer = await state(served)
    assert [asset["ticker"] for asset in answer["assets"]] == ["BTC", "ETH", "MATIC", "NVDA", "XAU"]
    assert answer["as_of"] == "2026-09-30T12:03:00.000Z"
    # Four assets have three timeframes, one has one; two have dexter.
    assert answer["counts"] == {"assets": 5, "readings": 4 * 21 + 7 + 2 * 3}


@pytest.mark.clause("1.10", "1.20")
async def test_indicators_and_timeframes_come_in_the_order_of_the_vocabulary(served):
    (asset,) = (await state(served, ticker="btc"))["assets"]
    assert list(asset["signals"]) == [*INDICATOR_IDS, "dexter"]
    assert list(asset["signals"]["enzo"]) == ["1h", "4h", "1d"]
    assert asset["name"] == "Bitcoin"


@pytest.mark.clause("3.1.1")
async def test_every_reading_is_one_of_three_words(served, transport):
    assets = (await served.fetch_answer(transport, STATE))["assets"]
    readings = [
        reading
        for asset in assets
        for by_timeframe in asset["signals"].values()
        for reading in by_timeframe.values()
    ]
    assert set(readings) == {"bullish", "bearish", "neutral"}


@pytest.mark.clause("2.4.3", "2.4.4", "4.6.12")
async def test_an_asset_has_exactly_the_fields_of_its_table(served, transport):
    answer = await served.fetch_answer(transport, STATE, ticker="XAU")
    assert set(answer) == {"as_of", "assets", "counts", "meta"}
    (asset,) = answer["assets"]
    assert asset == {
        "ticker": "XAU",
        "name": "Gold",
        "asset_class": "metal",
        "signals": {
            id_: {"1d": "neutral" if id_ == "ceres" else "bearish"} for id_ in INDICATOR_IDS
        },
    }


@pytest.mark.clause("2.4.5", "2.4.6")
async def test_the_keys_of_an_asset_are_the_state_indicators_of_the_catalog(served, transport):
    listed = (await served.fetch_answer(transport, CATALOG))["tiers"]["universe"][
        "state_indicators"
    ]
    assert len(listed) == 7
    for asset in (await served.fetch_answer(transport, STATE))["assets"]:
        legacy = ["dexter"] if asset["ticker"] in {"BTC", "MATIC"} else []
        assert list(asset["signals"]) == [*listed, *legacy]


@pytest.mark.clause("2.4.11")
async def test_neither_runs_nor_pruning_remove_a_key_from_state(served_alone, transport):
    before = await served_alone.fetch_answer(transport, STATE)
    later = NOON + 500 * DAY_MS
    await served_alone.market.commit(
        make_batch(later, [make_change(later, "BTC", "enzo", "1h", -1, 1)])
    )
    assert await served_alone.market.prune() > 0
    after = await served_alone.fetch_answer(transport, STATE)
    assert keys(after) == keys(before)
    assert "dexter" in keys(after)["MATIC"]


def keys(answer: dict) -> dict[str, dict[str, list[str]]]:
    return {
        asset["ticker"]: {key: list(readings) for key, readings in asset["signals"].items()}
        for asset in answer["assets"]
    }


@pytest.mark.clause("4.6.1")
async def test_tickers_are_matched_in_any_case_and_once(served, transport):
    answer = await served.fetch_answer(transport, STATE, ticker="eth, Btc,ETH")
    assert [asset["ticker"] for asset in answer["assets"]] == ["BTC", "ETH"]


@pytest.mark.clause("2.4.2", "4.6.3", "4.6.5")
async def test_filters_together_narrow_the_readings(served):
    answer = await state(
        served, asset_class="crypto", timeframe="4h", indicator="ceres", direction="bullish"
    )
    assert [a["ticker"] for a in answer["assets"]] == ["BTC"]
    assert answer["assets"][0]["signals"] == {"ceres": {"4h": "bullish"}}
    assert answer["counts"] == {"assets": 1, "readings": 1}


def cells(answer: dict) -> list[dict]:
    """Return every reading of a result, with the values it can be filtered by."""
    return [
        {
            "ticker": asset["ticker"],
            "asset_class": asset["asset_class"],
            "indicator": indicator,
            "timeframe": timeframe,
            "direction": direction,
        }
        for asset in answer["assets"]
        for indicator, readings in asset["signals"].items()
        for timeframe, direction in readings.items()
    ]


@pytest.mark.clause("4.6.2", "4.6.3", "4.6.4", "4.6.5")
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("asset_class", ("crypto", "stock", "metal")),
        ("timeframe", ("1h", "4h", "1d")),
        ("indicator", INDICATOR_IDS),
        ("direction", ("bullish", "bearish", "neutral")),
    ],
)
async def test_each_value_of_a_filter_keeps_exactly_the_readings_that_have_it(
    served, transport, name, values
):
    whole = cells(await served.fetch_answer(transport, STATE))
    for value in values:
        kept = cells(await served.fetch_answer(transport, STATE, **{name: value}))
        assert kept == [cell for cell in whole if cell[name] == value] != []


@pytest.mark.clause("2.4.6", "2.4.10", "4.6.4", "9.19")
async def test_dexter_is_shown_without_an_indicator_filter_only(served):
    shown = await state(served, ticker="BTC", timeframe="1d")
    assert shown["assets"][0]["signals"]["dexter"] == {"1d": "bullish"}
    assert shown["meta"].get("legacy_keys", {}) == {"dexter": "enzo"}
    hidden = await state(served, ticker="BTC", indicator="enzo")
    assert list(hidden["assets"][0]["signals"]) == ["enzo"]
    assert hidden["meta"].get("legacy_keys", {}) == {}


@pytest.mark.clause("2.4.12", "9.11")
async def test_a_removed_asset_keeps_its_last_readings_and_is_named(served):
    answer = await state(served, ticker="MATIC")
    assert answer["counts"]["readings"] == 24
    assert answer["meta"].get("removed_assets", []) == ["MATIC"]
    assert "continues as POL" in answer["meta"].get("note", "")


async def test_a_known_asset_without_bars_is_not_covered(served):
    answer = await state(served, ticker="DARK,BTC")
    assert [a["ticker"] for a in answer["assets"]] == ["BTC"]
    assert answer["meta"].get("not_covered", []) == ["DARK"]


async def test_an_empty_result_says_why_it_is_empty(served):
    answer = await state(served, asset_class="metal", timeframe="1h")
    assert (answer["assets"], answer["counts"]) == ([], {"assets": 0, "readings": 0})
    assert "No reading matches" in answer["meta"].get("note", "")


@pytest.mark.clause("1.10", "1.11", "2.4.1", "2.4.4", "4.6.6")
async def test_a_committed_batch_is_seen_by_the_next_call(served_alone):
    before = await state(served_alone, ticker="XAU", indicator="enzo")
    later = NOON + 3_600_000
    await served_alone.market.commit(
        make_batch(later, [make_change(later, "XAU", "enzo", "1d", 1, -1)])
    )
    after = await state(served_alone, ticker="XAU", indicator="enzo")
    assert before["assets"][0]["signals"] == {"enzo": {"1d": "bearish"}}
    assert after["assets"][0]["signals"] == {"enzo": {"1d": "bullish"}}
    assert after["as_of"] == "2026-09-30T13:03:00.000Z"
    served_alone.clock.now += 48 * 3_600_000
    requested_later = await state(served_alone, ticker="XAU", indicator="enzo")
    for part in ("as_of", "assets"):
        assert requested_later[part] == after[part]


@pytest.mark.clause("4.6.11", "7.28")
@pytest.mark.parametrize("tool", ["signals_get_state", "signals_get_signals"])
async def test_before_the_first_compute_a_call_is_refused_with_a_retry_time(served_empty, tool):
    result = await served_empty.call(tool)
    own = {"signals/quota", "signals/request_id"}
    assert {name: value for name, value in result["_meta"].items() if name not in own} == {
        "signals/error": "unavailable",
        "signals/status": 503,
        "signals/retry_after_seconds": 900,
    }
    assert "900 seconds" in json.loads(result["content"][0]["text"])["message"]


PROMISED = 11_000  # Characters, as the tool's description promises.
SAID = {"+": "bullish", "-": "bearish", "=": "neutral"}
NAMES = dict(zip("TBRCELP", INDICATOR_IDS, strict=True))
Cells = dict[tuple[str, str, str], str]


def parsed(lines: str, timeframe: str | None) -> Cells:
    """Parse the readings of lines with letters by their header."""
    cells: Cells = {}
    for line in lines.split("\n")[1:]:
        ticker, *words = line.split(" ")
        for at, word in zip([timeframe] if timeframe else TIMEFRAMES, words, strict=True):
            for sign, letters in re.findall(r"([+\-=])([A-Z]+)", word):
                cells |= {(ticker, NAMES[letter], at): SAID[sign] for letter in letters}
    return cells


def listed(answer: dict[str, Any]) -> Cells:
    return {
        (asset["ticker"], indicator, timeframe): reading
        for asset in answer["assets"]
        for indicator, cells in asset["signals"].items()
        for timeframe, reading in cells.items()
    }


def context_of(store: MarketStore) -> Context:
    return Context(SnapshotCache(store), "http://x", "http://x", lambda: NOON + HOUR_MS, None, 1)


async def both_views(context: Context, **filters: Any) -> list[dict[str, Any]]:
    """Return the serialized results of the handler in both views."""
    answers = []
    for view in ("full", "lines"):
        query = StateQuery.model_validate({**filters, "view": view})
        answers.append(json.loads((await get_state(query, context)).model_dump_json()))
    return answers


@pytest.fixture(scope="module")
def full_board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("full") / "market.db"


@pytest.fixture
async def whole(full_board: Path) -> AsyncIterator[MarketStore]:
    """A service with the whole universe, filled once."""
    store = await open_sqlite_market(full_board)
    if not await list_commits(store):
        await fill_full_universe(store)
    yield store
    await store.close()


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"asset_class": "stock"},
        {"timeframe": "4h"},
        {"indicator": "enzo"},
        {"direction": "neutral"},
        {"asset_class": "stock", "timeframe": "1d", "direction": "bullish"},
        {"as_of": format_instant(NOON - 9 * 24 * HOUR_MS)},
    ],
    ids=lambda filters: "+".join(filters) or "none",
)
@pytest.mark.clause("2.4.2", "2.4.10")
@pytest.mark.prove
async def test_the_whole_universe_reads_the_same_in_both_views(whole, filters):
    full, short = await both_views(context_of(whole), **filters)
    assert len(full["assets"]) > 25
    read = parsed(short.pop("lines"), filters.get("timeframe"))
    # Of readings that no filter selects, lines leave out the neutral ones, and dexter always.
    wanted = {
        cell: reading
        for cell, reading in listed(full).items()
        if cell[1] != "dexter" and (reading != "neutral" or "direction" in filters)
    }
    assert read == wanted
    assert (short["assets"], short["counts"]) == ([], full["counts"])


@pytest.mark.clause("1.21")
@pytest.mark.prove
async def test_the_whole_universe_is_as_short_as_promised(whole):
    context = context_of(whole)
    for as_of in (None, format_instant(NOON), format_instant(NOON - 20 * 24 * HOUR_MS)):
        full, short = await both_views(context, as_of=as_of)
        assert full["counts"]["assets"] == 252
        cells = [cell for cell in listed(full) if cell[0] != "MATIC" and cell[1] != "dexter"]
        assert len(cells) == 5271
        assert len(json.dumps(short, separators=(",", ":"))) < PROMISED


async def test_another_view_is_refused_and_both_are_named(served_alone, transport):
    status, error = await served_alone.fetch_refusal(transport, STATE, view="short")
    assert (status, error["error"]) == (400, "invalid_parameter")
    assert "view" in error["message"]
    assert "full, lines" in error["message"]
