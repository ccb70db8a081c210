"""Time rebuilds and audits of blocks of assets: in this process, and by two Dask workers.

`python -m bench.blocks [--times N ...] [--write]`; `--write` puts the table into docs/scaling.md.
Told are seconds of processor time, which say on a busy machine too what would be done where.
"""

import argparse
import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench.table import describe_hardware, replace_between_markers
from compute.audit.audit import Audit
from compute.bars import DAY_S, HOUR_S
from compute.batch_rows import build_funding_rows
from compute.executor import Crews, here
from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.registry import INDICATORS
from compute.schedule import to_market_ms
from compute.sources.simulated import LATEST_ORIGIN, SimulatedSource
from compute.state_loader import StateLoader, build_funding
from compute.universe import Universe, load_universe
from schemas.vocabulary import TIMEFRAMES, Timeframe
from store.market_rows import BarBlock, Batch, CarryRow
from store.sqlite.market_store import SqliteMarketStore

if TYPE_CHECKING:
    from distributed import Client

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
TABLE_HEAD = (
    "| what | assets | here | Dask: leader | workers together | at most, these cores "
    "| at most, any number | |",
    "|---|--:|--:|--:|--:|--:|--:|---|",
)
WORKERS = 2
YEAR_S = 365 * DAY_S

Workload = Callable[[SqliteMarketStore, Universe, Crews], Awaitable[None]]


class Timing(NamedTuple):
    """Processor seconds of one thing over a year of so many assets, and how they were found."""

    what: str
    assets: int
    here_s: float
    leader_s: float
    workers_s: float
    how: str = "measured"

    def scale(self, factor: int) -> "Timing":
        """Return what some times as many assets take, whose blocks are alike."""
        return Timing(
            self.what,
            factor * self.assets,
            factor * self.here_s,
            factor * self.leader_s,
            factor * self.workers_s,
            f"{self.assets:,} assets, times {factor}",
        )

    @property
    def line(self) -> str:
        both = self.leader_s + self.workers_s
        bounds = self.here_s / max(self.leader_s, both / count_cores()), self.here_s / self.leader_s
        shown = (f"{s:,.0f} s" for s in (self.here_s, self.leader_s, self.workers_s))
        cells = [self.what, f"{self.assets:,}", *shown, *(f"{b:.2f}" for b in bounds), self.how]
        return f"| {' | '.join(cells)} |"


def count_cores() -> int:
    return os.cpu_count() or 1


class DaskCluster(NamedTuple):
    """A crew of workers, and a client that asks them for their processor time."""

    crews: Crews
    client: "Client"

    def measure_cpu_s(self) -> float:
        return float(sum(self.client.run(time.process_time).values()))


def repeat_universe(universe: Universe, times: int) -> Universe:
    """Return a universe of some times as many assets, under other tickers."""
    assets = tuple(
        asset.model_copy(update={"ticker": f"{asset.ticker}{time or ''}", "continues_as": None})
        for time in range(times)
        for asset in universe.tracked_assets
    )
    return Universe(assets=assets, renamed_on=universe.renamed_on)


async def compute_store(path: Path, universe: Universe) -> None:
    """Compute a year of a simulated market as a first start does."""
    until = LATEST_ORIGIN + YEAR_S
    source = SimulatedSource(universe, LATEST_ORIGIN, lambda: to_market_ms(until))
    store = await SqliteMarketStore.open(path)
    try:
        runs = await HourlyPipeline.open(
            store, source, universe, INDICATORS, lambda: to_market_ms(until)
        )
        await runs.run_until(until)
    finally:
        await store.close()


async def build_outgrown_store(path: Path, model: Path, universe: Universe) -> None:
    """Repeat a store's bars under other tickers, with carries of a version that is no more."""
    source = await SqliteMarketStore.open(model)
    store = await SqliteMarketStore.open(path)
    try:
        tickers = list(universe.by_ticker)
        source_blocks = [
            block for block in await source.bars() if block.ticker in universe.by_ticker
        ]
        for number in range(0, len(tickers), len(source_blocks)):
            blocks = [
                BarBlock(ticker, block.timeframe, block.open_time, block.values)
                for ticker, block in zip(tickers[number:], source_blocks, strict=False)
            ]
            await store.commit(await build_outgrown_batch(source, source_blocks, blocks, number))
    finally:
        await store.close()
        await source.close()


async def build_outgrown_batch(
    source: SqliteMarketStore, source_blocks: list[BarBlock], blocks: list[BarBlock], number: int
) -> Batch:
    end = max(int(block.open_time[-1]) for block in source_blocks) + HOUR_S
    pairs = zip(source_blocks, blocks, strict=True)
    return Batch(
        market_time=to_market_ms(end) + number,
        bars=blocks,
        funding=[
            row
            for source_block, block in pairs
            for row in build_funding_rows(
                block.ticker, build_funding(await source.funding(source_block.ticker))
            )
        ],
        carries=[
            CarryRow(block.ticker, timeframe, INDICATORS[0].id, 0, "", 0, end, b"")
            for block in blocks
            for timeframe in TIMEFRAMES
        ],
        publish_from={block.ticker: 0 for block in blocks},
    )


async def rebuild(store: SqliteMarketStore, universe: Universe, crews: Crews) -> None:
    native: dict[str, Timeframe] = dict.fromkeys(universe.by_ticker, "1h")
    state = await StateLoader(store, universe, INDICATORS, crews).load_state(native)
    if not state.new_epochs:
        raise SystemExit("nothing was rebuilt")


async def audit(store: SqliteMarketStore, universe: Universe, crews: Crews) -> None:
    async with crews() as crew:
        report = await Audit(store, universe, INDICATORS, crew).run()
    if report.findings or not report.checked["changes"]:
        raise SystemExit(f"the audit is not clean: {report.findings[:3]}")


async def measure_cpu_s(work: Workload, path: Path, universe: Universe, crews: Crews) -> float:
    """Return the processor time of this process alone."""
    store = await SqliteMarketStore.open(path)
    try:
        started_at = time.process_time()
        await work(store, universe, crews)
        return time.process_time() - started_at
    finally:
        await store.close()


def time_workload(work: Workload, path: Path, universe: Universe, dask: DaskCluster) -> Timing:
    here_s = asyncio.run(measure_cpu_s(work, path, universe, here))
    before = dask.measure_cpu_s()
    leader_s = asyncio.run(measure_cpu_s(work, path, universe, dask.crews))
    workers_s = dask.measure_cpu_s() - before
    found = Timing(work.__name__, len(universe.assets), here_s, leader_s, workers_s)
    print(found.line, flush=True)
    return found


@contextmanager
def start_cluster() -> Iterator[DaskCluster]:
    # Loaded here alone, for the whole bench imports its modules.
    from distributed import Client, LocalCluster

    from service.processes.dask_executor import dask_crew

    with (
        LocalCluster(
            n_workers=WORKERS, processes=True, threads_per_worker=1, dashboard_address=":0"
        ) as running,
        Client(running.scheduler_address, set_as_default=False) as client,
    ):
        yield DaskCluster(partial(dask_crew, running.scheduler_address), client)


def measure(folder: Path, dask: DaskCluster, sizes: Sequence[int]) -> list[Timing]:
    """Measure an audit of one universe, and rebuilds of each size; tell what larger ones take."""
    universe, model = repeat_universe(load_universe(), 1), folder / "year.db"
    asyncio.run(compute_store(model, universe))
    rebuilds = []
    for times in sizes:
        larger, path = repeat_universe(universe, times), folder / f"{times}.db"
        asyncio.run(build_outgrown_store(path, model, larger))
        rebuilds.append(time_workload(rebuild, path, larger, dask))
    audited = time_workload(audit, model, universe, dask)
    return [
        *rebuilds,
        *(rebuilds[-1].times(factor // sizes[-1]) for factor in (10, 100) if factor > sizes[-1]),
        audited,
        *(audited.scale(factor) for factor in (10, 100)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.blocks", description=__doc__)
    parser.add_argument("--times", type=int, nargs="*", default=[1, 10], help="of 251 assets")
    parser.add_argument("--write", action="store_true", help=f"into docs/{PAGE.name} too")
    options = parser.parse_args()
    about = describe_hardware()
    with tempfile.TemporaryDirectory() as folder, start_cluster() as dask:
        found = measure(Path(folder), dask, options.times)
    text = "\n".join([about, "", *TABLE_HEAD, *(one.line for one in found), ""])
    print(text)
    if options.write:
        PAGE.write_text(replace_between_markers(PAGE.read_text(), "dask", text))


if __name__ == "__main__":
    main()
