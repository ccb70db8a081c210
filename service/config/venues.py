"""Opens the clients of the live source's venues. Only that source imports this module."""

from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import ccxt.async_support as ccxt

from compute.sources.alpaca import DATA_ADDRESS, SETTING_NAMES, TRADING_ADDRESS, AlpacaVenue
from compute.sources.ccxt_venue import CcxtVenue, rebase_url
from compute.sources.venue import DEFAULT_RETRY_POLICY, RetryingVenue, RetryPolicy, Venue
from compute.universe import Universe
from schemas.vocabulary import Clock
from service.config.settings import Settings, SettingsError

ALPACA = "alpaca"


@asynccontextmanager
async def open_venues(
    settings: Settings,
    universe: Universe,
    clock: Clock,
    elapsed_ms: Callable[[], int],
    sleep: Callable[[float], Awaitable[object]],
    draw_jitter: Callable[[], float],
    listings_folder: Path,
) -> AsyncIterator[dict[str, Venue]]:
    """Open a client for each venue of the universe; Alpaca's only if its key is set.

    `elapsed_ms` is a monotonic clock in ms, used for pauses and retries. `listings_folder` caches
    the venues' listings and need not exist.
    """
    venues: dict[str, Venue] = {}
    async with AsyncExitStack() as stack:
        for name, venue_symbols in collect_symbols(universe).items():
            venue = _open_venue(settings, name, venue_symbols, clock, listings_folder)
            if venue is not None:
                stack.push_async_callback(venue.close)
                venues[name] = RetryingVenue(
                    venue, elapsed_ms, sleep, draw_jitter, choose_retry_policy(name)
                )
        yield venues


def collect_symbols(universe: Universe) -> dict[str, set[str]]:
    """Return the symbols of a universe by venue, including perpetuals."""
    symbols_by_venue: defaultdict[str, set[str]] = defaultdict(set)
    for asset in universe.assets:
        for listing in asset.listings:
            symbols_by_venue[listing.venue] |= {listing.symbol, listing.perpetual or listing.symbol}
    return dict(symbols_by_venue)


def choose_retry_policy(name: str, default: RetryPolicy = DEFAULT_RETRY_POLICY) -> RetryPolicy:
    """Return the retry policy of a venue."""
    # AlpacaVenue joins concurrent calls into one request, so a limit on calls would only split it.
    return default._replace(max_concurrent_calls=1000) if name == ALPACA else default


def _open_venue(
    settings: Settings,
    name: str,
    symbols: set[str],
    clock: Clock,
    listings_folder: Path,
) -> Venue | None:
    if name == ALPACA:
        return _open_alpaca(settings)
    if name not in ccxt.exchanges:
        raise SettingsError(f"the universe file names the venue {name}, which ccxt does not have")
    return CcxtVenue(name, symbols, listings_folder / f"{name}.json", clock, settings.live_api_base)


def _open_alpaca(settings: Settings) -> AlpacaVenue | None:
    key_id, secret_key = settings.alpaca_key_id, settings.alpaca_secret_key
    if key_id is None and secret_key is None:
        return None
    if key_id is None or secret_key is None:
        raise SettingsError(f"only one of {SETTING_NAMES} is set: set both, or neither")
    data, trading = (
        _rebase_address(settings, address) for address in (DATA_ADDRESS, TRADING_ADDRESS)
    )
    return AlpacaVenue(
        key_id, secret_key.get_secret_value(), data_address=data, trading_address=trading
    )


def _rebase_address(settings: Settings, address: str) -> str:
    base = settings.live_api_base
    return address if base is None else rebase_url(address, base)
