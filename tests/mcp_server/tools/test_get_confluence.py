import itertools
import json
import random
import re
from datetime import date
from fractions import Fraction

import pytest

from compute.universe import load_universe
from mcp_server.tools.get_catalog import CONFLUENCE_RULES
from mcp_server.tools.get_confluence import DESCRIPTION
from schemas.coverage import CoveredAsset
from schemas.vocabulary import DAY_MS, INDICATOR_IDS, STORED_KEYS, TIMEFRAMES
from tests.support.bad_inputs import CATALOG, CONFLUENCE, STATE
from tests.support.example_market import ASSETS, HOUR_MS, LATER, NOON, make_batch, make_change
from tests.support.response_schemas import parse_largest_size
from tests.support.running_service import RunningService, publish_assets
from tests.support.signals_command import ROOT

pytestmark = pytest.mark.clause("answers")

Readings = dict[str, int]


def metal(ticker: str) -> CoveredAsset:
    return CoveredAsset(ticker=ticker, name=ticker, asset_class="metal", timeframes=TIMEFRAMES)


def of(bullish: int, others: int) -> Readings:
    """Return the given numbers of bullish and then of neutral readings."""
    return dict(zip(STORED_KEYS, [1] * bullish + [0] * others, strict=False))


async def hold_metals(served: RunningService, held: dict[str, Readings]) -> None:
    """Commit 4h readings of invented metals; the seeded one has only 1d."""
    await publish_assets(served, *ASSETS, *map(metal, held))
    rows = [
        make_change(NOON + HOUR_MS + number, ticker, key, "4h", reading)
        for number, (ticker, key, reading) in enumerate(
            (ticker, key, reading)
            for ticker, readings in held.items()
            for key, reading in readings.items()
        )
    ]
    await served.market.commit(make_batch(NOON + HOUR_MS, rows))


async def tickers(served: RunningService, transport: str, **arguments: object) -> list[str]:
    answer = await served.fetch_answer(transport, CONFLUENCE, **arguments)
    return [result["ticker"] for result in answer["results"]]


@pytest.mark.clause("2.5.2", "2.5.4", "2.5.5", "2.5.6", "2.5.10", "4.8.10")
async def test_a_result_has_exactly_the_fields_of_its_table(served, transport):
    answer = await served.fetch_answer(transport, CONFLUENCE)
    assert set(answer) == {"as_of", "query", "results", "meta"}
    assert answer["results"][1] == {
        "ticker": "ETH",
        "name": "Ethereum",
        "asset_class": "crypto",
        "agree": 6,
        "total_reporting": 7,
        "score": 6 / 7,
        "votes": {id_: "neutral" if id_ == "ceres" else "bullish" for id_ in INDICATOR_IDS},
    }


@pytest.mark.clause("1.15", "2.5.7", "2.5.8", "2.5.11")
async def test_the_legacy_key_votes_like_every_other_key(served, transport):
    await served.market.commit(make_batch(LATER, [make_change(LATER, "BTC", "enzo", "4h", -1, 1)]))
    results = (await served.fetch_answer(transport, CONFLUENCE))["results"]
    btc, eth = sorted(results, key=lambda result: result["ticker"])
    assert (eth["ticker"], eth["agree"], eth["total_reporting"]) == ("ETH", 6, 7)
    assert "current_agree" not in eth
    assert (btc["ticker"], btc["agree"], btc["total_reporting"]) == ("BTC", 7, 8)
    assert (btc["score"], btc["votes"]["enzo"], btc["votes"]["dexter"]) == (
        7 / 8,
        "bearish",
        "bullish",
    )
    assert (btc["current_agree"], list(btc["votes"])) == (6, [*INDICATOR_IDS, "dexter"])


@pytest.mark.clause("2.5.7", "4.8.7")
async def test_the_legacy_key_counts_towards_min_agree(served, transport):
    five = dict.fromkeys(INDICATOR_IDS[:5], 1) | dict.fromkeys(INDICATOR_IDS[5:], 0)
    await hold_metals(served, {"OLD": five | {"dexter": 1}, "NEW": five})
    assert await tickers(served, transport, asset_class="metal", min_agree=6) == ["OLD"]
    assert await tickers(served, transport, asset_class="metal", min_agree=5) == ["OLD", "NEW"]


@pytest.mark.clause("2.4.10")
async def test_the_legacy_key_is_explained_if_it_voted(served, transport):
    shown = await served.fetch_answer(transport, CONFLUENCE, timeframe="1d")
    assert shown["meta"].get("legacy_keys", {}) == {"dexter": "enzo"}
    hidden = await served.fetch_answer(transport, CONFLUENCE, timeframe="1d", direction="bearish")
    assert hidden["results"]
    assert hidden["meta"].get("legacy_keys", {}) == {}


@pytest.mark.clause("2.5.8", "2.5.10", "4.8.10")
async def test_an_indicator_without_a_reading_is_left_out(served, transport):
    await hold_metals(served, {"XPT": {"llnr": 1, "trend_oracle": 1, "ceres": 0}})
    (result,) = (
        await served.fetch_answer(transport, CONFLUENCE, asset_class="metal", min_agree=2)
    )["results"]
    assert (result["agree"], result["total_reporting"], result["score"]) == (2, 3, 2 / 3)
    assert result["votes"] == {"trend_oracle": "bullish", "ceres": "neutral", "llnr": "bullish"}


@pytest.mark.clause("1.15", "4.8.1")
async def test_only_the_requested_timeframe_votes(served, transport):
    agreeing = {}
    for timeframe in TIMEFRAMES:
        answer = await served.fetch_answer(transport, CONFLUENCE, timeframe=timeframe)
        agreeing[timeframe] = {result["ticker"]: result["agree"] for result in answer["results"]}
    assert agreeing == {
        "1h": {"BTC": 5, "ETH": 5},
        "4h": {"BTC": 8, "ETH": 6},
        "1d": {"BTC": 7, "ETH": 6},
    }


@pytest.mark.clause("2.5.7", "4.8.4", "4.8.9")
async def test_bearish_agreement_is_counted_and_ranked_alike(served, transport):
    answer = await served.fetch_answer(transport, CONFLUENCE, timeframe="1d", direction="bearish")
    agreeing = [(r["ticker"], r["agree"], r["total_reporting"]) for r in answer["results"]]
    assert agreeing == [("XAU", 6, 7), ("NVDA", 5, 7)]


@pytest.mark.clause("1.15", "2.5.9", "4.8.9", "4.8.14")
async def test_results_rank_by_score_then_agree_then_ticker(served, transport):
    held = {
        "A5": of(5, 2),
        "B3": of(3, 1),
        "Z6": of(6, 2),
        "A3": of(3, 1),
        "M1": of(3, 0),
    }
    await hold_metals(served, held)
    results = (await served.fetch_answer(transport, CONFLUENCE, asset_class="metal"))["results"]
    assert [(result["ticker"], repr(result["score"])) for result in results] == [
        ("M1", "1.0"),
        ("Z6", "0.75"),
        ("A3", "0.75"),
        ("B3", "0.75"),
        ("A5", "0.7142857142857143"),
    ]
    rules = (await served.fetch_answer(transport, CATALOG))["meta"]["confluence"]
    assert set(rules) == {"votes", "score", "ranking"}


@pytest.mark.clause("4.8.5", "4.8.7", "8.22", "8.23", "8.24")
@pytest.mark.parametrize(
    ("least", "given"), [(3, {}), *((number, {"min_agree": number}) for number in range(1, 7))]
)
async def test_an_asset_is_listed_once_it_reaches_min_agree_which_is_3_by_default(
    served, transport, least, given
):
    await hold_metals(served, {f"X{agree}": of(agree, 7 - agree) for agree in range(8)})
    found = await tickers(served, transport, asset_class="metal", **given)
    assert found == [f"X{agree}" for agree in range(7, least - 1, -1)]


@pytest.mark.clause("4.8.8")
@pytest.mark.parametrize(
    ("direction", "asset_class", "found"),
    [
        ("bearish", "stock", {"NVDA"}),
        ("bearish", "metal", {"XAU"}),
        ("bearish", "crypto", set()),
        ("bullish", "crypto", {"BTC", "ETH"}),
    ],
)
async def test_asset_class_narrows_the_results(served, transport, direction, asset_class, found):
    requested = {"timeframe": "1d", "direction": direction, "asset_class": asset_class}
    assert {*await tickers(served, transport, **requested)} == found


async def test_an_asset_is_included_until_the_day_of_its_removal(served, transport):
    midnight = NOON - NOON % DAY_MS + DAY_MS
    matic = ASSETS[-1].model_copy(update={"removed_on": date(2026, 10, 1)})
    await publish_assets(served, *ASSETS[:-1], matic)
    await served.market.commit(make_batch(midnight - 1, []))
    assert await tickers(served, transport, timeframe="1d") == ["BTC", "MATIC", "ETH"]
    await served.market.commit(make_batch(midnight, []))
    assert await tickers(served, transport, timeframe="1d") == ["BTC", "ETH"]
    assert (await served.fetch_answer(transport, STATE, ticker="MATIC"))["counts"]["assets"] == 1


@pytest.mark.clause("2.5.2", "2.13.12", "4.8.2", "4.8.3", "4.8.6")
@pytest.mark.parametrize(
    ("arguments", "echoed"),
    [
        ({}, {"timeframe": "4h", "direction": "bullish", "min_agree": 3, "asset_class": None}),
        (
            {"timeframe": "1h", "direction": "bearish", "min_agree": 6, "asset_class": "metal"},
            {"timeframe": "1h", "direction": "bearish", "min_agree": 6, "asset_class": "metal"},
        ),
    ],
)
async def test_the_query_is_echoed_with_its_defaults(served, transport, arguments, echoed):
    answer = await served.fetch_answer(transport, CONFLUENCE, **arguments)
    assert answer["query"] == echoed
    applied = {name: value for name, value in echoed.items() if value is not None}
    assert await served.fetch_answer(transport, CONFLUENCE, **applied) == answer


@pytest.mark.clause("2.5.1")
async def test_as_of_is_the_last_compute_at_any_clock_time(served, transport):
    served.clock.now += 5 * HOUR_MS
    answer = await served.fetch_answer(transport, CONFLUENCE)
    assert answer["as_of"] == answer["meta"]["as_of"] == "2026-09-30T12:03:00.000Z"
    assert (answer["meta"].get("simulated", False), answer["meta"].get("stale", False)) == (
        True,
        True,
    )
    assert "removed_assets" not in answer["meta"]


async def test_an_empty_answer_names_the_min_agree_that_finds_something(served, transport):
    await hold_metals(served, {"XPD": of(2, 5), "XPT": of(4, 3), "XAG": of(3, 4)})
    answer = await served.fetch_answer(transport, CONFLUENCE, asset_class="metal", min_agree=6)
    assert answer["results"] == []
    assert (
        answer["meta"]
        .get("note", "")
        .endswith(
            "No metal asset has 6 bullish votes on 4h now; "
            "the highest agreement is 4, so lower min_agree to 4."
        )
    )
    assert await tickers(served, transport, asset_class="metal", min_agree=4) == ["XPT"]


def modelled(state: dict, timeframe: str, direction: str, min_agree: int) -> list[dict]:
    """Count the votes in a result of state, as an independent implementation."""
    found = []
    for asset in state["assets"]:
        votes = {
            key: readings[timeframe]
            for key, readings in asset["signals"].items()
            if timeframe in readings
        }
        agree = list(votes.values()).count(direction)
        if agree >= min_agree and asset["ticker"] not in state["meta"].get("removed_assets", []):
            named = {key: asset[key] for key in ("ticker", "name", "asset_class")}
            counted = {"agree": agree, "total_reporting": len(votes), "score": agree / len(votes)}
            if votes.get("dexter") == direction:
                counted["current_agree"] = agree - 1
            found.append({**named, **counted, "votes": votes})
    found.sort(key=lambda result: result["ticker"])
    found.sort(key=lambda result: result["agree"], reverse=True)
    found.sort(key=lambda r: Fraction(r["agree"], r["total_reporting"]), reverse=True)
    return found


@pytest.mark.clause(
    "2.5.6", "2.5.7", "2.5.8", "2.5.9", "2.5.10", "4.8.1", "4.8.4", "4.8.10", "4.8.14"
)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.prove
async def test_confluence_follows_from_state(served, transport, seed):
    draw = random.Random(seed)
    metals = [metal(f"X{number:02}") for number in range(12)]
    await publish_assets(served, *ASSETS, *metals)
    cells = [
        (asset.ticker, key, timeframe)
        for asset in (*ASSETS, *metals)
        for key in STORED_KEYS
        for timeframe in TIMEFRAMES
        if draw.random() < 0.8
    ]
    rows = [
        make_change(LATER + number, ticker, key, timeframe, draw.choice([1, 1, 0, -1]))
        for number, (ticker, key, timeframe) in enumerate(cells)
    ]
    await served.market.commit(make_batch(LATER, rows))
    compared = 0
    for timeframe, direction in itertools.product(TIMEFRAMES, ["bullish", "bearish"]):
        requested = {
            "timeframe": timeframe,
            "direction": direction,
            "min_agree": draw.randint(1, 4),
        }
        asset_class = draw.choice([{}, {"asset_class": "crypto"}, {"asset_class": "metal"}])
        state = await served.fetch_answer(transport, STATE, **asset_class)
        answer = await served.fetch_answer(transport, CONFLUENCE, **requested, **asset_class)
        assert answer["results"] == modelled(state, **requested)
        assert answer["as_of"] == state["as_of"]
        compared += len(answer["results"])
    assert compared > 20


@pytest.mark.prove
async def test_the_description_names_the_size_of_the_largest_answer(served):
    universe = load_universe()
    assets = [
        CoveredAsset(
            ticker=asset.ticker, name=asset.name, asset_class=asset.asset_class, timeframes=("1d",)
        )
        for asset in universe.assets
        if asset.removed_on is None
    ]
    legacy = [asset.ticker for asset in universe.assets if asset.added_on < universe.renamed_on]
    await publish_assets(served, *assets)
    cells = [(asset.ticker, id_) for asset in assets for id_ in INDICATOR_IDS]
    cells += [(ticker, "dexter") for ticker in legacy]
    rows = [make_change(LATER + n, *cell, "1d", 1) for n, cell in enumerate(cells)]
    await served.market.commit(make_batch(LATER, rows))
    answer = await served.fetch_answer("mcp", CONFLUENCE, timeframe="1d")
    assert len(answer["results"]) == 251
    text = json.dumps(answer, separators=(",", ":"), ensure_ascii=False)
    assert len(text) == pytest.approx(parse_largest_size(DESCRIPTION), rel=0.05)


@pytest.mark.clause("4.8.15")
def test_texts_for_agents_have_the_independent_votes_that_were_measured() -> None:
    indicators = (ROOT / "docs" / "indicators.md").read_text()
    row = re.search(r"^\| independent votes \| (.+) \|$", indicators, re.MULTILINE)
    assert row
    worth = [float(cell) for cell in row[1].split(" | ")]
    expected = f"{min(worth):.1f} to {max(worth):.1f}"
    assert f"worth {expected} independent votes" in CONFLUENCE_RULES["votes"]
