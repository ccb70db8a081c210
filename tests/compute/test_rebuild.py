"""A restated history (a split): a new revision of bars, rebuilt carries, no row changed."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from compute import hourly_pipeline as runs_module
from compute.alerts.rules import PUBLISHER_STRUCT
from compute.audit.audit import Report, audit_market
from compute.bars import DAY_S, HOUR_S, Funding
from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.contract import Bar, Carry, Indicator, Readings, Values
from compute.indicators.registry import INDICATORS
from compute.schedule import to_market_ms
from compute.sources.source import FetchResult
from schemas.vocabulary import Timeframe
from store.market_rows import Batch
from store.sql.market_store import MarketStore
from store.store_errors import StoreError
from tests.compute.audit.test_audit import alter
from tests.compute.test_executor import open_copying_executor
from tests.doubles.scripted_source import (
    ALTERNATING,
    AcceleratedClock,
    ScriptedSource,
    check_store_file,
    list_hours,
    march_s,
    run_loop_until,
)
from tests.support.row_builders import list_changes, to_rows
from tests.support.small_market import Content, load_content, load_past, open_store, select_tickers
from tests.support.store_homes import open_and_close, open_market_as

pytestmark = pytest.mark.clause("live")

BEGINS = march_s("00:00", day=2)
STARTS, SPLIT, ENDS = march_s("06:00"), march_s("10:00"), march_s("13:00")
HOURS = list_hours("06:00", "13:00")


class High:
    """Reads bullish once a price was above 150, which none is after a split; adds up funding."""

    id = "llnr"
    name = "High"
    version = 1
    note = "Bullish once a price was above 150."

    def start(self, assets: int) -> Carry:
        return {"high": np.zeros(assets), "paid": np.zeros(assets)}

    def advance(self, carry: Carry, bars: Bar) -> Values:
        return {}

    def step(self, carry: Carry, bars: Bar) -> tuple[Carry, Readings]:
        highs = np.maximum.accumulate(np.vstack([carry["high"], bars.high]))[1:]
        carry["high"] = highs[-1]
        paid = np.vstack([carry["paid"], np.nan_to_num(bars.funding)])
        carry["paid"] = np.cumsum(paid, axis=0)[-1]
        return carry, np.where(highs > 150, 1, -1).astype(np.int8)


WATCHED: tuple[Indicator, ...] = (*ALTERNATING, High())


class Script(ScriptedSource):
    """A scripted market with its clock."""

    def __init__(self, *tickers: str, begins_at: int = BEGINS) -> None:
        self.time = AcceleratedClock(to_market_ms(STARTS) // 1000)
        super().__init__(self.time, dict.fromkeys(tickers or ("BTC", "ETH"), "24x7"), begins_at)

    def split(self, *tickers: str, when: int = SPLIT, ratio: int = 4) -> "Script":
        for ticker in tickers:
            self.splits.setdefault(ticker, []).append((when, ratio))
        return self


class Paying(Script):
    """Settles a rate every hour, and alert engines follow it."""

    def __init__(self, *tickers: str, begins_at: int = BEGINS) -> None:
        super().__init__(*tickers, begins_at=begins_at)
        assets = (asset.model_copy(update={"alerts": True}) for asset in self.universe.assets)
        self.universe = self.universe.model_copy(update={"assets": tuple(assets)})

    async def fetch(self, ticker: str, after: int, until: int) -> FetchResult:
        fetched = await super().fetch(ticker, after, until)
        since, last = max(after, self.begins_at) // HOUR_S, fetched.watermark // HOUR_S
        rates = [(n * HOUR_S, (n * 7919 % 100 - 50) / 1e5) for n in range(since + 1, last + 1)]
        return replace(fetched, funding=Funding.from_pairs(rates))


async def run(
    path: Path,
    source: Script,
    hours: Sequence[int] = HOURS,
    indicators: Sequence[Indicator] = WATCHED,
    kind: type[MarketStore] = MarketStore,
) -> Content:
    """Run some hours with a new loop; return the store's content."""
    source.time.now = to_market_ms(hours[0])
    async with open_and_close(open_market_as(kind, path)) as store:
        runs = await HourlyPipeline.open(store, source, source.universe, indicators, source.time)
        for hour in hours:
            source.time.now = to_market_ms(hour)
            await runs.run_until(hour)
        return await load_content(store)


async def audited(path: Path, source: Script, indicators: Sequence[Indicator] = WATCHED) -> Report:
    async with open_store(path) as store:
        return await audit_market(store, source.universe, indicators)


def falls(held: Content, ticker: str, timeframe: Timeframe) -> list[tuple[int, int]]:
    """Return the bars and epochs in which the reading of the highest price fell."""
    return [
        (row[4], row[5])
        for row in held["changes"]
        if row[1:4] == (ticker, "llnr", timeframe) and row[6:8] == (1, -1)
    ]


def remembered(held: Content) -> list[tuple[object, ...]]:
    """Return the carries of indicators and engines without epochs and publishers."""
    size = PUBLISHER_STRUCT.size
    return [
        (*row[:5], row[6], row[7][:-size] if row[2].startswith("alerts.") else row[7])
        for row in held["carries"]
    ]


@pytest.mark.prove
async def test_a_reading_that_moves_by_a_split_is_logged_at_the_next_run(tmp_path: Path):
    source = Script().split("BTC")
    held = await run(tmp_path / "m.db", source)
    assert falls(held, "BTC", "1h") == [(SPLIT, 1)]
    assert falls(held, "BTC", "4h") == [(march_s("12:00"), 1)]
    assert falls(held, "BTC", "1d") == falls(held, "ETH", "1h") == []
    written = {row[4]: row[0] for row in held["changes"] if row[1:4] == ("BTC", "llnr", "1h")}
    assert written[SPLIT] // 1000 == to_market_ms(SPLIT) // 1000
    assert (await audited(tmp_path / "m.db", source)).findings == []


async def test_a_split_rebuilds_the_carries_and_touches_no_published_row(tmp_path: Path):
    source = Script().split("BTC")
    path = tmp_path / "m.db"
    before = await run(path, source, list_hours("06:00", "09:00"))
    after = await run(path, source, list_hours("10:00", "13:00"))
    assert after["changes"][: len(before["changes"])] == before["changes"]
    always = await run(tmp_path / "always.db", Script().split("BTC", when=BEGINS))
    assert remembered(after) == remembered(always)
    assert after["bars"] == always["bars"]
    unsplit = await run(tmp_path / "unsplit.db", Script())
    assert select_tickers(after, ["ETH"]) == select_tickers(unsplit, ["ETH"])
    epochs = [row for row in after["epochs"] if row[3] == 1]
    closes = {row[:3]: row[6] for row in before["carries"] if row[0] == "BTC"}
    assert {row[:3]: row[6] - 1 for row in epochs} == closes
    assert {(row[5], row[7]) for row in epochs} == {(1, "split 4:1")}
    assert {row[5] for row in after["epochs"] if row[3] == 0} == {0}


@pytest.mark.prove
async def test_superseded_bars_stay_as_they_were(tmp_path: Path):
    path, source = (
        tmp_path / "m.db",
        Script().split("BTC", "ETH").split("BTC", when=march_s("12:00")),
    )
    before = await run(path, source, list_hours("06:00", "09:00"))
    after = await run(path, source, list_hours("10:00", "13:00"))
    async with open_store(path) as store:
        assert await store.revisions() == {"BTC": 2, "ETH": 1}
        old = [tuple(row) for row in to_rows(await store.bars(revision=0))]
    assert old == before["bars"]
    closes = {row[:3]: row[3:] for row in before["bars"] if row[0] == "BTC"}
    newer = {row[:3]: row[3:] for row in after["bars"] if row[:3] in closes}
    assert newer == {k: (*(p / 16 for p in v[:4]), v[4]) for k, v in closes.items()}


@pytest.mark.parametrize("tickers", [("BTC",), ("BTC", "ETH")], ids=["one", "two in one run"])
@pytest.mark.sampled(2)
@pytest.mark.prove
async def test_killed_after_any_run_ends_in_the_same_content(
    tmp_path: Path, tickers: tuple[str, ...]
):
    source = Script().split(*tickers).split("BTC", when=march_s("11:00"))
    whole = await run(tmp_path / "whole.db", source)
    for hour in HOURS:
        held = await run(tmp_path / "killed.db", source, [hour])
    assert held == whole
    assert {t: falls(held, t, "1h") for t in tickers} == {t: [(SPLIT, 1)] for t in tickers}
    assert (await audited(tmp_path / "killed.db", source)).findings == []


@pytest.mark.parametrize("is_written", [False, True], ids=["before", "after"])
@pytest.mark.sampled(2)
@pytest.mark.prove
async def test_killed_while_a_split_is_written_ends_in_the_same_content(
    tmp_path: Path, is_written: bool
):
    class Failing(MarketStore):
        async def commit(self, batch: Batch) -> None:
            if batch.market_time != to_market_ms(SPLIT):
                return await super().commit(batch)
            if is_written:
                await super().commit(batch)
            raise StoreError("disk full")

    path, source = tmp_path / "m.db", Script().split("BTC")
    whole = await run(tmp_path / "whole.db", source)
    with pytest.raises(StoreError, match="disk full"):
        await run(path, source, kind=Failing)
    assert await run(path, source, list_hours("10:00", "13:00")) == whole


@pytest.mark.prove
async def test_an_asset_that_is_late_is_split_when_it_comes(tmp_path: Path):
    path, source = tmp_path / "m.db", Script().split("BTC", when=march_s("08:00"))
    for hour in ("08:00", "09:00"):
        source.delays["BTC", march_s(hour)] = march_s("09:30") - march_s(hour)
    held = await run(path, source)
    assert falls(held, "BTC", "1h") == [(march_s("08:00"), 1)]
    assert falls(held, "BTC", "4h") == [(march_s("08:00"), 1)]
    late = [
        row[0] for row in held["changes"] if row[1:5] == ("BTC", "llnr", "4h", march_s("08:00"))
    ]
    assert late[0] // 1000 == to_market_ms(march_s("12:00")) // 1000
    assert (await audited(path, source)).findings == []


@pytest.mark.prove
async def test_the_loop_rebuilds_after_a_split_in_retries_for_late_assets_too(tmp_path: Path):
    path, source = tmp_path / "m.db", Script().split("BTC", when=march_s("11:00"))
    source.delays["BTC", march_s("11:00")] = 200
    source.time.now = march_s("10:20") * 1000
    await run_loop_until(path, source, source.time, march_s("14:30"))
    rows = await check_store_file(path, source, march_s("14:00"))
    (split,) = [row for row in rows if row[1:5] == ("BTC", "enzo", "1h", march_s("11:00"))]
    assert (split.created_at, split.epoch) == ((march_s("11:00") + 210) * 1000, 1)


@pytest.mark.prove
async def test_hours_that_were_missed_step_on_the_new_scale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runs_module, "BATCH_S", 2 * HOUR_S)
    path, source = tmp_path / "m.db", Paying().split("BTC", when=march_s("09:00"))
    await run(path, source, [STARTS, march_s("09:00")])
    assert (await audited(path, source)).findings == []
    held = await run(path, source, [ENDS])
    always = await run(tmp_path / "always.db", Paying().split("BTC", when=BEGINS), [STARTS, ENDS])
    assert remembered(held) == remembered(always)
    assert falls(held, "BTC", "1h") == [(march_s("08:00"), 1)]
    assert (await audited(path, source)).findings == []


async def test_a_removed_asset_is_restated_as_far_as_it_stepped(tmp_path: Path):
    path, source = tmp_path / "m.db", Script().split("BTC", when=march_s("00:00", day=5))
    btc, eth = source.universe.assets
    removed = btc.model_copy(update={"removed_on": date(2026, 3, 5)})
    source.universe = source.universe.model_copy(update={"assets": (removed, eth)})
    held = await run(path, source, [STARTS, march_s("22:00"), march_s("02:00", day=5)])
    bars = [row for row in held["bars"] if row[0] == "BTC"]
    assert bars[-1][2] + HOUR_S == march_s("23:00")
    assert {row[6] for row in bars if row[6] > 50} == set()
    assert (await audited(path, source)).findings == []


@pytest.mark.prove
async def test_an_asset_that_has_not_stepped_a_day_is_split_without_an_epoch_of_it(tmp_path: Path):
    path, source = tmp_path / "m.db", Script(begins_at=march_s("04:00")).split("BTC")
    held = await run(path, source)
    days = {row[2:6] for row in held["epochs"] if row[:2] == ("BTC", "1d")}
    assert days == set()
    held = await run(path, source, [march_s("00:00", day=5)])
    days = {row[2:6] for row in held["epochs"] if row[:2] == ("BTC", "1d")}
    assert days == {("enzo", 0, 1, 1), ("llnr", 0, 1, 1)}
    assert (await audited(path, source)).findings == []


@pytest.mark.clause("audit")
@pytest.mark.prove
async def test_audit_verifies_rows_from_both_sides_of_a_split_with_their_own_bars(tmp_path: Path):
    path, warmed = tmp_path / "m.db", STARTS + 4 * DAY_S
    source = Paying("BTC", begins_at=STARTS - 34 * DAY_S).split("BTC", when=warmed + 2 * HOUR_S)
    hours = [STARTS, *range(warmed, warmed + 4 * HOUR_S, HOUR_S), warmed + 6 * DAY_S]
    await run(path, source, hours, INDICATORS)
    report = await audited(path, source, INDICATORS)
    async with open_store(path) as store:
        assert (
            await audit_market(store, source.universe, INDICATORS, open_copying_executor) == report
        )
    assert (report.findings, sum(report.not_verifiable.values())) == ([], 0)
    async with open_store(path) as store:
        sides = {(row.timeframe, row.epoch) for row in await list_changes(store)}
        engines = {row.epoch async for row in store.alerts()}
    assert sides == {("1h", 0), ("1h", 1), ("4h", 0), ("4h", 1)}
    assert engines == {0, 1}


@pytest.mark.clause("audit")
@pytest.mark.parametrize(
    ("statement", "named"),
    [
        (
            "UPDATE bars SET data = flipped(data, length(data) - 20) WHERE generation = 0 "
            "AND last_open = (SELECT max(last_open) FROM bars WHERE generation = 0)",
            "does not hold the bars",
        ),
        ("DELETE FROM bars WHERE generation = 0 AND pass = 1", "bars: commit 1 does not hold"),
        ("UPDATE bars SET generation = 2 WHERE generation = 1", "does not hold the bars"),
        ("UPDATE epochs SET generation = 0", "is of revision 0, but its bars are of 1"),
    ],
    ids=["a superseded bar", "a superseded block", "a revision", "an epoch's revision"],
)
@pytest.mark.sampled(2)
@pytest.mark.prove
async def test_every_alteration_of_revisions_is_found(tmp_path: Path, statement: str, named: str):
    path, source = tmp_path / "m.db", Script().split("BTC")
    await run(path, source)
    assert alter(path, statement) > 0
    report = await audited(path, source)
    assert any(named in finding for finding in report.findings), report.findings


@pytest.mark.prove
async def test_boards_of_the_past_stay_as_they_were(tmp_path: Path):
    path, source = tmp_path / "m.db", Script().split("BTC")
    await run(path, source, list_hours("06:00", "09:00"))
    moment = to_market_ms(march_s("09:00")) + 60_000
    async with open_store(path) as store:
        then = await load_past(store, moment)
    await run(path, source, list_hours("10:00", "13:00"))
    async with open_store(path) as store:
        now = await load_past(store, moment)
    assert replace(now, coverage=None) == replace(then, coverage=None)
