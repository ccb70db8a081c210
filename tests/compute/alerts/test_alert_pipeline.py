"""Alerts through the whole pipeline, compared with the slow model, over rebuilds and late bars."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from compute.audit.audit import audit_market
from compute.bars import DAY_S, HOUR_S
from compute.indicators.contract import NO_READING, Bar
from compute.indicators.registry import INDICATORS
from compute.sources.files import FilesSource
from compute.universe import Session, Universe, load_universe
from schemas.vocabulary import TIMEFRAME_DURATIONS_S, TIMEFRAMES, Timeframe
from tests.compute.test_stepper import NEWER
from tests.doubles.scripted_source import (
    ALTERNATING,
    AcceleratedClock,
    ScriptedSource,
    march_s,
    run_loop_until,
)
from tests.support import alert_model as alert_model
from tests.support.alert_model import ModelBar
from tests.support.bar_sets import (
    Series,
    copy_newest_rows,
    copy_recorded,
    generate_folder,
    load_series,
    step_bar,
)
from tests.support.small_market import (
    ALERT_TICKERS,
    DENSE,
    END,
    Content,
    audit_store,
    open_store,
    replay_bars,
)

pytestmark = pytest.mark.clause("indicators", "steps")

CREATED_AT, TICKER, INDICATOR, TIMEFRAME, CLOSE, EPOCH, ACTION, PRICE = range(8)
ENGINES = ("4h", "1d")
Rows = list[tuple[Any, ...]]


def read_separately(label: str, series: Series) -> dict[str, list[ModelBar]]:
    """Return a series with each indicator's readings, each bar stepped at its close."""
    columns = [series[field] for field in Bar._fields]
    prices = zip(*(series[name].tolist() for name in ("high", "low", "close")), strict=True)
    rows = list(zip(series["close_time"].tolist(), prices, strict=True))
    found = {}
    for indicator in INDICATORS:
        carry, bars = indicator.start(1), []
        for place, (end, (high, low, close)) in enumerate(rows):
            bar = Bar(*(column[place : place + 1] for column in columns))
            carry, reading = step_bar(indicator, carry, bar)
            read = None if reading[0] == NO_READING else int(reading[0])
            bars.append(ModelBar(end, end, high, low, close, read))
        found[indicator.id] = bars
    return found


def modelled(folder: Path, end: int, chosen: Iterable[str]) -> Rows:
    """Return what the model publishes of a folder's series, in order, without `created_at`."""
    chosen, outs = set(chosen), {}
    series = {tuple(label.split()): s for label, s in load_series(folder)}
    for timeframe in TIMEFRAMES:
        for ticker in sorted(ticker for ticker, its in series if its == timeframe):
            if ticker in chosen and timeframe in ENGINES:
                held = series[ticker, timeframe]
                cut = {name: column[held["close_time"] <= end] for name, column in held.items()}
                for indicator, bars in read_separately(ticker, cut).items():
                    out = alert_model.run_publisher(timeframe, bars, end)
                    outs[ticker, timeframe, indicator] = out
    return alert_model.merge_published(outs)


def to_model_form(rows: Rows) -> Rows:
    """Return alerts in the model's form: hours instead of `created_at`, without epochs."""
    return [
        (
            *(row[TICKER], row[TIMEFRAME], row[INDICATOR]),
            *(row[CREATED_AT] // 1000 - 180, row[CLOSE], row[ACTION], row[PRICE]),
        )
        for row in rows
    ]


@pytest.mark.clause("1.24", "1.25", "2.1.15", "2.1.17", "3.3.1", "4.7.25", "8.41", "8.42")
def test_the_small_market_publishes_what_the_model_does(whole: Content, bars_folder: Path):
    assert {row[ACTION] for row in whole["alerts"]} == {"LONG", "SHORT", "CLOSE"}
    assert {row[INDICATOR] for row in whole["alerts"]} == {indicator.id for indicator in INDICATORS}
    assert len(whole["alerts"]) > 50
    expected = modelled(bars_folder, END, {"BTC", "IBM", "XAU"})
    assert to_model_form([row for row in whole["alerts"] if row[TICKER] != "MATIC"]) == expected
    assert {row[TICKER] for row in whole["alerts"]} == {"IBM", "MATIC", "XAU"}  # BTC is too young


def read_last(folder: Path, end: int) -> set[tuple[str, str, str, int]]:
    """Return the last reading of each series, stepped by itself, one bar after another."""
    found = set()
    for label, series in load_series(folder):
        cut = {name: column[series["close_time"] <= end] for name, column in series.items()}
        for indicator, bars in read_separately(label, cut).items():
            if bars and bars[-1].reading is not None:
                found.add((*label.split(), indicator, bars[-1].reading))
    return found


@pytest.mark.prove
@pytest.mark.parametrize("name", ["generated", "recorded"])
async def test_hard_bars_audit_clean_read_as_stepped_alone_and_publish_what_the_model_does(
    name: str, tmp_path: Path
):
    universe, folder = load_universe(), tmp_path / "bars"
    if name == "recorded":
        copy_recorded(folder)
    else:
        files = ("AAPL_1d.csv", "ETH_1h.csv", "ETH_funding.csv", "NVDA_1h.csv")
        copy_newest_rows(generate_folder(), folder, files, 900)
    end = FilesSource(folder, universe).ends_at
    assert end is not None
    held = await replay_bars(tmp_path / "m.db", folder, universe, end)
    expected = modelled(folder, end, {a.ticker for a in universe.assets if a.alerts})
    assert len(expected) > 10
    assert to_model_form(held["alerts"]) == expected
    computed = {row for row in held["readings"] if row[2] != "dexter"}
    assert len(computed) > 20
    assert computed == read_last(folder, end)
    report = await audit_store(tmp_path / "m.db", universe)
    assert (report.findings, report.not_verifiable) == ([], {})


@pytest.mark.clause("4.7.21")
def test_changes_and_alerts_share_one_sequence_and_changes_come_first_in_an_hour(whole: Content):
    rows = sorted(
        [(row[0], "change") for row in whole["changes"]]
        + [(row[0], "alert") for row in whole["alerts"]]
    )
    assert len({at for at, _ in rows}) == len(rows)
    by_hour: dict[int, list[str]] = {}
    for created_at, kind in rows:
        by_hour.setdefault(created_at // 3_600_000, []).append(kind)
    for kinds in by_hour.values():
        assert kinds == sorted(kinds, reverse=True)
    assert any(set(kinds) == {"alert", "change"} for kinds in by_hour.values())


def check_cooldown(alerts: Rows) -> None:
    """Assert that an engine publishes an action at most once in 20 candles, by `created_at`."""
    last: dict[tuple[Any, ...], int] = {}
    for row in alerts:
        key = (row[TICKER], row[INDICATOR], row[TIMEFRAME], row[ACTION])
        gap_ms = row[CREATED_AT] - last.get(key, -(10**15))
        assert gap_ms >= 20 * TIMEFRAME_DURATIONS_S[row[TIMEFRAME]] * 1000, row
        last[key] = row[CREATED_AT]


@pytest.mark.prove
async def test_a_store_that_had_no_engines_publishes_from_the_next_bar_on(
    tmp_path: Path, bars_folder: Path, universe: Universe, whole: Content
):
    path, joins = tmp_path / "m.db", DENSE + 8 * DAY_S
    before = await replay_bars(path, bars_folder, replace_alerts(universe, ()), joins)
    assert before["alerts"] == []
    assert (await audit_store(path, universe)).findings == []
    assert not [row for row in before["carries"] if row[2].startswith("alerts.")]
    after = await replay_bars(path, bars_folder, universe)
    epochs = [row for row in after["epochs"] if row[2].startswith("alerts.")]
    new = [row for row in epochs if row[7] == "new to this store"]
    stepped = {row[:2]: row[6] + 1 for row in before["carries"]}
    assert {row[:2]: row[6] for row in new} == {
        place: at
        for place, at in stepped.items()
        if place[0] in ALERT_TICKERS and place[1] in ENGINES
    }
    assert {row[3] for row in epochs} == {0}
    assert after["alerts"]
    assert min(row[CLOSE] for row in after["alerts"]) > joins
    check_cooldown(after["alerts"])
    # The engines are in the state of an uninterrupted run, so the same actions fire.
    assert {row[1:] for row in after["alerts"]} & {row[1:] for row in whole["alerts"]}
    assert (await audit_store(path, universe)).findings == []


def replace_alerts(universe: Universe, followed: Iterable[str]) -> Universe:
    assets = tuple(
        asset.model_copy(update={"alerts": asset.ticker in followed}) for asset in universe.assets
    )
    return Universe(assets=assets, renamed_on=universe.renamed_on)


@pytest.mark.prove
async def test_engines_that_were_not_followed_for_a_while_restart_with_their_cooldown(
    tmp_path: Path, bars_folder: Path, universe: Universe
):
    path = tmp_path / "m.db"
    others = replace_alerts(universe, {"IBM"})
    before = await replay_bars(path, bars_folder, universe, DENSE + 4 * DAY_S)
    await replay_bars(path, bars_folder, others, DENSE + 6 * DAY_S)
    after = await replay_bars(path, bars_folder, universe)
    assert after["alerts"][: len(before["alerts"])] == before["alerts"]
    again = [row for row in after["epochs"] if row[7] == "was not followed for a while"]
    assert {row[0] for row in again} >= {"XAU"}
    assert {row[3] for row in again} == {1}
    assert "IBM" not in {row[0] for row in again}
    rows = {row[TICKER] for row in after["alerts"] if row[EPOCH] == 1}
    assert rows
    check_cooldown(after["alerts"])


@pytest.mark.prove
async def test_a_raised_version_rebuilds_its_engines_and_keeps_the_cooldown_of_published_alerts(
    tmp_path: Path, bars_folder: Path, universe: Universe
):
    path, raised = tmp_path / "m.db", DENSE - 10 * DAY_S
    before = await replay_bars(path, bars_folder, universe, raised)
    assert [row for row in before["alerts"] if row[INDICATOR] == "enzo"]
    after = await replay_bars(path, bars_folder, universe, END, NEWER)
    assert after["alerts"][: len(before["alerts"])] == before["alerts"]
    new = [row for row in after["alerts"] if row[INDICATOR] == "enzo" and row[EPOCH] == 1]
    assert new
    assert min(row[CLOSE] for row in new) > raised
    check_cooldown(after["alerts"])
    report = await audit_store(path, universe, NEWER)
    assert report.findings == []
    foreign = report.not_verifiable["alerts of enzo: another version's"]
    assert foreign == len([row for row in before["alerts"] if row[INDICATOR] == "enzo"])


BEGINS = march_s("00:00", day=2)  # a Monday


def script(clock: AcceleratedClock, **sessions: Session) -> ScriptedSource:
    source = ScriptedSource(clock, sessions, BEGINS)
    source.universe = replace_alerts(source.universe, sessions)
    return source


def expected(
    source: ScriptedSource,
    ticker: str,
    timeframe: Timeframe,
    end: int,
    late: Mapping[int, int] = {},
    find_time: Callable[[int], int] = alert_model.find_nominal_time,
) -> list[tuple[Any, ...]]:
    """Model the metronome's engine; `late` has the later hours at which some bars step."""
    period, buckets = TIMEFRAME_DURATIONS_S[timeframe], dict[int, list[float]]()
    for close in source.closes(ticker, -1, end):
        price = 100.0 + close // HOUR_S * 7919 % 100
        buckets.setdefault(-(-close // period) * period, []).append(price)
    bars = [
        ModelBar(late.get(at, at), at, max(prices), min(prices), prices[-1], 1 - 2 * (turn % 2))
        for turn, (at, prices) in enumerate(buckets.items())
        if at <= end
    ]
    return [tuple(out) for out in alert_model.run_publisher(timeframe, bars, end, find_time)]


async def published(path: Path, ticker: str, timeframe: Timeframe) -> list[tuple[Any, ...]]:
    """Return the stored alerts of one engine, with the hours at which they were written."""
    async with open_store(path) as store:
        rows = [row async for row in store.alerts()]
    return [
        (row.created_at // 3_600_000 * HOUR_S, row.close_time, row.action, row.price)
        for row in rows
        if (row.ticker, row.timeframe) == (ticker, timeframe)
    ]


async def clean(path: Path, source: ScriptedSource) -> None:
    async with open_store(path) as store:
        report = await audit_market(store, source.universe, ALTERNATING)
    assert report.findings == []
    assert report.checked["alerts"] > 0


@pytest.mark.clause("3.3.6", "6.7")
@pytest.mark.parametrize("stops", [[], [march_s("16:30", day=7), march_s("05:30", day=8)]])
@pytest.mark.sampled(2)
@pytest.mark.prove
async def test_a_held_alert_goes_out_at_its_hour_although_no_bar_comes(
    stops: list[int], tmp_path: Path
):
    path, clock, end = (
        tmp_path / "m.db",
        AcceleratedClock(march_s("22:20", day=5), step_s=900),
        march_s("03:00", day=11),
    )
    source = script(clock, NVDA="XNAS")
    for stop in [*stops, end]:
        await run_loop_until(path, source, clock, stop)
    found = await published(path, "NVDA", "4h")
    assert found == expected(source, "NVDA", "4h", march_s("02:00", day=11))
    hours = {hour for hour, *_ in found}
    closes = {close for _, close, *_ in found}
    weekend = [
        hour for hour in hours - closes if march_s("04:00", day=7) < hour < march_s("12:00", day=9)
    ]
    assert weekend
    await clean(path, source)


@pytest.mark.parametrize("step_s", [30, pytest.param(10, marks=pytest.mark.prove)])
@pytest.mark.prove
async def test_a_late_bar_fires_in_the_run_that_steps_it(tmp_path: Path, step_s: int):
    path, clock, end = (
        tmp_path / "m.db",
        AcceleratedClock(march_s("10:20", day=3), step_s),
        march_s("01:30", day=8),
    )
    source = script(clock, BTC="24x7", ETH="24x7")
    within, beyond = march_s("12:00", day=3), march_s("16:00", day=3)
    source.delays |= {("ETH", within): 230, ("ETH", beyond): 900}
    await run_loop_until(path, source, clock, end)
    whole = march_s("01:00", day=8)
    assert await published(path, "BTC", "4h") == expected(source, "BTC", "4h", whole)
    late = {beyond: beyond + 4 * HOUR_S}
    assert await published(path, "ETH", "4h") == expected(source, "ETH", "4h", whole, late)
    assert await published(path, "ETH", "1d") == expected(source, "ETH", "1d", whole)
    await clean(path, source)


@pytest.mark.clause("3.3.10")
async def test_alerts_of_one_run_are_milliseconds_apart_even_if_they_fired_on_different_candles(
    tmp_path: Path,
):
    path, clock = tmp_path / "m.db", AcceleratedClock(march_s("13:20", day=3), step_s=60)
    source = ScriptedSource(clock, {"ETH": "24x7"}, march_s("12:00", day=3))
    source.universe = replace_alerts(source.universe, {"ETH"})
    source.delays["ETH", march_s("16:00", day=3)] = 900  # so both first bars are stepped at 20:03
    await run_loop_until(path, source, clock, march_s("20:30", day=3))
    async with open_store(path) as store:
        older, newer = [row async for row in store.alerts()]
    assert (older.close_time, newer.close_time) == (
        march_s("16:00", day=3),
        march_s("20:00", day=3),
    )
    run = march_s("20:03", day=3) * 1000
    assert run < older.created_at < newer.created_at < run + 10


@pytest.mark.prove
async def test_a_catch_up_measures_cooldowns_from_the_time_at_which_it_writes(tmp_path: Path):
    path, clock = tmp_path / "m.db", AcceleratedClock(march_s("10:20", day=3), step_s=900)
    source = script(clock, BTC="24x7", NVDA="XNAS")
    await run_loop_until(path, source, clock, march_s("12:30", day=3))
    clock.now = march_s("05:40", day=14) * 1000
    await run_loop_until(path, source, clock, march_s("06:30", day=14))
    async with open_store(path) as store:
        rows = [row async for row in store.alerts()]

    def find_time(hour: int) -> int:
        if hour <= march_s("10:00", day=3):
            return alert_model.find_nominal_time(hour)
        # The clock moves by quarters of an hour, and at 05:40 the catch-up begins.
        is_live = hour <= march_s("12:00", day=3) or hour > march_s("05:00", day=14)
        return (hour + 900 if is_live else march_s("05:40", day=14)) * 1000

    for ticker in ("BTC", "NVDA"):
        wanted = expected(source, ticker, "4h", march_s("06:00", day=14), find_time=find_time)
        own = [row for row in rows if (row.ticker, row.timeframe) == (ticker, "4h")]
        own_alerts = [(row.close_time, row.action, row.price) for row in own]
        assert own_alerts == [out[1:] for out in wanted]
    await clean(path, source)
