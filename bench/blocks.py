"""Time rebuilds and audits in one process, in a pool of two processes and on two Dask workers.

`python -m bench.blocks [--times N ...] [--write]`; `--write` also updates docs/scaling.md.
Seconds are processor time (the median of three runs), because the machine may be busy. The
leader's share bounds the speedup that any number of workers can reach.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.audit import measure_children_s
from bench.table import describe_hardware, replace_between_markers
from compute.audit.audit import audit_market
from compute.bars import DAY_S, HOUR_S
from compute.batch_rows import build_funding_rows
from compute.executor import ExecutorFactory, count_cores, open_local_executor
from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.registry import INDICATORS
from compute.schedule import to_market_ms
from compute.sources.simulated import LATEST_ORIGIN, SimulatedSource
from compute.state_loader import StateLoader, build_funding
from compute.universe import Universe, load_universe
from schemas.vocabulary import TIMEFRAMES, Timeframe
from store.market_rows import BarBlock, Batch, CarryRow
from store.sql.market_store import MarketStore
from store.sqlite.market_store import open_sqlite_market

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
TABLE_HEAD = (
    "| what | assets | executor | one process | leader | workers together "
    "| at most, these cores | at most, any number |",
    "|---|--:|---|--:|--:|--:|--:|--:|",
)
WORKERS = 2
RUNS = 3
# As much history as a first start computes.
YEAR_S = 365 * DAY_S

Workload = Callable[[MarketStore, Universe, ExecutorFactory], Awaitable[None]]
ONE_PROCESS = ExecutorFactory(open_local_executor, 1)
LOCAL_POOL = ExecutorFactory(open_local_executor, WORKERS)


class Timing(NamedTuple):
    """Processor seconds of one job over a year of `assets` assets."""

    what: str
    assets: int
    executor: str
    one_process_s: float
    leader_s: float
    workers_s: float

    @property
    def line(self) -> str:
        # Amdahl's law: the leader's part is serial, and on these cores leader and workers share
        # the processor.
        both = self.leader_s + self.workers_s
        bounds = (
            self.one_process_s / max(self.leader_s, both / count_cores()),
            self.one_process_s / self.leader_s,
        )
        shown = (f"{s:,.1f} s" for s in (self.one_process_s, self.leader_s, self.workers_s))
        cells = [self.what, f"{self.assets:,}", self.executor, *shown]
        return f"| {' | '.join([*cells, *(f'{bound:.2f}' for bound in bounds)])} |"


def repeat_universe(universe: Universe, times: int) -> Universe:
    """Return a universe with each asset `times` times, under different tickers."""
    assets = tuple(
        asset.model_copy(update={"ticker": f"{asset.ticker}{time or ''}", "continues_as": None})
        for time in range(times)
        for asset in universe.tracked_assets
    )
    return Universe(assets=assets, renamed_on=universe.renamed_on)


async def compute_store(path: Path, universe: Universe) -> None:
    """Compute a year of a simulated market into a new store, as a first start does."""
    until = LATEST_ORIGIN + YEAR_S
    source = SimulatedSource(universe, LATEST_ORIGIN, lambda: to_market_ms(until))
    store = await open_sqlite_market(path)
    try:
        runs = await HourlyPipeline.open(
            store, source, universe, INDICATORS, lambda: to_market_ms(until)
        )
        await runs.run_until(until)
    finally:
        await store.close()


async def build_outgrown_store(path: Path, model: Path, universe: Universe) -> None:
    """Copy a store's bars under different tickers, with carries of an outdated version.

    Outdated carries make the next start rebuild every asset.
    """
    source = await open_sqlite_market(model)
    store = await open_sqlite_market(path)
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
    source: MarketStore, source_blocks: list[BarBlock], blocks: list[BarBlock], number: int
) -> Batch:
    end = max(int(block.open_time[-1]) for block in source_blocks) + HOUR_S
    pairs = zip(source_blocks, blocks, strict=True)
    # Each batch needs a later market time than the previous one, hence the added number.
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


async def rebuild(store: MarketStore, universe: Universe, executors: ExecutorFactory) -> None:
    native: dict[str, Timeframe] = dict.fromkeys(universe.by_ticker, "1h")
    state = await StateLoader(store, universe, INDICATORS, executors).load_state(native)
    if not state.new_epochs:
        raise SystemExit("nothing was rebuilt")


async def audit(store: MarketStore, universe: Universe, executors: ExecutorFactory) -> None:
    report = await audit_market(store, universe, INDICATORS, executors)
    if report.findings or not report.checked["changes"]:
        raise SystemExit(f"the audit is not clean: {report.findings[:3]}")


async def measure_cpu_s(
    work: Workload, path: Path, universe: Universe, executors: ExecutorFactory
) -> float:
    """Return the processor seconds that a workload takes in this process."""
    store = await open_sqlite_market(path)
    try:
        started_at = time.process_time()
        await work(store, universe, executors)
        return time.process_time() - started_at
    finally:
        await store.close()


def time_workload(work: Workload, path: Path, universe: Universe) -> list[Timing]:
    """Time a workload on each executor; return medians of `RUNS` runs."""
    seconds: dict[str, list[tuple[float, float]]] = {}
    for _ in range(RUNS):
        for name, start in EXECUTORS.items():
            before = measure_children_s()
            with start() as executors:
                leader_s = asyncio.run(measure_cpu_s(work, path, universe, executors))
            seconds.setdefault(name, []).append((leader_s, measure_children_s() - before))
    medians = {
        name: [median(column) for column in zip(*runs, strict=True)]
        for name, runs in seconds.items()
    }
    one_process_s, _ = medians.pop("one process")
    found = [
        Timing(work.__name__, len(universe.assets), name, one_process_s, leader_s, workers_s)
        for name, (leader_s, workers_s) in medians.items()
    ]
    print(*(timing.line for timing in found), sep="\n", flush=True)
    return found


@contextmanager
def start_dask() -> Iterator[ExecutorFactory]:
    """Run a Dask scheduler with two worker processes, and yield its executors."""
    # Imported here, because `python -m bench` imports this module, and Dask is an extra.
    from distributed import LocalCluster

    from service.processes.dask_executor import open_dask_executor

    with LocalCluster(
        n_workers=WORKERS, processes=True, threads_per_worker=1, dashboard_address=":0"
    ) as running:
        yield ExecutorFactory(partial(open_dask_executor, running.scheduler_address), WORKERS)


EXECUTORS: dict[str, Callable[[], AbstractContextManager[ExecutorFactory]]] = {
    "one process": lambda: nullcontext(ONE_PROCESS),
    f"{WORKERS} local processes": lambda: nullcontext(LOCAL_POOL),
    f"{WORKERS} Dask workers": start_dask,
}


def measure(folder: Path, sizes: Sequence[int], assets: int | None) -> list[Timing]:
    """Measure an audit of the universe or of its first assets, and rebuilds of each size."""
    universe, model = repeat_universe(load_universe(), 1), folder / "year.db"
    universe = Universe(assets=universe.assets[:assets], renamed_on=universe.renamed_on)
    asyncio.run(compute_store(model, universe))
    found = time_workload(audit, model, universe)
    for times in sizes:
        larger, path = repeat_universe(universe, times), folder / f"{times}.db"
        asyncio.run(build_outgrown_store(path, model, larger))
        found += time_workload(rebuild, path, larger)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.blocks", description=__doc__)
    parser.add_argument(
        "--times", type=int, nargs="*", default=[1], help="rebuild the universe N times over"
    )
    parser.add_argument("--assets", type=int, help="use only the first N assets of the universe")
    parser.add_argument("--write", action="store_true", help=f"also update docs/{PAGE.name}")
    options = parser.parse_args()
    about = describe_hardware()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options.times, options.assets)
    text = "\n".join([about, "", *TABLE_HEAD, *(one.line for one in found), ""])
    print(text)
    if options.write:
        PAGE.write_text(replace_between_markers(PAGE.read_text(), "dask", text))


if __name__ == "__main__":
    main()
