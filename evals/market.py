"""The service that questions are about: a small simulated market, always the same.

Its bars are a pure function of the ticker and the hour, and the engine computes its readings.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from access.billing.provider import SandboxBilling
from access.keys_and_quota import create_operator_key
from access.mail import Outbox
from compute.bars import DAY_S
from compute.hourly_pipeline import HourlyPipeline, OnCommit
from compute.indicators.registry import INDICATORS
from compute.sources.simulated import SimulatedSource
from compute.universe import Universe, load_universe
from service.config.settings import Settings
from service.http.app import create_app
from service.http.resources import Resources
from store.opening import open_sqlite_access, open_sqlite_market

TICKERS = (
    *("BTC", "ETH", "BNB", "SOL", "XRP", "DOGE", "ADA", "LINK", "AVAX", "LTC", "POL", "MATIC"),
    *("NVDA", "TSLA", "AAPL", "MSFT", "AMZN", "META"),
    *("XAU", "XAG", "XPT", "XPD"),
)
HISTORY_S = 330 * DAY_S
NOON = 1_790_769_600_000 + 180_000  # 2026-09-30T12:03:00Z
# After the last run's batches for late assets, so that results name the next run.
NOW = NOON + 200_000
ADDRESS = "http://127.0.0.1:8000"


@dataclass
class SettableClock:
    """A clock (epoch ms) that stands still until it is set; data become stale if it runs on."""

    now: int = NOW

    def __call__(self) -> int:
        """Return the time."""
        return self.now


@asynccontextmanager
async def open_eval_market(
    folder: Path, clock: SettableClock, on_commit: OnCommit = lambda batch: None
) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of the service, which has all its history up to NOON, with a key.

    The client calls the service in this process. `on_commit` is called with each batch.
    """
    market = await open_sqlite_market(folder / "market.db")
    access = await open_sqlite_access(folder / "market.db-access")
    try:
        packaged = load_universe()
        assets = tuple(packaged.by_ticker[ticker] for ticker in TICKERS)
        universe = Universe(assets=assets, renamed_on=packaged.renamed_on)
        source = SimulatedSource(universe, NOON // 1000 // DAY_S * DAY_S - HISTORY_S, clock)
        pipeline = await HourlyPipeline.open(
            market, source, universe, INDICATORS, clock, on_commit=on_commit
        )
        await pipeline.run_until(pipeline.due_hour)
        mailer = Outbox(folder / "outbox", "signals@localhost")
        billing = SandboxBilling(access, clock, ADDRESS)
        resources = Resources(market, access, billing, mailer, clock)
        transport = httpx.ASGITransport(create_app(Settings(base_url=ADDRESS), resources))
        api_key = await create_operator_key(access, clock(), "evals")
        headers = {"Authorization": f"Bearer {api_key}"}
        async with httpx.AsyncClient(
            transport=transport, base_url=ADDRESS, headers=headers
        ) as client:
            yield client
    finally:
        await access.close()
        await market.close()
