"""The published coverage, and the assets of the last one that another universe file drops."""

from collections.abc import Mapping
from datetime import date, datetime
from pathlib import Path

import pytest

from compute.coverage import add_dropped_assets, build_coverage
from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.registry import INDICATORS
from compute.schedule import to_market_ms
from compute.sources.files import FilesSource
from compute.universe import Asset, Universe
from schemas.coverage import Coverage, CoveredAsset
from schemas.vocabulary import TIMEFRAMES, format_instant
from tests.support.example_market import make_batch, make_change
from tests.support.example_market import make_coverage as published
from tests.support.small_market import END, START, list_opens, make_bars, open_store, write_bars

pytestmark = pytest.mark.clause("sources")

DAY = date(2026, 9, 30)


def asset(ticker: str, *, alerts: bool = False, removed_on: date | None = None) -> Asset:
    return Asset(
        ticker=ticker,
        name=f"Name of {ticker}",
        asset_class="crypto",
        session="24x7",
        symbol=ticker,
        venue="made up",
        added_on=date(2024, 1, 1),
        removed_on=removed_on,
        alerts=alerts,
    )


def universe_of(*assets: Asset) -> Universe:
    return Universe(assets=assets, renamed_on=date(2024, 6, 1))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """BTC by the hour, IBM by the day."""
    bars = tmp_path / "bars"
    bars.mkdir()
    write_bars(bars, "BTC", make_bars("BTC", list_opens(START, START + 3 * 3600)))
    write_bars(bars, "IBM", make_bars("IBM", list_opens(START, START + 86_400, 24)), "1d")
    return bars


def covered(*tickers: str, removed: Mapping[str, date] = {}) -> Coverage:
    assets = [
        CoveredAsset(
            ticker=ticker,
            name=ticker,
            asset_class="crypto",
            timeframes=TIMEFRAMES,
            alerts=("4h", "1d"),
            removed_on=removed.get(ticker),
        )
        for ticker in tickers
    ]
    return published().model_copy(update={"assets": tuple(assets)})


def by_ticker(held: Coverage) -> dict[str, CoveredAsset]:
    return {one.ticker: one for one in held.assets}


@pytest.mark.parametrize(
    ("session", "timeframe", "last_close", "outdated_from"),
    [
        ("24x7", "1h", "2013-05-03T10:00", "2013-05-03T11:00"),
        ("24x7", "1d", "2013-05-03T00:00", "2013-05-04T00:00"),
        # A Friday: New York trades until 20:00 UTC, and from 13:30 on Monday.
        ("XNYS", "1h", "2013-05-03T19:00", "2013-05-03T20:00"),
        ("XNYS", "1h", "2013-05-03T20:00", "2013-05-06T14:00"),
        ("XNYS", "half past", "2013-05-03T21:00", "2013-05-06T14:00"),
        ("XNYS", "1d", "2013-05-04T00:00", "2013-05-07T00:00"),
    ],
)
def test_a_recorded_asset_is_outdated_from_the_next_close_of_its_session(
    tmp_path, session, timeframe, last_close, outdated_from
):
    hours = {"1d": 24}.get(timeframe, 1)
    last = int(datetime.fromisoformat(f"{last_close}+00:00").timestamp())
    # The day's last bar, from 15:30 to 16:00 in New York, counts as closed at 17:00.
    early_s = 1800 if timeframe == "half past" else 0
    rows = make_bars("BTC", list_opens(last - early_s - 3 * hours * 3600, last, hours)[:3])
    write_bars(tmp_path, "BTC", rows, "1d" if timeframe == "1d" else "1h")
    known = universe_of(asset("BTC").model_copy(update={"session": session}), asset("ETH"))
    held = by_ticker(build_coverage(known, FilesSource(tmp_path, known), INDICATORS, 5, 7))
    assert held["BTC"].last_close == last * 1000
    assert format_instant(held["BTC"].outdated_from) == f"{outdated_from}:00.000Z"
    assert (held["ETH"].last_close, held["ETH"].outdated_from) == (None, None)


@pytest.mark.clause("1.2", "1.17")
def test_the_timeframes_of_an_asset_follow_from_its_bars(folder: Path):
    known = universe_of(asset("BTC"), asset("IBM"), asset("ETH"))
    held = build_coverage(known, FilesSource(folder, known), INDICATORS, 5, 7)
    assert {one.ticker: one.timeframes for one in held.assets} == {
        "BTC": ("1h", "4h", "1d"),
        "IBM": ("1d",),
        "ETH": (),
    }
    assert (held.source, held.published_at, held.recorded_until) == ("recorded", 5, 7)


@pytest.mark.clause("1.23", "1.24")
def test_alert_engines_follow_chosen_assets_on_four_hours_and_a_day(folder: Path):
    chosen = [asset("IBM", alerts=True), asset("ETH", alerts=True)]
    known = universe_of(asset("BTC", alerts=True), *chosen)
    held = by_ticker(build_coverage(known, FilesSource(folder, known), INDICATORS, 5, 7))
    assert [held[t].alerts for t in ("BTC", "IBM", "ETH")] == [("4h", "1d"), ("1d",), ()]
    plain = universe_of(asset("BTC"), asset("IBM"))
    assert not any(
        one.alerts
        for one in build_coverage(plain, FilesSource(folder, plain), INDICATORS, 5, 7).assets
    )


@pytest.mark.clause("1.18")
def test_every_indicator_is_covered_and_all_but_perpkit_logged(folder: Path):
    known = universe_of(asset("BTC"), asset("IBM"))
    held = build_coverage(known, FilesSource(folder, known), INDICATORS, 5, 7)
    assert [one.id for one in held.indicators if not one.logged] == ["perpkit"]
    assert [(one.name, one.note) for one in held.indicators] == [
        (indicator.name, indicator.note) for indicator in INDICATORS
    ]


EARLIER, LATER = date(2026, 1, 1), date(2026, 12, 31)


@pytest.mark.parametrize(
    ("old", "removed_on"),
    [
        (None, None),
        (covered("BTC", "DOGE"), DAY),
        # Dropped, or announced to be removed, before that day or after it.
        (covered("BTC", "DOGE", removed={"DOGE": EARLIER}), EARLIER),
        (covered("BTC", "DOGE", removed={"DOGE": LATER}), DAY),
    ],
)
def test_a_dropped_asset_is_removed_from_that_day_on_at_the_latest_and_covers_nothing(
    old: Coverage | None, removed_on: date | None
):
    held = add_dropped_assets(covered("BTC"), old, DAY)
    assert [one.ticker for one in held.tracked] == ["BTC"]
    assert by_ticker(held)["BTC"] == by_ticker(covered("BTC"))["BTC"]
    dropped = [(one.removed_on, one.timeframes, one.alerts, one.name) for one in held.assets[1:]]
    assert dropped == ([] if old is None else [(removed_on, (), (), "DOGE")])


def test_an_asset_that_returns_is_tracked_as_if_it_had_never_left():
    both = covered("BTC", "DOGE")
    without = add_dropped_assets(covered("BTC"), both, date(2026, 1, 1))
    assert add_dropped_assets(both, without, DAY) == both


@pytest.mark.clause("1.2")
async def test_a_store_follows_the_universe_file_of_each_start(tmp_path: Path, folder: Path):
    """An asset is dropped on the day of the market clock, not of the wall clock."""
    some, all_ = [asset("BTC"), asset("IBM")], [asset("BTC"), asset("IBM"), asset("DOGE")]
    async with open_store(tmp_path / "market.db") as store:

        async def started_with(*assets: Asset) -> dict[str, date | None]:
            known = universe_of(*assets)
            await HourlyPipeline.open(
                store, FilesSource(folder, known), known, INDICATORS, lambda: to_market_ms(END)
            )
            held = (await store.snapshot()).coverage
            assert held is not None
            return {one.ticker: one.removed_on for one in held.assets}

        assert await started_with(*all_) == {"BTC": None, "IBM": None, "DOGE": None}
        at = to_market_ms(START)
        await store.commit(make_batch(at, [make_change(at, "DOGE", "enzo", "1h", 1)]))
        dropped = {"BTC": None, "IBM": None, "DOGE": date(2024, 1, 3)}
        assert await started_with(*some) == dropped
        await store.commit(make_batch(at + 40 * 86_400_000, []))
        assert await started_with(*some) == dropped
        assert await started_with(*all_) == {"BTC": None, "IBM": None, "DOGE": None}


def test_recorded_assets_with_bars_off_the_hour_are_marked(tmp_path: Path):
    write_bars(tmp_path, "BTC", make_bars("BTC", list_opens(START, START + 9 * 3600)))
    opening = START // 86_400 * 86_400 + 14 * 3600
    off_hour = [opening, opening + 3600, opening + 2 * 3600 + 1800]
    write_bars(tmp_path, "NVDA", make_bars("NVDA", off_hour))
    write_bars(tmp_path, "IBM", make_bars("IBM", list_opens(START + 1800, END, 24)), "1d")
    universe = universe_of(asset("BTC"), asset("IBM"), asset("NVDA"), asset("TSLA"))
    source = FilesSource(tmp_path, universe)
    made = build_coverage(universe, source, INDICATORS, 0, to_market_ms(END))
    assert made.off_hour_tickers == ("IBM", "NVDA")
    assert Coverage.model_validate_json(made.model_dump_json()) == made
