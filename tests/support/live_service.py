"""A small live service on the venue double, with five assets of three venues."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import date
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from compute.audit.audit import audit_market
from compute.bars import DAY_S, HOUR_S
from compute.hourly_loop import HourlyLoop, OpenPipeline
from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.contract import Indicator
from compute.indicators.registry import INDICATORS
from compute.schedule import to_market_ms
from compute.sources.alpaca import AlpacaVenue
from compute.sources.ccxt_venue import CcxtVenue, rebase_url
from compute.sources.files import FilesSource
from compute.sources.live import LiveSource
from compute.sources.venue import DEFAULT_RETRY_POLICY, RetryingVenue, RetryPolicy, Venue
from compute.trading_sessions import opens_off_hour
from compute.universe import Asset, Listing, Universe, VenueOptions, load_universe
from service.config.sources import (
    build_live_source,
    choose_retry_policy,
    collect_symbols,
)
from serving.freshness import build_freshness
from serving.snapshot import build_snapshot
from store.market_rows import AlertRow, ChangeRow, StoredSnapshot
from store.opening import open_sqlite_market
from store.sql.market_store import MarketStore
from tests.doubles.scripted_source import AcceleratedClock, ClockEnded
from tests.doubles.venues.alpaca import API_KEY_ID, API_SECRET_KEY
from tests.doubles.venues.market import Market, halve_bars, make_simulated_markets
from tests.doubles.venues.server import VenuesDouble
from tests.support.row_builders import list_changes
from tests.support.running_service import ManualClock
from tests.support.signals_command import find_free_port
from tests.support.small_market import write_bars, write_table
from tests.support.store_homes import open_and_close

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
    universe: Universe

    async def reopen_pipeline(self) -> HourlyPipeline:
        """Replace the pipeline by a new one, as the loop does after an error."""
        self.runs = await self.open_pipeline()
        return self.runs

    async def start(self, until: int = START) -> None:
        """Run the first start, and build all histories whose venues answer."""
        await self.runs.run_until(until)
        async with asyncio.timeout(30):
            while self.runs.untried_tickers:
                await self.runs.build_history()
                await asyncio.sleep(0)

    async def run_hour(self, hour: int, after_s: int = 5) -> None:
        self.clock.now = to_market_ms(hour) + after_s * 1000
        await self.runs.run_until(hour)

    async def run_late(self, after_s: int) -> None:
        """Run a batch for late assets some seconds after the time of the last run."""
        self.clock.now = to_market_ms(self.runs.done_hour) + after_s * 1000
        await self.runs.run_late()

    async def run_loop(self, clock: AcceleratedClock, until: int, after_s: int = 300) -> None:
        """Run the loop of the service until some seconds after the run of an hour, and kill it."""
        clock.ends_at = to_market_ms(until) // 1000 + after_s
        loop = HourlyLoop(
            self.reopen_pipeline,
            self.store,
            clock,
            clock.sleep,
            pipeline=self.runs,
        )
        with suppress(ClockEnded):
            await loop.run()

    async def build_histories(self) -> None:
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
        return await list_changes(self.store)

    async def load_freshness(self) -> dict[str, Any]:
        return build_freshness(build_snapshot(await self.store.snapshot()), self.clock.now)

    async def check_audit(self) -> None:
        report = await audit_market(self.store, self.universe, INDICATORS)
        assert (report.findings, dict(report.not_verifiable)) == ([], {})


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
        source = build_live_source(universe, venues, clock, store, history_s)
        await source.open()
        open_pipeline = partial(HourlyPipeline.open, store, source, universe, indicators, clock)
        runs = await open_pipeline()
        yield LiveService(source, runs, open_pipeline, store, clock, waits, clients, universe)


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
            name,
            wanted,
            load_venue_options(name),
            kept,
            clock,
            double.base_url,
            timeout_s=timeout_s,
            is_paced=False,
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


@cache
def load_venue_options(name: str) -> VenueOptions:
    return load_universe().venues.get(name, VenueOptions())


KEY = {"alpaca_key_id": API_KEY_ID, "alpaca_secret_key": API_SECRET_KEY}


def build_live_settings(folder: Path, universe: Universe, double: VenuesDouble) -> dict[str, str]:
    """Write the universe into a file, and return the settings of a service on the double."""
    lines = ["[universe]", f"renamed_on = {universe.renamed_on}"]
    for asset in universe.assets:
        values = asset.model_dump(exclude_defaults=True)
        lines += ["[[asset]]", *(f"{name} = {_format_value(one)}" for name, one in values.items())]
    path = folder / "universe.toml"
    path.write_text("\n".join(lines))
    return {
        "source": "live",
        "port": find_free_port(),
        "universe": str(path),
        "live_api_base": double.base_url,
    }


def _format_value(value: Any) -> str:
    """Return a value as TOML."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name} = {_format_value(one)}' for name, one in value.items())}}}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_format_value, value))}]"
    return str(value) if isinstance(value, date) else json.dumps(value)


# Some assets of every venue.
SAMPLE_TICKERS = ("BTC", "FLR", "MNT", "HYPE", "XMR", "AKT", "XAU", "NVDA")


def load_covered_universe(tickers: Iterable[str] | None = None) -> Universe:
    """Return the packaged universe, or part of it, with only listings that the double has.

    The double has no spot markets of Hyperliquid, so HYPE is listed as its perpetual.
    """
    packaged = load_universe()
    chosen = packaged.by_ticker if tickers is None else tickers
    assets = tuple(_move_to_covered_venues(packaged.by_ticker[ticker]) for ticker in chosen)
    return Universe(assets=assets, renamed_on=packaged.renamed_on)


def _move_to_covered_venues(asset: Asset) -> Asset:
    first, *others = map(_move_listing, asset.listings)
    return asset.model_copy(update={**first.model_dump(), "fallbacks": tuple(others)})


def _move_listing(listing: Listing) -> Listing:
    if listing.venue != "hyperliquid" or listing.perpetual is None:
        return listing
    return listing.model_copy(update={"symbol": listing.perpetual})


async def list_packaged_universe(
    double: VenuesDouble, universe: Universe, days: int
) -> dict[str, Market]:
    """List the universe on the double, with bars from some days before START to two days after."""
    first, last = START - (days + 2) * DAY_S, START + 2 * DAY_S
    made = await make_simulated_markets(universe, universe.by_ticker, first, last)
    list_markets(double, universe, made)
    return made


ALPACA_DELAY_S = 900
# Closes (epoch seconds) and tickers.
Late = set[tuple[int, str]]


class StoredResult(NamedTuple):
    """The final content of a store."""

    snapshot: StoredSnapshot
    changes: list[ChangeRow]
    alerts: list[AlertRow]

    @classmethod
    async def load(cls, store: MarketStore) -> "StoredResult":
        changes = await list_changes(store)
        return cls(await store.snapshot(), changes, [row async for row in store.alerts()])


def write_recording(
    folder: Path, made: Mapping[str, Market], funded: Iterable[str], begin: int, end: int
) -> Path:
    """Write the bars that close, and the settlements of the funded, in (begin, end].

    A live source fetches one more day of settlements.
    """
    folder.mkdir()
    for ticker, market in made.items():
        bars = [
            bar
            for bar in market.all_bars()
            if begin < -(-(bar.open_time + HOUR_S) // HOUR_S) * HOUR_S <= end
        ]
        write_bars(folder, ticker, bars)
    for ticker in funded:
        rates = [row for row in made[ticker].settlements if begin - DAY_S < row[0] <= end]
        write_table(folder / f"{ticker}_funding.csv", "ts,funding_rate", rates)
    return folder


async def replay_recording(folder: Path, path: Path, universe: Universe, end: int) -> StoredResult:
    """Step a folder's bars into a new store."""
    async with open_and_close(open_sqlite_market(path)) as store:
        source = FilesSource(folder, universe)
        runs = await HourlyPipeline.open(
            store, source, universe, INDICATORS, lambda: to_market_ms(end)
        )
        await runs.run_until(end)
        return await StoredResult.load(store)


def find_delayed(
    live: StoredResult, replayed: StoredResult, universe: Universe, start: int
) -> Late:
    """Assert that a live store has the rows of a replay; return which came after their run.

    `start` is the close of the first start's last bars (epoch seconds), which shows nothing older:
    of the history before its feed, a live store keeps only the last change of each cell.
    """
    assert live.snapshot.readings == replayed.snapshot.readings
    last = {
        (r.ticker, r.indicator, r.timeframe): r for r in replayed.changes if r.close_time <= start
    }
    kept = [*last.values(), *(row for row in replayed.changes if row.close_time > start)]
    pairs = [
        *zip(
            *(
                sorted(rows, key=lambda r: (r.close_time, r.timeframe, r.ticker, r.indicator))
                for rows in (live.changes, kept)
            ),
            strict=True,
        )
    ]
    late: Late = set()
    for row, other in pairs:
        assert row[1:9] == other[1:9]
        if row.close_time > start:
            assert row.published == other.published
            delay_ms = 1000 * ALPACA_DELAY_S * (universe.by_ticker[row.ticker].venue == "alpaca")
            # If some rows of a run are late, the ones after them come a millisecond earlier for
            # each.
            if abs(row.created_at - other.created_at - delay_ms) >= 1000:
                late.add((row.close_time, row.ticker))
    expected_alerts = [alert[1:] for alert in replayed.alerts if alert.close_time > start]
    assert sorted(alert[1:] for alert in live.alerts) == sorted(expected_alerts)
    created = [row.created_at for row in live.changes]
    assert created == sorted(set(created))
    return late
