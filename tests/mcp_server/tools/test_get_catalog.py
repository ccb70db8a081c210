from datetime import date
from functools import reduce
from operator import getitem

import pytest

from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.registry import INDICATORS
from compute.sources.files import FilesSource
from compute.universe import Universe, load_universe
from schemas.catalog import CatalogIndicator
from schemas.coverage import Coverage
from schemas.vocabulary import INDICATOR_IDS
from serving.freshness import list_timing_exceptions
from serving.json_text import to_json
from tests.support.bad_inputs import CATALOG, SIGNALS, STATE
from tests.support.example_market import (
    ASSETS,
    HOUR_MS,
    NOON,
    fill_full_universe,
    make_batch,
    make_coverage,
)
from tests.support.running_service import RunningService, run_service, served as served
from tests.support.small_market import write_bars

pytestmark = pytest.mark.clause("answers")

LOGGED = [id_ for id_ in INDICATOR_IDS if id_ != "perpkit"]
FOLLOWED = {"BTC", "ETH", "BNB", "SOL", "NVDA", "TSLA"}


def changed(published: Coverage, **assets: dict[str, object]) -> Coverage:
    return published.model_copy(
        update={
            "assets": tuple(
                asset.model_copy(update=assets.get(asset.ticker, {})) for asset in published.assets
            )
        }
    )


@pytest.fixture(scope="module")
def packaged() -> Universe:
    return load_universe()


@pytest.fixture(scope="module")
def full_files_source(packaged, tmp_path_factory) -> FilesSource:
    """A source with one hourly bar of each of the 251 tracked assets."""
    folder = tmp_path_factory.mktemp("bars")
    for asset in packaged.tracked_assets:
        write_bars(folder, asset.ticker, [(NOON // 1000 - 3780, 10.0, 11.0, 9.0, 10.5, 1.0)])
    return FilesSource(folder, packaged)


@pytest.fixture
async def whole(served_empty, packaged, full_files_source) -> RunningService:
    """The service with the coverage that compute publishes before its first run."""
    await HourlyPipeline.open(
        served_empty.market, full_files_source, packaged, INDICATORS, lambda: NOON
    )
    return served_empty


@pytest.mark.clause(
    "1.5",
    "1.6",
    "1.8",
    "1.17",
    "1.18",
    "1.19",
    "1.21",
    "2.7.3",
    "2.7.5",
    "2.7.19",
    "2.7.20",
    "2.7.21",
    "2.13.5",
    "4.2.2",
)
@pytest.mark.prove
async def test_a_full_source_gives_the_counts_of_the_specification(whole, transport):
    answer = await whole.fetch_answer(transport, CATALOG)
    counted = {name: answer["assets"][name] for name in ("total", "crypto", "equities_and_metals")}
    assert counted == {"total": 251, "crypto": 176, "equities_and_metals": 75}
    assert answer["timeframes"] == ["1h", "4h", "1d"]
    assert answer["tiers"]["universe"] == {
        "assets": 251,
        "timeframes": ["1h", "4h", "1d"],
        "indicators": LOGGED,
        "logged_combinations": 4518,
        "state_indicators": [*INDICATOR_IDS],
        "state_readings": 5271,
        "retention_days": 365,
    }


@pytest.mark.clause("1.23", "1.24", "1.25", "2.7.18", "2.7.24", "2.7.25", "2.13.5", "4.7.25")
@pytest.mark.prove
async def test_the_alert_engines_follow_six_assets_on_two_timeframes(whole, transport):
    answer = await whole.fetch_answer(transport, CATALOG)
    alerts = answer["tiers"]["alerts"]
    assert set(alerts.pop("tickers")) == FOLLOWED
    assert alerts.pop("note")
    assert alerts == {
        "timeframes": ["4h", "1d"],
        "indicators": [*INDICATOR_IDS],
        "engines": 6 * 2 * 7,
        "actions": ["LONG", "SHORT", "CLOSE"],
        "cooldown_candles": 20,
        "retention_days": 90,
    }
    rows = {row["ticker"]: row for row in answer["coverage"]["assets"]}
    assert {ticker for ticker, row in rows.items() if row["alerts"]} == FOLLOWED
    assert rows["BTC"] == {
        "ticker": "BTC",
        "asset_class": "crypto",
        "universe": ["1h", "4h", "1d"],
        "alerts": ["4h", "1d"],
    }


@pytest.mark.clause("2.7.1", "4.2.1")
@pytest.mark.prove
async def test_it_exists_before_the_first_compute_and_then_has_its_time(whole, transport):
    before = await whole.fetch_answer(transport, CATALOG)
    assert "as_of" not in before["meta"]
    assert before["generated_at"] == "2026-09-30T12:03:00.000Z"
    await whole.market.commit(make_batch(NOON + HOUR_MS, []))
    after = await whole.fetch_answer(transport, CATALOG)
    assert after["meta"]["as_of"] == "2026-09-30T13:03:00.000Z"
    assert {**after, "meta": None} == {**before, "meta": None}


@pytest.mark.clause("2.7.1")
async def test_a_recording_is_not_described_later_than_its_end(
    served_empty, packaged, full_files_source, transport
):
    await HourlyPipeline.open(
        served_empty.market, full_files_source, packaged, INDICATORS, lambda: NOON + 9 * HOUR_MS
    )
    answer = await served_empty.fetch_answer(transport, CATALOG)
    assert answer["generated_at"] == "2026-09-30T12:03:00.000Z"


@pytest.mark.clause("1.5", "2.7.3", "2.7.4", "2.7.18", "2.7.20", "2.7.24", "2.7.25", "4.2.2")
async def test_tracked_assets_are_listed_in_the_order_published_and_every_count_follows(
    served, transport
):
    answer = await served.fetch_answer(transport, CATALOG)
    every = ["1h", "4h", "1d"]
    covered = {"ETH": every, "BTC": every, "NVDA": every, "XAU": ["1d"], "DARK": []}
    assert [asset["ticker"] for asset in answer["assets"]["list"]] == [*covered]
    rows = [(row["ticker"], row["universe"], row["alerts"]) for row in answer["coverage"]["assets"]]
    assert rows == [(ticker, timeframes, []) for ticker, timeframes in covered.items()]
    eth = {"ticker": "ETH", "name": "Ethereum", "asset_class": "crypto"}
    assert answer["assets"]["list"][0] == eth
    assert answer["meta"].get("removed_assets", []) == ["MATIC"]
    assets, universe = answer["assets"], answer["tiers"]["universe"]
    assert (assets["total"], assets["crypto"], assets["equities_and_metals"]) == (5, 3, 2)
    counts = ("assets", "logged_combinations", "state_readings")
    assert [universe[name] for name in counts] == [4, 10 * 6, 10 * 7]
    alerts = answer["tiers"]["alerts"]
    assert (alerts["engines"], alerts["tickers"], alerts["timeframes"]) == (0, [], [])


@pytest.mark.clause("1.10", "1.17", "1.21", "2.7.20", "4.2.3")
async def test_state_has_readings_of_exactly_the_covered_assets(served, transport):
    catalog = await served.fetch_answer(transport, CATALOG)
    rows = catalog["coverage"]["assets"]
    state = await served.fetch_answer(transport, STATE)
    held = {
        asset["ticker"]: [*asset["signals"]["enzo"]]
        for asset in state["assets"]
        if asset["ticker"] not in state["meta"].get("removed_assets", [])
    }
    assert held == {row["ticker"]: row["universe"] for row in rows if row["universe"]}
    readings = [
        (asset["ticker"], key, timeframe)
        for asset in state["assets"]
        for key, cells in asset["signals"].items()
        for timeframe in cells
        if asset["ticker"] in held and key != "dexter"
    ]
    assert len(readings) == catalog["tiers"]["universe"]["state_readings"]
    assert len(readings) < state["counts"]["readings"]  # with dexter and MATIC


@pytest.mark.clause("2.7.20")
async def test_the_count_of_readings_includes_cells_that_have_none_yet(served_alone, transport):
    soon = changed(make_coverage(), DARK={"timeframes": ("1h", "4h", "1d")})
    await served_alone.market.publish_coverage(soon)
    tiers = (await served_alone.fetch_answer(transport, CATALOG))["tiers"]
    assert tiers["universe"]["state_readings"] == (10 + 3) * 7
    state = await served_alone.fetch_answer(transport, STATE)
    assert "DARK" not in {asset["ticker"] for asset in state["assets"]}


@pytest.mark.clause("2.7.18")
async def test_there_is_an_alert_engine_per_asset_timeframe_and_indicator(served_alone, transport):
    followed = changed(make_coverage(), BTC={"alerts": ("4h", "1d")}, XAU={"alerts": ("1d",)})
    await served_alone.market.publish_coverage(followed)
    alerts = (await served_alone.fetch_answer(transport, CATALOG))["tiers"]["alerts"]
    assert alerts["tickers"] == ["BTC", "XAU"]
    assert (alerts["timeframes"], alerts["engines"]) == (["4h", "1d"], 3 * 7)


@pytest.mark.clause("1.2")
@pytest.mark.parametrize("removed_on", [date(2020, 1, 1), date(2099, 1, 1)])
async def test_the_list_is_the_same_on_any_clock(served_alone, transport, removed_on):
    before = await served_alone.fetch_answer(transport, CATALOG)
    await served_alone.market.publish_coverage(
        changed(make_coverage(), MATIC={"removed_on": removed_on})
    )
    after = await served_alone.fetch_answer(transport, CATALOG)
    assert {**after, "meta": None} == {**before, "meta": None}


@pytest.mark.clause("4.2.2")
async def test_a_newly_published_coverage_is_seen_by_the_next_call(served_alone, transport):
    await served_alone.fetch_answer(transport, CATALOG)
    known = make_coverage()
    fewer = known.model_copy(update={"assets": ASSETS[:2], "indicators": known.indicators[:2]})
    await served_alone.market.publish_coverage(fewer)
    answer = await served_alone.fetch_answer(transport, CATALOG)
    assert (answer["assets"]["total"], answer["meta"].get("removed_assets", [])) == (2, [])
    ids = [*INDICATOR_IDS[:2]]
    universe = answer["tiers"]["universe"]
    assert [indicator["id"] for indicator in answer["indicators"]] == ids
    assert universe["indicators"] == universe["state_indicators"] == ids
    assert universe["logged_combinations"] == universe["state_readings"] == 2 * 3 * 2
    assert answer["tiers"]["alerts"]["indicators"] == ids
    assert answer["coverage"]["indicators_by_tier"] == {"universe": ids, "alerts": ids}


@pytest.mark.clause(
    "2.7.6", "2.7.7", "2.7.8", "2.7.10", "2.7.22", "2.7.23", "2.7.25", "4.7.24", "9.16"
)
async def test_the_catalog_says_which_feeds_and_endpoints_carry_an_indicator(served, transport):
    answer = await served.fetch_answer(transport, CATALOG)
    assert answer["coverage"]["indicators_by_tier"] == {
        "universe": LOGGED,
        "alerts": [*INDICATOR_IDS],
    }
    listed = {one["id"]: one for one in answer["indicators"]}
    assert list(listed) == [*INDICATOR_IDS]
    everywhere = {f"/api/v1/{name}" for name in ("state", "signals", "flips", "confluence")}
    for id_ in LOGGED:
        assert listed[id_]["available_in"] == ["universe", "alerts"]
        assert set(listed[id_]["appears_in"]) == everywhere
    assert listed["perpkit"]["available_in"] == ["alerts"]
    assert set(listed["perpkit"]["appears_in"]) == everywhere - {"/api/v1/flips"}
    assert listed["perpkit"]["name"] == "PerpKit"


@pytest.mark.clause("2.7.9", "2.7.11", "3.5.2", "4.2.2")
async def test_an_indicator_has_the_published_note_and_status(whole, transport):
    listed = (await whole.fetch_answer(transport, CATALOG))["indicators"]
    assert [one["note"] for one in listed] == [indicator.note for indicator in INDICATORS]
    assert {one["status"] for one in listed} == {"stable"}
    assert all(one["note"] for one in listed)


@pytest.mark.clause("2.7.9", "3.5.1", "3.5.2")
@pytest.mark.parametrize("status", ["stable", "experimental", "legacy"])
async def test_a_changed_status_of_an_indicator_is_served(served_alone, transport, status):
    known = make_coverage().indicators
    first = known[0].model_copy(update={"status": status})
    held = make_coverage().model_copy(update={"indicators": (first, *known[1:])})
    await served_alone.market.publish_coverage(held)
    listed = (await served_alone.fetch_answer(transport, CATALOG))["indicators"]
    assert [one["status"] for one in listed] == [status, *["stable"] * 6]


@pytest.mark.clause("2.7.12", "2.7.13", "2.13.7", "2.13.8", "3.5.1")
async def test_every_field_and_status_of_an_indicator_is_explained(served, transport):
    answer = await served.fetch_answer(transport, CATALOG)
    texts = {name: field.description for name, field in CatalogIndicator.model_fields.items()}
    assert answer["indicator_fields"] == texts
    assert texts.keys() == answer["indicators"][0].keys()
    assert min(map(len, texts.values())) >= 20
    assert answer["indicator_statuses"].keys() == {"stable", "experimental", "legacy"}


@pytest.mark.clause("2.4.7", "2.4.10", "2.7.14", "2.7.15", "2.7.16", "2.7.17", "9.19")
async def test_dexter_is_the_one_legacy_key_and_points_to_enzo(served, transport):
    (key,) = (await served.fetch_answer(transport, CATALOG))["legacy_indicator_keys"]
    assert "out of date" in key["note"]
    assert key == {
        "note": key["note"],
        "id": "dexter",
        "name": "Dexter",
        "status": "legacy",
        "alias_of": "enzo",
        "renamed_on": "2026-08-01",
        "appears_in": ["/api/v1/state", "/api/v1/confluence"],
    }


@pytest.mark.clause(
    "2.1.15", "2.7.25", "2.7.26", "2.13.5", "2.13.6", "3.3.1", "3.3.2", "3.5.1", "6.8"
)
@pytest.mark.parametrize(
    ("place", "words"),
    [
        (("cadence", "schedule"), "minute :03 UTC"),
        (("cadence", "1h"), "Every run."),
        (("cadence", "1h"), "half an hour"),
        (("cadence", "4h"), "00:03, 04:03 and so on every 4 hours"),
        (("cadence", "4h"), "two or three candles"),
        (("cadence", "1d"), "00:03"),
        (("cadence", "1d"), "trading day"),
        (("cadence", "publication"), "3 to 5 minutes"),
        (("indicator_statuses", "stable"), "only with a changelog entry"),
        (("indicator_statuses", "experimental"), "may change at any time"),
        (("indicator_statuses", "legacy"), "no longer updated"),
        (("coverage", "note"), "An empty universe list means that this deployment has no data"),
        (("coverage", "note"), "an empty alerts list means universe only"),
        (("tiers", "alerts", "note"), "BUY"),
        (("tiers", "alerts", "note"), "SELL"),
    ],
)
async def test_the_catalog_explains_cadence_statuses_coverage_and_actions(
    served, transport, place, words
):
    answer = await served.fetch_answer(transport, CATALOG)
    names = ("schedule", "1h", "4h", "1d", "publication", "recommended_poll_interval_s")
    assert [*answer["cadence"]] == [*names]
    assert answer["cadence"]["recommended_poll_interval_s"] == 900
    assert answer["tiers"]["alerts"]["actions"] == ["LONG", "SHORT", "CLOSE"]
    assert words in reduce(getitem, place, answer)


@pytest.mark.clause("1.30", "2.7.26", "2.13.9")
@pytest.mark.parametrize(
    ("traits", "expected"),
    [
        ({}, ""),
        (
            {"BTC": {"delay_s": 900}, "XAU": {"delay_s": 60}},
            "Bars of BTC, XAU arrive up to 15 minutes after their close, so their rows come that "
            "much later (meta.most_delay_seconds).",
        ),
        (
            {"BTC": {"has_off_hour_bars": True}},
            "Some recorded bars of BTC open off the hour, or daily ones off 00:00 UTC: such a bar "
            "counts as closed at the next full hour, or 00:00 UTC, after it ends.",
        ),
    ],
    ids=["punctual", "delayed", "off the hour"],
)
async def test_the_feed_and_the_catalog_name_the_assets_whose_rows_come_later(
    served_alone, transport, traits, expected
):
    await served_alone.market.publish_coverage(changed(make_coverage("live"), **traits))
    catalog = await served_alone.fetch_answer(transport, CATALOG)
    feed = await served_alone.fetch_answer(transport, SIGNALS)
    for text in (catalog["cadence"]["publication"], feed["meta"]["timing"]):
        assert "3 to 5 minutes" in text
        assert text.endswith(expected)
        assert "Bars of" in text or "recorded" in text or not traits


@pytest.mark.clause("1.30", "2.7.26")
def test_of_many_assets_whose_rows_come_later_five_are_named():
    tickers = [f"S{n}" for n in range(7)]
    coverage = make_coverage("live")
    first = coverage.assets[0]
    many = [first.model_copy(update={"ticker": t, "delay_s": 900}) for t in tickers]
    [sentence] = list_timing_exceptions(coverage.model_copy(update={"assets": tuple(many)}))
    assert sentence.startswith("Bars of S0, S1, S2, S3, S4 and 2 more arrive")


PARTLY = "data for 4 of the 5 assets"
DARK_MARKET = {asset.ticker: {"timeframes": ()} for asset in ASSETS}


@pytest.mark.clause("1.3", "2.7.2")
@pytest.mark.parametrize(
    ("published", "said"),
    [
        (make_coverage("simulated"), {"Simulated market data", PARTLY}),
        (make_coverage("recorded", NOON), {"Recorded market data, up to 2026-09-30", PARTLY}),
        (changed(make_coverage("live"), **DARK_MARKET), {"Nothing is covered"}),
        (changed(make_coverage("live"), DARK={"timeframes": ("1d",)}), set()),
    ],
    ids=["simulated", "recorded", "nothing", "live"],
)
async def test_the_note_names_the_source_and_the_gaps_of_coverage(
    served_alone, transport, published, said
):
    await served_alone.market.publish_coverage(published)
    answer = await served_alone.fetch_answer(transport, CATALOG)
    note, meta = answer["note"], answer["meta"]
    assert "not investment advice" in note
    parts = (
        "Simulated market data",
        "Recorded market data, up to 2026-09-30",
        "Nothing is covered",
        PARTLY,
    )
    assert {part for part in parts if part in note} == said
    assert ("not covered" in note) == (PARTLY in said)
    assert meta["source"] == published.source
    assert meta.get("simulated", False) == (published.source == "simulated")


@pytest.mark.clause("2.7.4", "2.7.24")
async def test_only_given_tickers_are_listed_but_counts_cover_all(served, transport):
    whole = await served.fetch_answer(transport, CATALOG)
    requested = await served.fetch_answer(transport, CATALOG, ticker="xau, BTC")
    for part in (requested["assets"]["list"], requested["coverage"]["assets"]):
        assert [asset["ticker"] for asset in part] == ["BTC", "XAU"]
    assert "Only XAU, BTC listed" in requested["note"]
    for answer in (whole, requested):
        del answer["assets"]["list"], answer["coverage"]["assets"], answer["note"]
    assert requested == whole


@pytest.mark.clause("2.7.4", "2.7.24")
async def test_a_removed_ticker_is_not_listed_but_noted_with_its_successor(served, transport):
    requested = await served.fetch_answer(transport, CATALOG, ticker="MATIC")
    assert requested["assets"]["list"] == requested["coverage"]["assets"] == []
    assert "MATIC was removed on 2026-09-27 and continues as POL" in requested["note"]


@pytest.mark.clause("4.2.4")
@pytest.mark.prove
async def test_the_view_tickers_has_the_names_and_classes_of_all_assets(tmp_path, transport):
    async with run_service(tmp_path) as served:
        await fill_full_universe(served.market)
        whole = await served.fetch_answer(transport, CATALOG)
        short = await served.fetch_answer(transport, CATALOG, view="tickers")
    listed = {
        (*entry.split(" ", 1), asset_class)
        for asset_class, entries in short["tickers"].items()
        for entry in entries.split(";")
    }
    assert listed == {tuple(asset.values()) for asset in whole["assets"]["list"]}
    assert len(listed) == 251
    assert len(to_json(short)) < 4_000
    followed = [one["ticker"] for one in whole["coverage"]["assets"] if one["alerts"]]
    assert (short["note"], short["assets"], short["indicators"]) == (
        f"All listed are covered. With alerts: {', '.join(followed)}.",
        whole["assets"] | {"list": []},
        [],
    )
    assert short.keys() == {
        *("generated_at", "note", "assets", "tickers", "timeframes", "indicators", "meta")
    }


@pytest.mark.clause("4.2.4")
async def test_the_view_tickers_has_only_requested_ones(served, transport):
    short = await served.fetch_answer(transport, CATALOG, view="tickers", ticker="btc,XAU")
    assert short["tickers"] == {"crypto": "BTC Bitcoin", "metal": "XAU Gold"}
    assert "Only BTC, XAU listed; every count is of all assets." in short["note"]
    one = await served.fetch_answer(transport, CATALOG, view="tickers", ticker="BTC")
    assert len(to_json(one)) < 350
