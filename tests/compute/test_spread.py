"""A first start that is spread over processes writes the same bytes as one in a single process."""

import asyncio
import os
import random
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from compute.bars import DAY_S, HOUR_S
from compute.executor import OpenExecutor, open_local_executor
from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.contract import Bar, Carry, Indicator, Readings
from compute.indicators.enzo import Enzo
from compute.indicators.llnr import Llnr
from compute.indicators.registry import INDICATORS
from compute.schedule import to_market_ms
from compute.sources.simulated import SimulatedSource
from compute.universe import Universe, load_universe
from schemas.errors import OperatorError
from store.opening import open_sqlite_market
from tests.compute.executors import open_copying_executor
from tests.doubles.scripted_source import AcceleratedClock
from tests.support.row_builders import TABLES
from tests.support.small_market import audit_store

pytestmark = pytest.mark.clause("scaling", "steps")

ONE_PROCESS = partial(open_local_executor, parallelism=1)
PROCESSES = partial(open_local_executor, parallelism=3)
STARTS_AT = 1_795_195_352
HISTORY_DAYS = 95
SOME = ("ARM", "BTC", "MATIC", "NVDA", "XAU")

Tables = dict[str, list[tuple[Any, ...]]]
OnProgress = Callable[[int, int], None]


class Dying(Enzo):
    """Kills its process once it steps while a file exists, and removes the file."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def step(self, carry: Carry, bar: Bar) -> tuple[Carry, Readings]:
        if self.flag.exists():
            self.flag.unlink()
            os._exit(1)
        return super().step(carry, bar)


def select_assets(tickers: Sequence[str]) -> Universe:
    packaged = load_universe()
    chosen = tuple(asset for asset in packaged.assets if asset.ticker in tickers)
    return Universe(assets=chosen, renamed_on=packaged.renamed_on)


def draw_assets(seed: int) -> Universe:
    """Return a universe of random assets, some of which have alerts."""
    packaged, draw = load_universe(), random.Random(seed)
    drawn = draw.sample(packaged.assets, draw.randrange(4, 9))
    assets = [a.model_copy(update={"alerts": draw.random() < 0.7}) for a in drawn]
    return Universe(assets=tuple(assets), renamed_on=packaged.renamed_on)


async def catch_up(
    path: Path,
    open_executor: OpenExecutor,
    universe: Universe,
    indicators: Sequence[Indicator],
    on_progress: OnProgress = lambda done, end: None,
    hours: int = 0,
) -> None:
    """Start a market, or continue it; then run some hours one by one."""
    clock = AcceleratedClock(STARTS_AT)
    origin = (STARTS_AT - HISTORY_DAYS * DAY_S) // DAY_S * DAY_S
    store = await open_sqlite_market(path)
    try:
        source = SimulatedSource(universe, origin, clock, priced_at=origin)
        pipeline = await HourlyPipeline.open(
            store, source, universe, indicators, clock, open_executor
        )
        await pipeline.run_until(pipeline.due_hour, on_progress)
        for _ in range(hours):
            clock.now = to_market_ms(pipeline.done_hour + HOUR_S)
            await pipeline.run_until(pipeline.due_hour)
            await pipeline.run_late()
    finally:
        await store.close()


def read_all(path: Path) -> Tables:
    """Return every row of every table, in the order in which they were written.

    The salts of the log are random, and so are the hashes that they are part of. The digest of a
    coverage follows the last commit before the start that published it.
    """
    columns = {
        "coverage": "document",
        "log_leaves": "created_at, leaf",
        "log_tiles": "level, number, length(hashes)",
    }
    with closing(sqlite3.connect(path)) as db:
        return {
            table: db.execute(f"SELECT {columns.get(table, '*')} FROM {table}").fetchall()
            for table in TABLES
        }


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.prove) for seed in range(2, 9))]
)
@pytest.mark.prove
async def test_a_spread_first_start_and_the_hours_after_it_write_the_same_bytes(
    tmp_path: Path, seed: int
):
    universe = draw_assets(seed)
    indicators = INDICATORS if seed % 5 == 0 else (Enzo(), Llnr())
    await catch_up(tmp_path / "one.db", ONE_PROCESS, universe, indicators, hours=30)
    await catch_up(tmp_path / "many.db", open_copying_executor, universe, indicators, hours=30)
    written = read_all(tmp_path / "one.db")
    assert read_all(tmp_path / "many.db") == written
    assert len(written["passes"]) > 30
    assert written["changes"]
    assert (await audit_store(tmp_path / "many.db", universe, indicators)).findings == []


@pytest.mark.prove
async def test_a_first_start_whose_worker_dies_or_is_stopped_continues_at_the_next_start(
    tmp_path: Path,
):
    universe, flag = select_assets(SOME), tmp_path / "flag"
    await catch_up(tmp_path / "one.db", ONE_PROCESS, universe, (Dying(flag),))
    path = tmp_path / "many.db"

    def kill_next_worker(done: int, end: int) -> None:
        flag.touch()

    with pytest.raises(OperatorError, match=r"^a worker process died"):
        await catch_up(path, PROCESSES, universe, (Dying(flag),), kill_next_worker)
    flag.unlink(missing_ok=True)
    reported: list[int] = []

    def stop_after_two_batches(done: int, end: int) -> None:
        reported.append(done)
        if len(reported) == 3:
            starting.cancel()

    starting = asyncio.create_task(
        catch_up(path, PROCESSES, universe, (Dying(flag),), stop_after_two_batches)
    )
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert 0 < len(read_all(path)["passes"]) < len(read_all(tmp_path / "one.db")["passes"])
    await catch_up(path, PROCESSES, universe, (Dying(flag),))
    assert read_all(path) == read_all(tmp_path / "one.db")
