"""A small live service on the venue double, with five assets of three venues."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import date
from functools import partial
from pathlib import Path

from compute.bars import DAY_S, HOUR_S
from compute.hourly_loop import OpenPipeline
from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.contract import Indicator
from compute.indicators.registry import INDICATORS
from compute.schedule import to_market_ms
from compute.sessions import opens_off_hour
from compute.sources.alpaca import AlpacaVenue
from compute.sources.ccxt_venue import CcxtVenue, rebase_url
from compute.sources.live import LiveSource
from compute.sources.venue import DEFAULT_RETRY_POLICY, RetryingVenue, RetryPolicy, Venue
from compute.universe import Asset, Listing, Universe
from service.config.sources import create_bar_loader, create_sources_loader
from service.config.venues import choose_retry_policy, collect_symbols
from store.market_rows import ChangeRow
from store.sql.market_store import MarketStore
from store.sqlite.market_store import open_sqlite_market
from tests.doubles.venues.alpaca import API_KEY_ID, API_SECRET_KEY
from tests.doubles.venues.market import Market
from tests.doubles.venues.sample_markets import halve_bars, make_simulated_markets
from tests.doubles.venues.server import VenuesDouble
from tests.support.running_service import ManualClock

# 2026-09-30T12:00:00Z, a Wednesday; both venues of equities and of metals trade.
START = 1_790_769_600
HISTORY_S = 20 * DAY_S
RETRY_POLICY = DEFAULT_RETRY_POLICY._replace(first_wait_s=0.0)


def make_asset(ticker: str, venue: str, symbol: str, **more: object) -> Asset:
    """Return an asset, by default a coin; `more` are its other fields."""
    plain = {
        "ticker": ticker,
        "name": ticker,
        "asset_class": "crypto",
        "session": "24x7",
        "venue": venue,
        "symbol": symbol,
        "added_on": date(2024, 1, 1),
    }
    return Asset.model_validate(plain | more)


OKX_BTC = Listing(venue="okx", symbol="BTC/USDT", perpetual="BTC/USDT:USDT")
UNIVERSE = Universe(
    assets=(
        make_asset("BTC", "binance", "BTC/USDT", perpetual="BTC/USDT:USDT", fallbacks=(OKX_BTC,)),
        make_asset("ETH", "binance", "ETH/USDT"),
        make_asset("OKB", "okx", "OKB/USDT"),
        make_asset("NVDA", "alpaca", "NVDA", asset_class="stock", session="XNAS"),
        make_asset("XAU", "binance", "XAU/USDT:USDT", asset_class="metal", session="24x5"),
    ),
    renamed_on=date(2026, 8, 17),
)


@dataclass
class LiveService:
    """A store fed by a live source; `waits` holds the pauses between calls, in seconds.

    `clients` maps venue names to their clients.
    """

    source: LiveSource
    runs: HourlyPipeline
    open_pipeline: OpenPipeline
    store: MarketStore
    clock: ManualClock
    waits: list[float]
    clients: dict[str, Venue]

    async def reopen_pipeline(self) -> HourlyPipeline:
        """Replace the pipeline by a new one, as the loop does after an error."""
        self.runs = await self.open_pipeline()
        return self.runs

    async def run_hour(self, hour: int, after_s: int = 5) -> None:
        """Run an hour some seconds after its scheduled time."""
        self.clock.now = to_market_ms(hour) + after_s * 1000
        await self.runs.run_until(hour)

    async def run_late(self, after_s: int) -> None:
        """Run a batch for late assets some seconds after the time of the last run."""
        self.clock.now = to_market_ms(self.runs.done_hour) + after_s * 1000
        await self.runs.run_late()

    async def build_histories(self) -> None:
        """Build the histories that are missing, as the loop does between two runs."""
        async with asyncio.timeout(30):
            while self.runs.building_tickers:
                await self.runs.build_history()
                await asyncio.sleep(0)

    async def load_closes(self, ticker: str) -> list[int]:
        """Return the close times of an asset's stored bars from START on."""
        blocks = await self.store.bars(ticker, START - HOUR_S)
        opens = [at for block in blocks for at in block.open_time.tolist()]
        return [-(-(at + HOUR_S) // HOUR_S) * HOUR_S for at in opens]

    async def load_changes(self) -> list[ChangeRow]:
        return [row async for row in self.store.changes()]


async def list_all_markets(double: VenuesDouble, days_after: int = 2) -> dict[str, Market]:
    """List the markets of every asset on its venues, with bars until some days after START."""
    return await list_universe(double, UNIVERSE, START - 2 * HISTORY_S, START + days_after * DAY_S)


async def list_universe(
    double: VenuesDouble, universe: Universe, first: int, until: int
) -> dict[str, Market]:
    """List the markets of every asset on its venues; return those of the first listings."""
    made = await make_simulated_markets(universe, list(universe.by_ticker), first, until)
    list_markets(double, universe, made)
    return {
        t: double.get_venue(a.venue).get_market(a.symbol) for t, a in universe.by_ticker.items()
    }


def list_markets(double: VenuesDouble, universe: Universe, made: Mapping[str, Market]) -> None:
    """List hourly markets for all listings of the universe; half-hourly ones for stocks."""
    for ticker, market in made.items():
        is_stock = opens_off_hour(universe.by_ticker[ticker].session)
        for listing in universe.by_ticker[ticker].listings:
            venue = double.get_venue(listing.venue)
            venue.add_listing(listing.symbol, halve_bars(market) if is_stock else market)
            if listing.perpetual is not None:
                venue.add_listing(listing.perpetual, market)


@asynccontextmanager
async def open_live_service(
    double: VenuesDouble,
    clock: ManualClock,
    folder: Path,
    universe: Universe = UNIVERSE,
    patience: RetryPolicy = RETRY_POLICY,
    history_s: int = HISTORY_S,
    timeout_s: float = 5.0,
    indicators: Sequence[Indicator] = INDICATORS,
) -> AsyncIterator[LiveService]:
    """Open a live service without pauses, before its first run."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock.now += int(1000 * seconds)
        await asyncio.sleep(0)

    async with AsyncExitStack() as opened:
        clients: dict[str, Venue] = {}
        venues: dict[str, Venue] = {}
        for name, wanted in collect_symbols(universe).items():
            clients[name] = _create_client(double, clock, folder, name, wanted, timeout_s)
            opened.push_async_callback(clients[name].close)
            venues[name] = RetryingVenue(
                clients[name], clock, sleep, lambda: 1.0, choose_retry_policy(name, patience)
            )
        store = await open_sqlite_market(folder / "market.db")
        opened.push_async_callback(store.close)
        loaders = create_bar_loader(store), create_sources_loader(store)
        source = LiveSource(universe, venues, clock, *loaders, history_s)
        await source.open()
        open_pipeline = partial(HourlyPipeline.open, store, source, universe, indicators, clock)
        runs = await open_pipeline()
        yield LiveService(source, runs, open_pipeline, store, clock, waits, clients)


def _create_client(
    double: VenuesDouble,
    clock: ManualClock,
    folder: Path,
    name: str,
    wanted: set[str],
    timeout_s: float,
) -> Venue:
    if name != "alpaca":
        kept = folder / f"{name}.json"
        return CcxtVenue(
            name, wanted, kept, clock, double.base_url, timeout_s=timeout_s, is_paced=False
        )
    data, trading = (
        rebase_url(f"https://{host}.alpaca.markets", double.base_url)
        for host in ("data", "paper-api")
    )
    return AlpacaVenue(
        API_KEY_ID,
        API_SECRET_KEY,
        data_address=data,
        trading_address=trading,
        timeout_s=timeout_s,
        spacing_s=0,
    )
