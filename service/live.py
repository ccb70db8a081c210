"""The venues of the live source as the settings have them; it is imported for that source alone."""

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from compute.sources.ccxt_venue import CcxtVenue
from compute.sources.steady import SteadyVenue
from compute.sources.venue import Venue
from compute.universe import Universe
from service.settings import Settings

ALPACA = "alpaca"


@asynccontextmanager
async def opened_venues(
    settings: Settings,
    universe: Universe,
    clock: Callable[[], int],
    sleep: Callable[[float], Awaitable[object]],
    spread: Callable[[], float],
) -> AsyncIterator[dict[str, Venue]]:
    """Hold a client of each venue that the universe names; equities' one where it has its key."""
    venues: dict[str, Venue] = {}
    async with AsyncExitStack() as opened:
        for name, wanted in symbols(universe).items():
            venue = _venue(settings, name, wanted, clock)
            if venue is not None:
                opened.push_async_callback(venue.close)
                venues[name] = SteadyVenue(venue, clock, sleep, spread)
        yield venues


def symbols(universe: Universe) -> dict[str, set[str]]:
    """Return the symbols that a universe names by venue, those of perpetuals too."""
    named: defaultdict[str, set[str]] = defaultdict(set)
    for asset in universe.assets:
        for listing in asset.listings:
            named[listing.venue] |= {listing.symbol, listing.perpetual or listing.symbol}
    return dict(named)


def _venue(
    settings: Settings, name: str, wanted: set[str], clock: Callable[[], int]
) -> Venue | None:
    if name == ALPACA:
        return None
    kept = settings.market_path.with_name(f"{settings.market_path.name}-venues") / f"{name}.json"
    return CcxtVenue(name, wanted, kept, clock, settings.live_api_base)
