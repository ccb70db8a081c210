"""Opens the source that the settings select: live, recorded files, or simulated."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from compute.bars import NO_BARS, Series
from compute.sources.files import FilesSource
from compute.sources.history_checks import StoredBarsLoader, check_recorded_past
from compute.sources.live import LiveSource, SourcesLoader
from compute.sources.simulated import SimulatedSource, choose_start, parse_source_name
from compute.sources.source import Source
from compute.sources.venue import Venue
from compute.state_loader import build_series
from compute.universe import Universe
from schemas.vocabulary import Clock
from service.config.settings import Settings, SettingsError
from store.sql.market_store import MarketStore


@asynccontextmanager
async def open_source(
    settings: Settings, universe: Universe, store: MarketStore, clock: Clock
) -> AsyncIterator[Source]:
    """Open the source for the block; SettingsError if the store holds bars of another source.

    SourceError if a recording cannot be read, or if it differs from the bars in the store.
    """
    # A store continues what it holds: the simulated market keeps its origin, and each live asset
    # stays at the venue of its stored bars, because prices differ between venues.
    stored_source = (await store.progress()).source
    async with AsyncExitStack() as stack:
        source: Source
        if settings.source == LiveSource.name:
            check_same_source(settings, stored_source, LiveSource.name)
            listings_folder = settings.venues_folder
            venues = await stack.enter_async_context(
                open_live_venues(settings, universe, clock, listings_folder)
            )
            source = live = LiveSource(
                universe, venues, clock, create_bar_loader(store), create_sources_loader(store)
            )
            await live.open()
        elif settings.bars_folder is not None:
            source = recording = FilesSource(settings.bars_folder, universe)
            if stored_source is None:
                recording.check_begun(clock())
            await check_recorded_past(store, recording, universe)
        else:
            start = None if stored_source is None else parse_source_name(stored_source)
            start = start or choose_start(clock() // 1000)
            source = SimulatedSource(universe, start.origin, clock, priced_at=start.priced_at)
        check_same_source(settings, stored_source, source.name)
        yield source


@asynccontextmanager
async def open_live_venues(
    settings: Settings, universe: Universe, clock: Clock, listings_folder: Path
) -> AsyncIterator[Mapping[str, Venue]]:
    """Open the clients of all venues for the block; listings are cached in `listings_folder`.

    SettingsError if the extra `live` is not installed.
    """
    try:
        from service.config.venues import open_venues
    except ImportError as error:
        raise SettingsError(
            f"SIGNALS_SOURCE=live needs the extra libraries ({error.name} is missing): "
            "pip install 'signals-mcp[live]'"
        ) from None
    async with open_venues(
        settings, universe, clock, read_monotonic_ms, asyncio.sleep, random.random, listings_folder
    ) as venues:
        yield venues


def read_monotonic_ms() -> int:
    """Return the milliseconds of a monotonic clock."""
    # Pauses and retries use it, so that setting the wall clock cannot lengthen them.
    return time.monotonic_ns() // 1_000_000


def create_bar_loader(store: MarketStore | None) -> StoredBarsLoader:
    """Return a loader of stored hourly bars opened after a given time; no store, no bars."""

    async def load_bars(ticker: str, after: int) -> Series:
        return NO_BARS if store is None else build_series(await store.bars(ticker, after), "1h")

    return load_bars


def create_sources_loader(store: MarketStore | None) -> SourcesLoader:
    """Return a loader of the source of each asset's newest stored bars; no store, no sources."""

    async def load_sources() -> dict[str, str]:
        # In order of revision, so the newest one wins.
        rows = () if store is None else await store.sources()
        return {row.ticker: row.listing for row in rows}

    return load_sources


def check_same_source(settings: Settings, stored_source: str | None, name: str) -> None:
    """Raise SettingsError if a store holds the bars of another source."""
    if stored_source in (None, name):
        return
    setting = "simulated" if parse_source_name(str(stored_source)) else stored_source
    raise SettingsError(
        f"{settings.store_name} holds bars of the source {stored_source}: set "
        f"SIGNALS_SOURCE={setting}, or set SIGNALS_DATABASE_URL to another database for {name}"
    )
