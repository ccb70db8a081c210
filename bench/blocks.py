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

from bench.table import hardware, replaced
from compute.audit.audit import Audit
from compute.bars import DAY_S, HOUR_S
from compute.batch_rows import funding_rows
from compute.executor import Crews, here
from compute.hourly_pipeline import Runs
from compute.indicators.registry import INDICATORS
from compute.schedule import market_ms
from compute.sources.simulated import LATEST_ORIGIN, SimulatedSource
from compute.state_loader import Restorer, funding_of
from compute.universe import Universe, load_universe
from schemas.vocabulary import TIMEFRAMES, Timeframe
from store.market_rows import BarBlock, CarryRow, Pass
from store.sqlite.market_store import SqliteMarketStore

if TYPE_CHECKING:
    from distributed import Client

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
HEAD = (
    "| what | assets | here | Dask: leader | workers together | at most, these cores "
    "| at most, any number | |",
    "|---|--:|--:|--:|--:|--:|--:|---|",
)
WORKERS = 2
YEAR_S = 365 * DAY_S

Work = Callable[[SqliteMarketStore, Universe, Crews], Awaitable[None]]


class Timed(NamedTuple):
    """Processor seconds of one thing over a year of so many assets, and how they were found."""

    what: str
    assets: int
    here_s: float
    leader_s: float
    workers_s: float
    how: str = "measured"

    def times(self, factor: int) -> "Timed":
        """Return what some times as many assets take, whose blocks are alike."""
        return Timed(
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
        bounds = self.here_s / max(self.leader_s, both / os_cores()), self.here_s / self.leader_s
        shown = (f"{s:,.0f} s" for s in (self.here_s, self.leader_s, self.workers_s))
        cells = [self.what, f"{self.assets:,}", *shown, *(f"{b:.2f}" for b in bounds), self.how]
        return f"| {' | '.join(cells)} |"


def os_cores() -> int:
    return os.cpu_count() or 1


class Dask(NamedTuple):
    """A crew of workers, and a client that asks them for their processor time."""

    crews: Crews
    client: "Client"

    def spent_s(self) -> float:
        return float(sum(self.client.run(time.process_time).values()))


def repeated(universe: Universe, times: int) -> Universe:
    """Return a universe of some times as many assets, under other tickers."""
    assets = tuple(
        asset.model_copy(update={"ticker": f"{asset.ticker}{time or ''}", "continues_as": None})
        for time in range(times)
        for asset in universe.tracked
    )
    return Universe(assets=assets, renamed_on=universe.renamed_on)


async def computed_store(path: Path, universe: Universe) -> None:
    """Compute a year of a simulated market as a first start does."""
    until = LATEST_ORIGIN + YEAR_S
    source = SimulatedSource(universe, LATEST_ORIGIN, lambda: market_ms(until))
    store = await SqliteMarketStore.open(path)
    try:
        runs = Runs(store, source, universe, INDICATORS, lambda: market_ms(until))
        await runs.prepare()
        await runs.catch_up(until)
    finally:
        await store.close()


async def outgrown_store(path: Path, model: Path, universe: Universe) -> None:
    """Repeat a store's bars under other tickers, with carries of a version that is no more."""
    given = await SqliteMarketStore.open(model)
    store = await SqliteMarketStore.open(path)
    try:
        tickers = list(universe.by_ticker)
        known = [block for block in await given.bars() if block.ticker in universe.by_ticker]
        for number in range(0, len(tickers), len(known)):
            blocks = [
                BarBlock(ticker, block.timeframe, block.open_time, block.values)
                for ticker, block in zip(tickers[number:], known, strict=False)
            ]
            await store.commit(await outgrown_pass(given, known, blocks, number))
    finally:
        await store.close()
        await given.close()


async def outgrown_pass(
    given: SqliteMarketStore, known: list[BarBlock], blocks: list[BarBlock], number: int
) -> Pass:
    end = max(int(block.open_time[-1]) for block in known) + HOUR_S
    pairs = zip(known, blocks, strict=True)
    return Pass(
        market_time=market_ms(end) + number,
        bars=blocks,
        funding=[
            row
            for own, block in pairs
            for row in funding_rows(block.ticker, funding_of(await given.funding(own.ticker)))
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
    desk = await Restorer(store, universe, INDICATORS, crews).desk(native)
    if not desk.epochs:
        raise SystemExit("nothing was rebuilt")


async def audit(store: SqliteMarketStore, universe: Universe, crews: Crews) -> None:
    async with crews() as crew:
        report = await Audit(store, universe, INDICATORS, crew).run()
    if report.findings or not report.checked["changes"]:
        raise SystemExit(f"the audit is not clean: {report.findings[:3]}")


async def spent_s(work: Work, path: Path, universe: Universe, crews: Crews) -> float:
    """Return the processor time of this process alone."""
    store = await SqliteMarketStore.open(path)
    try:
        began = time.process_time()
        await work(store, universe, crews)
        return time.process_time() - began
    finally:
        await store.close()


def timed(work: Work, path: Path, universe: Universe, dask: Dask) -> Timed:
    here_s = asyncio.run(spent_s(work, path, universe, here))
    before = dask.spent_s()
    leader_s = asyncio.run(spent_s(work, path, universe, dask.crews))
    workers_s = dask.spent_s() - before
    found = Timed(work.__name__, len(universe.assets), here_s, leader_s, workers_s)
    print(found.line, flush=True)
    return found


@contextmanager
def cluster() -> Iterator[Dask]:
    # Loaded here alone, for the whole bench imports its modules.
    from distributed import Client, LocalCluster

    from service.processes.dask_executor import dask_crew

    with (
        LocalCluster(
            n_workers=WORKERS, processes=True, threads_per_worker=1, dashboard_address=":0"
        ) as running,
        Client(running.scheduler_address, set_as_default=False) as client,
    ):
        yield Dask(partial(dask_crew, running.scheduler_address), client)


def measured(folder: Path, dask: Dask, sizes: Sequence[int]) -> list[Timed]:
    """Measure an audit of one universe, and rebuilds of each size; tell what larger ones take."""
    universe, model = repeated(load_universe(), 1), folder / "year.db"
    asyncio.run(computed_store(model, universe))
    rebuilds = []
    for times in sizes:
        larger, path = repeated(universe, times), folder / f"{times}.db"
        asyncio.run(outgrown_store(path, model, larger))
        rebuilds.append(timed(rebuild, path, larger, dask))
    audited = timed(audit, model, universe, dask)
    return [
        *rebuilds,
        *(rebuilds[-1].times(factor // sizes[-1]) for factor in (10, 100) if factor > sizes[-1]),
        audited,
        *(audited.times(factor) for factor in (10, 100)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.blocks", description=__doc__)
    parser.add_argument("--times", type=int, nargs="*", default=[1, 10], help="of 251 assets")
    parser.add_argument("--write", action="store_true", help=f"into docs/{PAGE.name} too")
    given = parser.parse_args()
    about = hardware()
    with tempfile.TemporaryDirectory() as folder, cluster() as dask:
        found = measured(Path(folder), dask, given.times)
    text = "\n".join([about, "", *HEAD, *(one.line for one in found), ""])
    print(text)
    if given.write:
        PAGE.write_text(replaced(PAGE.read_text(), "dask", text))


if __name__ == "__main__":
    main()
