"""Which source the settings mean: live venues, a recorded folder, or the store's simulated one."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from compute.bars import NO_BARS, Series
from compute.sources.files import FilesSource
from compute.sources.live import LiveSource
from compute.sources.simulated import SimulatedSource, first_origin, origin_of
from compute.sources.source import Source
from compute.sources.venue import Venue
from compute.state_loader import series_of
from compute.universe import Universe
from schemas.clock import Clock
from service.config.settings import Settings, SettingsError
from store.errors import MarketStore


@asynccontextmanager
async def opened_source(
    settings: Settings, universe: Universe, store: MarketStore, clock: Clock
) -> AsyncIterator[Source]:
    """Open the source for the block; SettingsError where the store remembers another one.

    A simulated market goes on from the origin that the store remembers, a live asset at the venue
    that its stored bars are from.
    """
    known = (await store.progress()).source
    async with AsyncExitStack() as opened:
        source: Source
        if settings.source == LiveSource.name:
            check_known(settings, known, LiveSource.name)
            kept = settings.venues_folder
            venues = await opened.enter_async_context(live_venues(settings, universe, clock, kept))
            source = live = LiveSource(universe, venues, clock, stored_bars(store))
            await live.open(await stored_listings(store))
        elif settings.bars_folder is not None:
            source = FilesSource(settings.bars_folder, universe)
        else:
            origin = None if known is None else origin_of(known)
            source = SimulatedSource(universe, origin or first_origin(clock() // 1000), clock)
        check_known(settings, known, source.name)
        yield source


@asynccontextmanager
async def live_venues(
    settings: Settings, universe: Universe, clock: Clock, kept: Path
) -> AsyncIterator[Mapping[str, Venue]]:
    """Hold the venues' clients, whose libraries are loaded for them alone.

    What venues list is `kept` in a folder.
    """
    try:
        from service.config.venues import opened_venues
    except ImportError as error:
        raise SettingsError(
            f"SIGNALS_SOURCE=live needs more libraries ({error.name} is missing): "
            "pip install 'signals[live]'"
        ) from None
    async with opened_venues(
        settings, universe, clock, elapsed_ms, asyncio.sleep, random.random, kept
    ) as venues:
        yield venues


def elapsed_ms() -> int:
    """Return milliseconds by a clock that nobody sets, which waits are counted by."""
    return time.monotonic_ns() // 1_000_000


def stored_bars(store: MarketStore | None) -> Callable[[str, int], Awaitable[Series]]:
    """Return what returns the hourly bars of an asset in a store that open after a time."""

    async def stored(ticker: str, after: int) -> Series:
        return NO_BARS if store is None else series_of(await store.bars(ticker, after), "1h")

    return stored


async def stored_listings(store: MarketStore | None) -> dict[str, str]:
    """Return where the bars that a store holds are from, by ticker."""
    coverage = None if store is None else (await store.snapshot()).coverage
    assets = () if coverage is None else coverage.assets
    return {asset.ticker: asset.listing for asset in assets if asset.listing is not None}


def check_known(settings: Settings, known: str | None, name: str) -> None:
    """Raise SettingsError where a store remembers another source."""
    if known in (None, name):
        return
    setting = "simulated" if origin_of(str(known)) else known
    raise SettingsError(
        f"{settings.store_name} holds the bars of {known}: set SIGNALS_SOURCE={setting}, "
        f"or SIGNALS_DATABASE_URL to another database for {name}"
    )
