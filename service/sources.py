"""Which source the settings mean: a recorded folder, or the simulated market of the store."""

from collections.abc import Callable

from compute.sources.files import FilesSource
from compute.sources.simulated import SimulatedSource, first_origin, origin_of
from compute.sources.source import Source
from compute.universe import Universe
from service.settings import Settings, SettingsError
from store.protocol import MarketStore


async def open_source(
    settings: Settings, universe: Universe, store: MarketStore, clock: Callable[[], int]
) -> Source:
    """Return the source; a simulated market goes on from the origin that the store remembers.

    SettingsError where the store remembers another source.
    """
    known = (await store.progress()).source
    source: Source
    if settings.bars_folder is not None:
        source = FilesSource(settings.bars_folder, universe)
    else:
        origin = None if known is None else origin_of(known)
        source = SimulatedSource(universe, origin or first_origin(clock() // 1000), clock)
    if known not in (None, source.name):
        setting = "simulated" if origin_of(str(known)) else known
        raise SettingsError(
            f"{settings.market_path} holds the bars of {known}: set SIGNALS_SOURCE={setting}, "
            f"or SIGNALS_DATABASE_URL to another file for {source.name}"
        )
    return source
