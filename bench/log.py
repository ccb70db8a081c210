"""Measure the transparency log: its cost per run and per row, and building it for an old store.

`python -m bench.log [--store FILE]`.
"""

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, ParamSpec, TypeVar
from unittest.mock import patch

from pydantic import SecretStr

from bench.midnight import DAY_S, HOUR_S, read_market_time
from bench.served import copy_store, run_module
from bench.table import Row
from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.registry import INDICATORS
from compute.schedule import to_market_ms
from compute.universe import load_universe
from schemas.clock import Clock
from service.config.settings import Settings
from service.config.signing import build_log_signer
from service.config.sources import open_source
from store.sql import market_writes
from store.sql.log_writes import append_leaves
from store.sqlite.market_store import open_sqlite_market

Params = ParamSpec("Params")
Result = TypeVar("Result")
DAYS = 7
MAX_RATIO = 1.05
LOG_TABLES = ("log_leaves", "log_tiles", "log_checkpoint")


class Cost(NamedTuple):
    """What a midnight run took: its processor seconds, those of the log, and its rows."""

    cpu_s: float
    log_s: float
    rows: int


class Meter:
    """Adds up the processor seconds of the functions that it wraps."""

    def __init__(self) -> None:
        self.cpu_s = 0.0

    def wrap(self, function: Callable[Params, Awaitable[Result]]) -> Callable[Params, Any]:
        async def run(*args: Params.args, **kwargs: Params.kwargs) -> Result:
            began_s = time.process_time()
            try:
                return await function(*args, **kwargs)
            finally:
                self.cpu_s += time.process_time() - began_s

        return run


def rows(store: Path | None = None) -> list[Row]:
    """Measure on a copy of the store, or on a new store if none is given."""
    with copy_store(store) as copy:
        bytes_per_row = measure_bytes_per_row(copy)
        costs = asyncio.run(measure_runs(copy))
        built_s, built_rows = asyncio.run(measure_building(copy))
    total_s, log_s = (median(getattr(cost, name) for cost in costs) for name in ("cpu_s", "log_s"))
    row_count = median(cost.rows for cost in costs)
    ratio = total_s / (total_s - log_s)
    return [
        Row(
            f"midnight run of {row_count:.0f} rows, processor time, with the log / without",
            f"{1000 * total_s:.0f} ms",
            f"{1000 * (total_s - log_s):.0f} ms",
            f"{ratio:.3f}",
            f"<= {MAX_RATIO:g}",
            ratio <= MAX_RATIO,
        ),
        Row("log per run, processor time", f"{1000 * log_s:.1f} ms"),
        Row("log per row, in the store", f"{bytes_per_row:.0f} bytes"),
        Row(
            f"building the log of {built_rows:,} rows, processor time per row",
            f"{1e6 * built_s / built_rows:.0f} µs",
        ),
    ]


async def measure_runs(store: Path) -> list[Cost]:
    """Return the costs of midnight runs, each of which follows a run at 23:03."""
    hour = read_market_time(store) // 1000 // DAY_S * DAY_S + DAY_S
    now, meter = [read_market_time(store)], Meter()
    costs = []
    appending = patch.object(market_writes, "append_leaves", meter.wrap(append_leaves))
    async with open_pipeline(store, lambda: now[0], meter) as pipeline:
        with appending:
            for midnight in range(hour, hour + DAYS * DAY_S, DAY_S):
                for at in (midnight - HOUR_S, midnight):
                    now[0] = to_market_ms(at)
                    row_count, began_s, meter.cpu_s = count_leaves(store), time.process_time(), 0.0
                    await pipeline.run_until(at)
                    spent_s = time.process_time() - began_s
                costs.append(Cost(spent_s, meter.cpu_s, count_leaves(store) - row_count))
    return costs


@asynccontextmanager
async def open_pipeline(store: Path, clock: Clock, meter: Meter) -> AsyncIterator[HourlyPipeline]:
    """Open the pipeline of a simulated market, which signs its log."""
    settings = Settings(database_url=SecretStr(f"sqlite:///{store}"))
    universe = load_universe(None)
    async with AsyncExitStack() as stack:
        market = await open_sqlite_market(store)
        stack.push_async_callback(market.close)
        source = await stack.enter_async_context(open_source(settings, universe, market, clock))
        sign = meter.wrap(build_log_signer(settings, market).sign)
        pipeline = await HourlyPipeline.open(
            market, source, universe, INDICATORS, clock, sign_log=sign
        )
        stack.push_async_callback(pipeline.close)
        yield pipeline


async def measure_building(store: Path) -> tuple[float, int]:
    """Return the processor seconds in which the log of a store is built, and its rows."""
    forget_log(store)
    market = await open_sqlite_market(store)
    try:
        began_s = time.process_time()
        count = await market.feed_log.append_missing()
        return time.process_time() - began_s, count
    finally:
        await market.close()


def forget_log(store: Path) -> None:
    """Delete the log of a store, as if earlier versions had written its rows."""
    query = "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name LIKE 'log_%'"
    with closing(sqlite3.connect(store)) as db, db:
        triggers = db.execute(query).fetchall()
        for name, _ in triggers:
            db.execute(f"DROP TRIGGER {name}")
        for table in LOG_TABLES:
            db.execute(f"DELETE FROM {table}")
        for _, statement in triggers:
            db.execute(statement)


def measure_bytes_per_row(store: Path) -> float:
    """Return the bytes of the log in a store, divided by its leaves."""
    with closing(sqlite3.connect(store)) as db:
        places = ", ".join("?" * len(LOG_TABLES))
        sql = f"""
            SELECT sum(pgsize) FROM dbstat
            WHERE name IN (SELECT name FROM sqlite_schema WHERE tbl_name IN ({places}))
        """
        size: int = db.execute(sql, LOG_TABLES).fetchone()[0]
    return size / count_leaves(store)


def count_leaves(store: Path) -> int:
    with closing(sqlite3.connect(store)) as db:
        return int(db.execute("SELECT count(*) FROM log_leaves").fetchone()[0])


def main() -> None:
    run_module(rows, __doc__)


if __name__ == "__main__":
    main()
