"""Hard bars through the whole pipeline: replay, clean audit, and each asset stepped by itself."""

import asyncio
import gc
import os
import pickle
import random
import sqlite3
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random

import pytest

from compute.audit.audit import audit_market
from compute.bars import DAY_S, HOUR_S
from compute.hourly_loop import HourlyLoop
from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.contract import Indicator
from compute.indicators.enzo import Enzo
from compute.indicators.registry import INDICATORS
from compute.schedule import to_market_ms
from compute.sources.simulated import (
    MarketStart,
    SimulatedSource,
    choose_start,
    parse_source_name,
)
from compute.universe import Universe, load_universe
from schemas.vocabulary import (
    DAY_MS,
    TIMEFRAMES,
)
from service.config.settings import Settings
from service.config.sources import open_source
from store.market_rows import Batch, ChangeRow, StoredSnapshot
from store.opening import open_sqlite_market
from store.sql.market_store import MarketStore
from tests.doubles.scripted_source import ALTERNATING, AcceleratedClock, ClockEnded
from tests.support.row_builders import list_changes, list_commits
from tests.support.signals_command import ForkedCommand, build_environment
from tests.support.small_market import (
    DENSE,
    END,
    Content,
    audit_store,
    load_content,
    load_past,
    open_pipeline,
    open_store,
    write_universe,
)
from tests.support.store_homes import open_and_close, open_market_as

LIMIT_S = 60


def started(folder: Path, database: Path, universe: Path) -> ForkedCommand:
    settings = {"database_url": f"sqlite:///{database}", "universe": str(universe)}
    with open(os.devnull, "wb") as null_file:
        arguments = ("replay", "--bars", str(folder))
        return ForkedCommand(
            folder, arguments, build_environment(folder, **settings), null_file.fileno()
        )


def count_commits(database: Path) -> int:
    """Count the commits without taking part in the writing."""
    if not database.exists():
        return 0
    db = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=5)
    try:
        return int(db.execute("SELECT count(*) FROM passes").fetchone()[0])
    except sqlite3.OperationalError:  # before the tables are there
        return 0
    finally:
        db.close()


def killed(process: ForkedCommand, database: Path, after: int, looks: int) -> bool:
    """Kill a replay some looks after a number of commits; return False if it had already ended."""
    try:
        while process.poll() is None and (count_commits(database) < after or looks > 0):
            looks -= count_commits(database) >= after
        process.kill()
    finally:
        status = process.wait(LIMIT_S)
    assert status in (0, -9)
    return status != 0


async def held_by(path: Path) -> Content:
    async with open_store(path) as store:
        return await load_content(store)


@pytest.mark.clause("steps")
@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=pytest.mark.prove)])
@pytest.mark.prove
def test_a_replay_that_is_killed_and_run_again_ends_in_the_same_content(
    kills: int, tmp_path: Path, bars_folder: Path, universe: Universe, whole: Content
):
    draw, universe_file = random.Random(kills), write_universe(tmp_path)
    done = databases = 0
    while done < kills:
        databases += 1
        database = tmp_path / f"{databases}.db"
        for _ in range(min(5, kills - done)):
            after = count_commits(database) + draw.randrange(3)
            process = started(bars_folder, database, universe_file)
            if not killed(process, database, after, draw.randrange(6)):
                break
            done += 1
        assert started(bars_folder, database, universe_file).wait(LIMIT_S) == 0
        assert asyncio.run(held_by(database)) == whole
    assert asyncio.run(audit_store(database, universe)).findings == []


NEARLY_AN_HOUR_MS = HOUR_S * 1000 - 1


def latest(snapshot: StoredSnapshot) -> tuple[object, ...]:
    return snapshot.market_time, snapshot.readings, tuple(snapshot.late)


async def past(store: MarketStore, at: int) -> tuple[object, ...]:
    return latest(await load_past(store, at))


@pytest.mark.clause("answers")
@pytest.mark.prove
async def test_a_replay_in_one_piece_shows_the_same_past_boards_as_one_in_many(
    tmp_path: Path, small_market_parent: Path, bars_folder: Path, universe: Universe, whole: Content
):
    hours = sorted(Random(1).sample(range(DENSE + HOUR_S, END, HOUR_S), 30))
    ended: dict[int, tuple[object, ...]] = {}
    async with open_store(tmp_path / "pieces.db") as pieces:
        runs = await open_pipeline(pieces, bars_folder, universe)
        for hour in hours:
            await runs.run_until(hour)
            ended[to_market_ms(hour)] = latest(await pieces.snapshot())
        async with open_store(small_market_parent / "market.db") as one:
            assert len(await list_commits(one)) < len(hours) < len(await list_commits(pieces))
            for at, expected in ended.items():
                assert await past(one, at) == await past(one, at + NEARLY_AN_HOUR_MS) == expected
                assert (
                    await past(pieces, at) == await past(pieces, at + NEARLY_AN_HOUR_MS) == expected
                )
    assert len({str(readings) for _, readings, _ in ended.values()}) > len(hours) // 2


FIRST_START_INDICATORS = (Enzo(),)
EVERY_SESSION = (
    "BTC",
    "MATIC",
    "ALT",
    "NVDA",
    "IBM",
    "XAU",
)  # ALT, as ARM, came after the renaming


def only(*tickers: str) -> Universe:
    packaged = load_universe()
    chosen = tuple(packaged.by_ticker[ticker] for ticker in tickers)
    return Universe(assets=chosen, renamed_on=packaged.renamed_on)


def epoch(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


@pytest.mark.clause("sources")
@pytest.mark.clause("2.1.18", "3.2.1")
@pytest.mark.parametrize(
    ("start", "tickers"),
    [
        ("2026-11-21T17:22:32", EVERY_SESSION),
        pytest.param("2029-03-01T00:00:00", ("MATIC", "ARM"), marks=pytest.mark.prove),
    ],
)
@pytest.mark.prove
async def test_a_first_start_leaves_the_readings_that_follow_from_its_history(
    tmp_path: Path, start: str, tickers: tuple[str, ...]
):
    universe, clock = only(*tickers), AcceleratedClock(epoch(start))
    async with open_and_close(open_sqlite_market(tmp_path / "m.db")) as store:
        source = SimulatedSource(universe, choose_start(clock.now_s).origin, clock)
        runs = await HourlyPipeline.open(store, source, universe, FIRST_START_INDICATORS, clock)
        await runs.run_until(runs.due_hour)
        report = await audit_market(store, universe, FIRST_START_INDICATORS)
        snapshot, published_from = await store.snapshot(), await store.publish_from()
        rows = await list_changes(store)
        alerts = [row async for row in store.alerts()]
        carries = await store.carries()
    assert report.findings == []
    for ticker in tickers:
        assert snapshot.readings[ticker]["enzo"].keys() == set(TIMEFRAMES)
    assert max(row.close_time for row in carries if row.ticker == "MATIC") < epoch("2026-09-27")
    assert published_from == dict.fromkeys(sorted(tickers), clock.now - 30 * DAY_MS)
    published = [row.created_at for row in rows if row.published]
    assert clock.now - 30 * DAY_MS <= published[0] < clock.now - 28 * DAY_MS
    assert {row.indicator for row in rows if row.published} == {"enzo"}
    assert {row.ticker for row in alerts} == {"BTC", "NVDA"} & set(tickers)
    assert all(row.close_time * 1000 >= clock.now - 31 * DAY_MS for row in alerts)
    assert all(row.created_at >= clock.now - 30 * DAY_MS for row in alerts)


@pytest.mark.clause("sources")
@pytest.mark.clause("14.6")
@pytest.mark.prove
async def test_a_store_of_an_earlier_version_keeps_its_prices(tmp_path: Path):
    universe, clock = only("NVDA"), AcceleratedClock(epoch("2026-06-10T10:20:00"))
    earlier = SimulatedSource(universe, choose_start(clock.now_s).origin, clock)
    async with open_and_close(open_sqlite_market(tmp_path / "m.db")) as store:
        pipeline = await HourlyPipeline.open(
            store, earlier, universe, FIRST_START_INDICATORS, clock
        )
        await pipeline.run_until(pipeline.due_hour)
        clock.now += 2 * DAY_MS
        async with open_source(Settings(), universe, store, clock) as source:
            assert source.name == earlier.name == f"simulated:{epoch('2025-07-15')}"
            pipeline = await HourlyPipeline.open(
                store, source, universe, FIRST_START_INDICATORS, clock
            )
            await pipeline.run_until(pipeline.due_hour)
        (block,) = await store.bars()
        whole = (await earlier.fetch("NVDA", -1, clock.now_s)).bars
        assert block.open_time.tolist() == whole.open_time.tolist()
        assert block.values[:, 3].tobytes() == whole.close.tobytes()
        assert (await audit_market(store, universe, FIRST_START_INDICATORS)).findings == []


@pytest.mark.clause("sources")
@pytest.mark.prove
async def test_a_restart_continues_from_the_origin_that_the_store_remembers(tmp_path: Path):
    universe, clock = only("NVDA", "IBM"), AcceleratedClock(epoch("2026-06-10T10:20:00"), step_s=60)
    settings = Settings(source="simulated", universe=None)
    for start in ("2026-06-10T10:20:00", "2026-06-11T15:40:00", "2026-12-24T23:10:00"):
        clock.now, clock.ends_at = epoch(start) * 1000, epoch(start) + 7200
        async with open_and_close(open_sqlite_market(tmp_path / "m.db")) as store:
            async with open_source(settings, universe, store, clock) as source:
                start_day = MarketStart(epoch("2025-07-15"), epoch("2026-06-10"))
                assert parse_source_name(source.name) == start_day
                open_pipeline = partial(
                    HourlyPipeline.open, store, source, universe, FIRST_START_INDICATORS, clock
                )
                with pytest.raises(ClockEnded):
                    await HourlyLoop(open_pipeline, store, clock, clock.sleep).run()
            assert (await store.progress()).source == source.name
            first_feed = epoch("2026-06-10T10:20:00") * 1000 - 30 * DAY_MS
            assert set((await store.publish_from()).values()) == {first_feed}
    async with open_and_close(open_sqlite_market(tmp_path / "m.db")) as store:
        assert (await audit_market(store, universe, FIRST_START_INDICATORS)).findings == []


LONG_RUN_START = int(datetime(2026, 11, 21, 17, 22, tzinfo=UTC).timestamp())
DAYS = 400


@dataclass(frozen=True)
class Size:
    """The size of a run: its assets, indicators and history, and the length of each sleep."""

    tickers: tuple[str, ...]
    indicators: tuple[Indicator, ...]
    history_s: int
    stride_s: int


SHORT = Size(("MATIC", "NVDA"), ALTERNATING, 65 * DAY_S, 10 * DAY_S)  # a change at every bar
FULL = Size(("MATIC", "NVDA", "XAU"), INDICATORS, 100 * DAY_S, DAY_S)


def list_kept(rows: Sequence[ChangeRow], pruned_before: int) -> list[ChangeRow]:
    """Return the rows that pruning should keep: the young, and each cell's newest old one."""
    newest = {row[1:4]: row.created_at for row in rows if row.created_at < pruned_before}
    return [
        row for row in rows if row.created_at >= pruned_before or row.created_at == newest[row[1:4]]
    ]


@pytest.mark.clause("steps")
@pytest.mark.prove
@pytest.mark.parametrize("size", [SHORT, pytest.param(FULL, marks=pytest.mark.long)])
async def test_a_store_of_400_days_holds_the_retained_rows_and_no_others(
    tmp_path: Path, size: Size
):
    universe, clock = only(*size.tickers), AcceleratedClock(LONG_RUN_START, size.stride_s)
    # Not in memory, which must not grow.
    copy = tmp_path / "rows"
    counts, traced = list[int](), list[int]()

    class Copied(MarketStore):
        async def commit(self, batch: Batch) -> None:
            await super().commit(batch)
            with copy.open("ab") as file:
                pickle.dump(list(batch.changes), file)

    async with open_and_close(open_market_as(Copied, tmp_path / "m.db")) as store:

        async def look_ten_times() -> None:
            if (clock.now_s - LONG_RUN_START) * 10 // (DAYS * DAY_S) > len(counts):
                held, committed = await list_changes(store), list[ChangeRow]()
                with copy.open("rb") as file:
                    while file.peek(1):
                        committed += pickle.load(file)
                assert held == list_kept(committed, (await store.progress()).pruned_before)
                counts.append(len(held))
                del held, committed
                gc.collect()
                if tracemalloc.is_tracing():
                    traced.append(tracemalloc.get_traced_memory()[0])
                elif size is SHORT and len(counts) == 7:
                    tracemalloc.start()

        clock.watch, clock.ends_at = look_ten_times, LONG_RUN_START + DAYS * DAY_S
        origin = (LONG_RUN_START - size.history_s) // DAY_S * DAY_S
        source = SimulatedSource(universe, origin, clock)
        opener = partial(HourlyPipeline.open, store, source, universe, size.indicators, clock)
        with pytest.raises(ClockEnded):
            await HourlyLoop(opener, store, clock, clock.sleep).run()
        tracemalloc.stop()
        report = await audit_market(store, universe, size.indicators)
    assert report.findings == []
    assert (report.checked["changes"], len(counts)) == (counts[-1], 10)
    assert counts[-1] <= 1.05 * counts[-2]
    # The rows of the months between would take more.
    assert max(traced[1:], default=0) - min(traced[1:], default=0) < 500_000
