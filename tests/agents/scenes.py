"""The services that agents query, and all changes of their markets.

Some are filled by hand, one has the whole universe, and one is a market that continues while its
agent waits.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from compute.bars import DAY_S
from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.registry import INDICATORS
from compute.schedule import to_market_ms
from compute.sources.simulated import SimulatedSource
from compute.universe import Universe, load_universe
from schemas.coverage import Coverage, CoveredAsset
from schemas.vocabulary import DAILY_LIMIT, DAY_MS, HOUR_MS, TIMEFRAMES, Action, Timeframe
from store.market_rows import AlertRow, Batch, ChangeRow
from store.sql.market_store import MarketStore
from tests.agents.agent import Agent, Wait
from tests.support.example_market import (
    NOON,
    make_batch,
    make_change,
    make_coverage,
    make_first_readings,
    seed_market,
)
from tests.support.full_universe import fill_full_universe
from tests.support.running_service import ManualClock, RunningService, run_service

FEW_CALLS = 2
ALERT_TICKERS = ("BTC", "ETH", "XAU")
LATE_MS = 120_000


@dataclass
class Scene:
    """A service, all changes in its store, and a function that advances its time."""

    served: RunningService
    rows: list[ChangeRow]
    wait: Wait

    def agent(self, *, has_key: bool = True) -> Agent:
        served = self.served
        api_key = served.api_key if has_key else None
        return Agent(served.client, served.base_url, served.clock, self.wait, api_key)


Opened = AbstractAsyncContextManager[Scene]
Open = Callable[[Path], Opened]


def recording_store(rows: list[ChangeRow]) -> type[MarketStore]:
    """Return a store that also keeps a copy of every change."""

    class Keeping(MarketStore):
        async def commit(self, batch: Batch) -> None:
            await super().commit(batch)
            rows.extend(batch.changes)

    return Keeping


def make_idle_wait(clock: ManualClock) -> Wait:
    """Return a `wait` during which nothing happens."""

    async def wait(until: int) -> None:
        clock.now = max(clock.now, until)

    return wait


@asynccontextmanager
async def open_full_universe(folder: Path) -> AsyncIterator[Scene]:
    """The whole universe with a month of changes, without alerts."""
    rows: list[ChangeRow] = []
    async with run_service(folder, store_class=recording_store(rows)) as served:
        await fill_full_universe(served.market)
        yield Scene(served, rows, make_idle_wait(served.clock))


SOL = CoveredAsset(
    ticker="SOL",
    name="Solana",
    asset_class="crypto",
    timeframes=TIMEFRAMES,
    alerts=("4h", "1d"),
)
POL = CoveredAsset(ticker="POL", name="Polygon", asset_class="crypto", timeframes=TIMEFRAMES)
# In addition to the first readings: NVDA's daily reversal of the 25th, which ends on the 30th.
TURNS: tuple[tuple[int, str, str, Timeframe, int, int], ...] = (
    (NOON - 5 * DAY_MS, "NVDA", "reversals", "1d", 1, -1),
    (NOON - 4 * DAY_MS, "ETH", "llnr", "4h", 0, 1),
    (NOON - 12 * HOUR_MS, "NVDA", "reversals", "1d", 0, 1),
    (NOON - 4 * HOUR_MS, "BTC", "ceres", "4h", 1, 0),
)
ALERTS: tuple[tuple[int, str, Timeframe, Action], ...] = (
    (NOON - 40 * DAY_MS, "enzo", "1d", "LONG"),
    (NOON - 21 * DAY_MS, "llnr", "1d", "SHORT"),
    (NOON - 9 * DAY_MS, "perpkit", "1d", "SHORT"),
    (NOON - 8 * DAY_MS, "llnr", "1d", "CLOSE"),
    (NOON - 3 * DAY_MS, "ceres", "4h", "CLOSE"),
    (NOON - 2 * DAY_MS, "ceres", "4h", "LONG"),
)


def make_handmade_coverage() -> Coverage:
    usual = make_coverage()
    return usual.model_copy(update={"assets": (*usual.assets, SOL, POL)})


async def fill_handmade(market: MarketStore) -> None:
    """Commit first readings of ASSETS, then TURNS and ALERTS in order of time."""
    await market.publish_coverage(make_handmade_coverage())
    start = NOON - 60 * DAY_MS
    first = list(make_first_readings(start))
    pol = make_change(first[-1].created_at + 1, "POL", "enzo", "1d", -1)
    await market.commit(make_batch(start, [*first, pol]))
    passes = [make_batch(turn[0], [make_change(*turn)]) for turn in TURNS]
    passes += [
        Batch(
            at, alerts=[AlertRow(at, "SOL", key, timeframe, at // HOUR_MS * 3600, 0, action, 150.0)]
        )
        for at, key, timeframe, action in ALERTS
    ]
    for one in sorted(passes, key=lambda one: one.market_time):
        await market.commit(one)
    await market.commit(make_batch(NOON, []))


@asynccontextmanager
async def open_handmade(folder: Path, daily_limit: int = DAILY_LIMIT) -> AsyncIterator[Scene]:
    """A few assets with the readings, changes and alerts defined above."""
    rows: list[ChangeRow] = []
    async with run_service(
        folder, store_class=recording_store(rows), daily_limit=daily_limit
    ) as served:
        await fill_handmade(served.market)
        yield Scene(served, rows, make_idle_wait(served.clock))


def open_low_quota(folder: Path) -> Opened:
    """The same service with a quota of a few calls per day."""
    return open_handmade(folder, daily_limit=FEW_CALLS)


@asynccontextmanager
async def open_not_computed(folder: Path) -> AsyncIterator[Scene]:
    """A service that has computed nothing yet; the rows of `seed` follow after ten minutes."""
    rows: list[ChangeRow] = []
    async with run_service(folder, store_class=recording_store(rows)) as served:
        comes_at = served.clock.now + 10 * 60_000

        async def wait(until: int) -> None:
            served.clock.now = until
            if until >= comes_at and not rows:
                await seed_market(served.market, make_coverage())

        yield Scene(served, rows, wait)


def open_simulated(tickers: tuple[str, ...] = ALERT_TICKERS) -> Open:
    """Return an opener of a simulated market that computes every hour while its agent waits."""

    @asynccontextmanager
    async def running_market(folder: Path) -> AsyncIterator[Scene]:
        rows: list[ChangeRow] = []
        clock = ManualClock(NOON)
        async with run_service(folder, store_class=recording_store(rows), clock=clock) as served:
            runs = await _open_pipeline(served.market, tickers, clock)
            await runs.run_until(runs.due_hour)

            async def wait(until: int) -> None:
                while (due := to_market_ms(runs.done_hour) + HOUR_MS) <= until:
                    clock.now = due
                    await runs.run_until(runs.due_hour)
                    clock.now = due + LATE_MS
                    if tuple(runs.late):
                        await runs.run_late()
                clock.now = max(clock.now, until)

            yield Scene(served, rows, wait)

    return running_market


async def _open_pipeline(
    market: MarketStore, tickers: tuple[str, ...], clock: ManualClock
) -> HourlyPipeline:
    packaged = load_universe()
    chosen = tuple(packaged.by_ticker[ticker] for ticker in tickers)
    universe = Universe(assets=chosen, renamed_on=packaged.renamed_on)
    origin = NOON // 1000 // DAY_S * DAY_S - 40 * DAY_S
    return await HourlyPipeline.open(
        market, SimulatedSource(universe, origin, clock), universe, INDICATORS, clock
    )
