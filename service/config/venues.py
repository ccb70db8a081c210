"""The venues of the live source as the settings have them; it is imported for that source alone."""

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from compute.sources.alpaca import DATA_ADDRESS, SETTINGS, TRADING_ADDRESS, AlpacaVenue
from compute.sources.ccxt_venue import CcxtVenue, moved
from compute.sources.retrying_venue import PATIENT, Patience, SteadyVenue
from compute.sources.venue import Venue
from compute.universe import Universe
from service.config.settings import Settings, SettingsError

ALPACA = "alpaca"


@asynccontextmanager
async def opened_venues(
    settings: Settings,
    universe: Universe,
    clock: Callable[[], int],
    elapsed: Callable[[], int],
    sleep: Callable[[float], Awaitable[object]],
    spread: Callable[[], float],
    kept: Path,
) -> AsyncIterator[dict[str, Venue]]:
    """Hold a client of each venue that the universe names; equities' one where it has its key.

    `clock` tells epoch ms; pauses are counted by `elapsed`, ms by a clock that nobody sets. What
    they list is `kept` in a folder, which need not be there.
    """
    venues: dict[str, Venue] = {}
    async with AsyncExitStack() as opened:
        for name, wanted in symbols(universe).items():
            venue = _venue(settings, name, wanted, clock, kept)
            if venue is not None:
                opened.push_async_callback(venue.close)
                venues[name] = SteadyVenue(venue, elapsed, sleep, spread, patience_with(name))
        yield venues


def symbols(universe: Universe) -> dict[str, set[str]]:
    """Return the symbols that a universe names by venue, those of perpetuals too."""
    named: defaultdict[str, set[str]] = defaultdict(set)
    for asset in universe.assets:
        for listing in asset.listings:
            named[listing.venue] |= {listing.symbol, listing.perpetual or listing.symbol}
    return dict(named)


def patience_with(name: str, usual: Patience = PATIENT) -> Patience:
    """Return how a venue is asked: all that Alpaca is asked at once goes out as one request."""
    return usual._replace(calls_at_once=1000) if name == ALPACA else usual


def _venue(
    settings: Settings, name: str, wanted: set[str], clock: Callable[[], int], kept: Path
) -> Venue | None:
    if name == ALPACA:
        return _alpaca(settings)
    return CcxtVenue(name, wanted, kept / f"{name}.json", clock, settings.live_api_base)


def _alpaca(settings: Settings) -> AlpacaVenue | None:
    key_id, secret_key = settings.alpaca_key_id, settings.alpaca_secret_key
    if key_id is None and secret_key is None:
        return None
    if key_id is None or secret_key is None:
        raise SettingsError(f"of {SETTINGS} one is not set: set both, or neither")
    data, trading = (_at(settings, address) for address in (DATA_ADDRESS, TRADING_ADDRESS))
    return AlpacaVenue(
        key_id, secret_key.get_secret_value(), data_address=data, trading_address=trading
    )


def _at(settings: Settings, address: str) -> str:
    base = settings.live_api_base
    return address if base is None else moved(address, base)
