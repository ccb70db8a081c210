"""The service that questions are about: a small simulated market, always the same.

Its bars are a pure function of the ticker and the hour, and the engine computes its readings.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from compute.bars import DAY_S
from compute.hourly_pipeline import HourlyPipeline, OnCommit
from compute.indicators.registry import INDICATORS
from compute.sources.simulated import SimulatedSource
from compute.universe import Universe, load_universe
from tools.example_market import NOON
from tools.example_service import NOW, ExampleService, open_example_service

TICKERS = (
    *("BTC", "ETH", "BNB", "SOL", "XRP", "DOGE", "ADA", "LINK", "AVAX", "LTC", "POL", "MATIC"),
    *("NVDA", "TSLA", "AAPL", "MSFT", "AMZN", "META"),
    *("XAU", "XAG", "XPT", "XPD"),
)
HISTORY_S = 330 * DAY_S


@dataclass
class SettableClock:
    """A clock (epoch ms) that stands still until it is set."""

    now: int = NOW

    def __call__(self) -> int:
        """Return the time."""
        return self.now


@dataclass(frozen=True)
class EvalMarket:
    """The service, and its clock: data become stale if it runs on."""

    service: ExampleService
    clock: SettableClock


@asynccontextmanager
async def open_eval_market(
    folder: Path, on_commit: OnCommit = lambda batch: None
) -> AsyncIterator[EvalMarket]:
    """Open the service with all its history up to NOON; `on_commit` is called with each batch."""
    clock = SettableClock()
    async with open_example_service(folder, clock) as service:
        universe = _choose_assets()
        origin = NOON // 1000 // DAY_S * DAY_S - HISTORY_S
        source = SimulatedSource(universe, origin, clock)
        pipeline = await HourlyPipeline.open(
            service.market, source, universe, INDICATORS, clock, on_commit=on_commit
        )
        await pipeline.run_until(pipeline.due_hour)
        yield EvalMarket(service, clock)


def _choose_assets() -> Universe:
    packaged = load_universe()
    assets = tuple(packaged.by_ticker[ticker] for ticker in TICKERS)
    return Universe(assets=assets, renamed_on=packaged.renamed_on)
