import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcp_server.tools.get_state import get_state
from schemas.state import StateQuery
from schemas.vocabulary import DAY_MS, INDICATOR_IDS, TIMEFRAMES, format_instant
from serving.context import Context
from serving.snapshot_cache import SnapshotCache
from store.market_rows import Batch, ChangeRow, EpochRow
from store.opening import open_sqlite_market
from store.sql.market_store import MarketStore
from tests.support.bad_inputs import CATALOG, CONFLUENCE, FLIPS, SIGNALS, STATE
from tests.support.example_market import (
    HOUR_MS,
    NOON,
    fill_full_universe,
    make_batch,
    make_change,
    make_coverage,
    make_first_readings,
)
from tests.support.row_builders import BarRow, list_commits, make_blocks
from tests.support.running_service import RunningService, run_service, served as served
from tests.support.store_homes import SqliteHome, StoreHome, open_and_close

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


@pytest.mark.clause("1.10", "1.20", "2.4.5", "2.4.6")
async def test_the_keys_of_an_asset_are_the_state_indicators_of_the_catalog(served, transport):
    listed = (await served.fetch_answer(transport, CATALOG))["tiers"]["universe"][
        "state_indicators"
    ]
    assert listed == [*INDICATOR_IDS]
    for asset in (await served.fetch_answer(transport, STATE))["assets"]:
        legacy = ["dexter"] if asset["ticker"] in {"BTC", "MATIC"} else []
        assert list(asset["signals"]) == [*listed, *legacy]
        frames = [timeframe for timeframe in TIMEFRAMES if timeframe in asset["signals"]["enzo"]]
        assert list(asset["signals"]["enzo"]) == frames


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
@pytest.mark.parametrize(
    ("ticker", "tickers", "not_covered"),
    [("eth, Btc,ETH", ["BTC", "ETH"], []), ("DARK,BTC", ["BTC"], ["DARK"])],
)
async def test_tickers_are_matched_in_any_case_and_once_and_ones_without_bars_are_named(
    served, transport, ticker, tickers, not_covered
):
    answer = await served.fetch_answer(transport, STATE, ticker=ticker)
    assert [asset["ticker"] for asset in answer["assets"]] == tickers
    assert answer["meta"].get("not_covered", []) == not_covered


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


@pytest.mark.clause("3.1.1", "4.6.2", "4.6.3", "4.6.4", "4.6.5")
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
    assert {cell["direction"] for cell in whole} == {"bullish", "bearish", "neutral"}
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
    assert (requested_later["as_of"], requested_later["assets"]) == (
        after["as_of"],
        after["assets"],
    )


@pytest.mark.clause("4.6.11", "7.28")
@pytest.mark.parametrize("tool", [STATE, SIGNALS, FLIPS, CONFLUENCE])
async def test_before_the_first_compute_a_call_is_refused_with_a_retry_time(served_empty, tool):
    result = await served_empty.call(tool)
    own = {"signals/quota", "signals/request_id"}
    assert {name: value for name, value in result["_meta"].items() if name not in own} == {
        "signals/error": "unavailable",
        "signals/status": 503,
        "signals/retry_after_seconds": 900,
    }
    assert "900 seconds" in json.loads(result["content"][0]["text"])["message"]
    assert (await served_empty.fetch_refusal("mcp", FLIPS, timeframe="1h", hours=7))[0] == 400


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
        (cell["ticker"], cell["indicator"], cell["timeframe"]): cell["direction"]
        for cell in cells(answer)
    }


@pytest.fixture(scope="module")
def full_board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("full") / "market.db"


@pytest.fixture
async def whole(full_board: Path) -> AsyncIterator[MarketStore]:
    """A service with the whole universe, filled once."""
    async with open_and_close(open_sqlite_market(full_board)) as store:
        if not await list_commits(store):
            await fill_full_universe(store)
        yield store


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
    context = Context(SnapshotCache(whole), "http://x", "http://x", lambda: NOON + HOUR_MS, None, 1)
    full, short = [
        json.loads((await get_state(query, context)).model_dump_json())
        for query in (StateQuery(**filters, view=view) for view in ("full", "lines"))
    ]
    assert len(full["assets"]) > 25
    read = parsed(short.pop("lines"), filters.get("timeframe"))
    # Of readings that no filter selects, lines leave out the neutral ones, and dexter always.
    assert read == {
        cell: reading
        for cell, reading in listed(full).items()
        if cell[1] != "dexter" and (reading != "neutral" or "direction" in filters)
    }
    assert (short["assets"], short["counts"]) == ([], full["counts"])


HOUR_S = 3600
LAST_CLOSE = NOON // HOUR_MS * HOUR_S
START = NOON - 60 * 24 * HOUR_MS
ENZO = {"ticker": "BTC", "indicator": "enzo", "detail": "changes"}


def make_hours(ticker: str, closes: list[float], until: int = LAST_CLOSE) -> list[BarRow]:
    """Return consecutive hourly bars, of which the last one closes at `until`."""
    first = until - len(closes) * HOUR_S
    return [
        BarRow(ticker, "1h", first + n * HOUR_S, close, close, close, close, 1.0)
        for n, close in enumerate(closes)
    ]


def make_turn(hours_ago: int, price: float, after: int, before: int, **parts: str) -> ChangeRow:
    cell = {"ticker": "BTC", "indicator": "enzo", "timeframe": "1h"} | parts
    row = make_change(NOON - hours_ago * HOUR_MS, **cell, after=after, before=before)
    return row._replace(price=price)


async def commit(served: RunningService, hours_ago: int, *rows: ChangeRow, **parts) -> None:
    """Commit changes and bars in a run."""
    bars = [replace(block, source="x") for block in make_blocks(*parts.pop("bars", ()))]
    run = NOON - hours_ago * HOUR_MS
    await served.market.commit(replace(make_batch(run, list(rows)), bars=bars, **parts))


def get_address(home: StoreHome) -> Path | str:
    return Path(home.address) if isinstance(home, SqliteHome) else home.address


@pytest.fixture
async def moved(home: StoreHome) -> AsyncIterator[RunningService]:
    """A service whose BTC closed at 80, 90, 100, 110 and 120 in the last five hours."""
    async with run_service(get_address(home)) as served:
        await served.market.publish_coverage(make_coverage())
        first = [row._replace(price=50.0) for row in make_first_readings(START)]
        tickers = dict.fromkeys({row.ticker for row in first}, 0)
        await served.market.commit(Batch(START, changes=first, publish_from=tickers))
        btc = make_hours("BTC", [80.0, 90.0, 100.0, 110.0])
        past = [bar._replace(open_time=bar.open_time - HOUR_S) for bar in btc]
        stock = make_hours("NVDA", [10.0], LAST_CLOSE - 20 * HOUR_S)
        await commit(served, 2, make_turn(2, 100.0, -1, 1), bars=[*past[:3], *stock])
        await commit(served, 1, make_turn(1, 110.0, 0, 1, indicator="perpkit"), bars=[past[3]])
        await commit(served, 0, make_turn(0, 120.0, 0, -1), bars=make_hours("BTC", [120.0]))
        yield served


@pytest.mark.clause("4.6.13")
async def test_each_reading_says_since_when_it_holds_and_how_the_price_has_moved(moved, transport):
    plain = await moved.fetch_answer(transport, STATE, ticker="BTC")
    answer = await moved.fetch_answer(transport, STATE, ticker="BTC", detail="changes")
    (asset,) = answer["assets"]
    changes = asset.pop("changes")
    assert asset.pop("last_bar") == {"closed_at": "2026-09-30T12:00:00.000Z", "close": 120.0}
    assert asset == plain["assets"][0]
    assert {key: set(cells) for key, cells in changes.items()} == {
        key: set(cells) for key, cells in asset["signals"].items()
    }
    turned = {"since": format_instant(NOON), "price": 120.0, "change_percent": 0.0}
    assert changes["enzo"]["1h"] == turned
    assert changes["perpkit"]["1h"] == {
        "since": format_instant(NOON - HOUR_MS),
        "price": 110.0,
        "change_percent": 9.0909,
    }
    for key in ("enzo", "dexter", "ceres", "perpkit"):
        assert (changes[key]["1d"]["price"], changes[key]["1d"]["change_percent"]) == (50.0, 140.0)
        assert changes[key]["1d"]["since"].startswith("2026-08-01T12:03:00.")


@pytest.mark.clause("4.6.13")
async def test_a_past_reading_has_the_change_and_the_close_of_then(moved, transport):
    at = format_instant(NOON - HOUR_MS + 60_000)
    answer = await moved.fetch_answer(transport, STATE, **ENZO, timeframe="1h", as_of=at)
    (asset,) = answer["assets"]
    assert asset["signals"] == {"enzo": {"1h": "bearish"}}
    held = {
        "since": format_instant(NOON - 2 * HOUR_MS),
        "price": 100.0,
        "change_percent": pytest.approx(10.0),
    }
    assert asset["changes"] == {"enzo": {"1h": held}}
    assert asset["last_bar"] == {"closed_at": "2026-09-30T11:00:00.000Z", "close": 110.0}


@pytest.mark.clause("4.6.13")
async def test_an_asset_without_new_bars_has_its_own_last_close_and_one_without_bars_none(
    moved, transport
):
    answer = await moved.fetch_answer(transport, STATE, ticker="NVDA,ETH", detail="changes")
    eth, nvda = answer["assets"]
    assert nvda["last_bar"] == {"closed_at": "2026-09-29T16:00:00.000Z", "close": 10.0}
    assert nvda["changes"]["llnr"]["4h"]["change_percent"] == -80.0
    assert "last_bar" not in eth
    assert eth["changes"]["llnr"]["4h"]["change_percent"] is None


@pytest.mark.clause("4.8.16")
@pytest.mark.parametrize("hours_ago", [0, 1])
async def test_each_vote_says_since_when_it_holds(moved, transport, hours_ago):
    as_of = {} if hours_ago == 0 else {"as_of": format_instant(NOON - HOUR_MS)}
    query = {"timeframe": "1h", "min_agree": 1, **as_of}
    plain = await moved.fetch_answer(transport, CONFLUENCE, **query)
    answer = await moved.fetch_answer(transport, CONFLUENCE, **query, detail="changes")
    assert answer["query"] == plain["query"] | {"detail": "changes"}
    state = await moved.fetch_answer(transport, STATE, timeframe="1h", detail="changes", **as_of)
    by_ticker = {asset["ticker"]: asset for asset in state["assets"]}
    for result, without in zip(answer["results"], plain["results"], strict=True):
        asset = by_ticker[result["ticker"]]
        assert result.pop("last_bar", None) == asset.get("last_bar")
        changes = {key: {"1h": change} for key, change in result.pop("changes").items()}
        assert changes == asset["changes"]
        assert result == without


@pytest.mark.clause("14.7")
async def test_a_service_that_hides_prices_leaves_closes_out(home, transport):
    async with run_service(get_address(home), shows_prices=False) as served:
        await served.market.publish_coverage(make_coverage())
        await commit(served, 0, *make_first_readings(NOON), publish_from={"BTC": 0})
        await commit(served, 0, bars=make_hours("BTC", [120.0]))
        answer = await served.fetch_answer(transport, STATE, **ENZO, timeframe="1h")
    (asset,) = answer["assets"]
    assert asset["last_bar"] == {"closed_at": "2026-09-30T12:00:00.000Z", "close": None}
    held = asset["changes"]["enzo"]["1h"]
    assert (held["price"], held["change_percent"]) == (101.5, None)


@pytest.mark.clause("4.6.13")
async def test_a_price_of_a_replaced_history_is_not_compared_with_the_present_one(moved, transport):
    """After a split the stored prices of older changes are those of another unit."""
    split = [
        replace(block, source="x", revision=1) for block in make_blocks(*make_hours("BTC", [12.0]))
    ]
    epoch = EpochRow("BTC", "1h", "enzo", 2, 1, 1, LAST_CLOSE, "history replaced")
    row = make_turn(0, 12.0, 1, 0)._replace(created_at=NOON + HOUR_MS, epoch=2)
    batch = make_batch(NOON + HOUR_MS, [row])
    await moved.market.commit(replace(batch, bars=split, epochs=[epoch]))
    answer = await moved.fetch_answer(transport, STATE, ticker="BTC", detail="changes")
    changes = answer["assets"][0]["changes"]
    assert changes["enzo"]["1h"]["change_percent"] == 0.0
    assert changes["enzo"]["4h"] == changes["enzo"]["4h"] | {"price": 50.0, "change_percent": None}


@pytest.mark.clause("4.6.14")
async def test_changes_do_not_fit_lines(served, transport):
    refusal = (400, "invalid_parameter", "omit view or detail")
    await served.check_refusal(transport, STATE, *refusal, view="lines", detail="changes")
