"""Which source the settings mean: live venues, a recorded folder, or the store's simulated one."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from compute.bars import Series
from compute.restore import series_of
from compute.sources.files import FilesSource
from compute.sources.simulated import SimulatedSource, first_origin, origin_of
from compute.sources.source import Source
from compute.universe import Universe
from service.settings import Settings, SettingsError
from store.protocol import MarketStore


@asynccontextmanager
async def opened_source(
    settings: Settings, universe: Universe, store: MarketStore, clock: Callable[[], int]
) -> AsyncIterator[Source]:
    """Open the source for the block; SettingsError where the store remembers another one.

    A simulated market goes on from the origin that the store remembers, a live asset at the venue
    that its stored bars are from.
    """
    known = (await store.progress()).source
    async with AsyncExitStack() as opened:
        source: Source
        if settings.source == "live":
            _check_known(settings, known, "live")
            source = await opened.enter_async_context(_live(settings, universe, store, clock))
        elif settings.bars_folder is not None:
            source = FilesSource(settings.bars_folder, universe)
        else:
            origin = None if known is None else origin_of(known)
            source = SimulatedSource(universe, origin or first_origin(clock() // 1000), clock)
        _check_known(settings, known, source.name)
        yield source


def stored_bars(store: MarketStore) -> Callable[[str, int], Awaitable[Series]]:
    """Return what returns the hourly bars of an asset in a store that open after a time."""

    async def stored(ticker: str, after: int) -> Series:
        return series_of(await store.bars(ticker, after), "1h")

    return stored


async def stored_listings(store: MarketStore) -> dict[str, str]:
    """Return where the bars that a store holds are from, by ticker."""
    coverage = (await store.snapshot()).coverage
    assets = () if coverage is None else coverage.assets
    return {asset.ticker: asset.listing for asset in assets if asset.listing is not None}


def _check_known(settings: Settings, known: str | None, name: str) -> None:
    if known in (None, name):
        return
    setting = "simulated" if origin_of(str(known)) else known
    raise SettingsError(
        f"{settings.market_path} holds the bars of {known}: set SIGNALS_SOURCE={setting}, "
        f"or SIGNALS_DATABASE_URL to another file for {name}"
    )


@asynccontextmanager
async def _live(
    settings: Settings, universe: Universe, store: MarketStore, clock: Callable[[], int]
) -> AsyncIterator[Source]:
    """Open the live source; its libraries are loaded for it alone."""
    try:
        from service.live import opened_venues
    except ImportError as error:
        raise SettingsError(
            f"SIGNALS_SOURCE=live needs more libraries ({error.name} is missing): "
            "pip install 'signals[live]'"
        ) from None
    from compute.sources.live import LiveSource

    async with opened_venues(settings, universe, clock, asyncio.sleep, random.random) as venues:
        source = LiveSource(universe, venues, clock, stored_bars(store))
        await source.open(await stored_listings(store))
        yield source
