"""Opens the source that the settings select, and the signer of the feed's log.

The source is live, recorded files, or simulated.
"""

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import chain
from pathlib import Path

from compute.bars import NO_BARS, Series
from compute.rebuild import build_series
from compute.signing.log_signer import LogSigner, OnCheckpoint
from compute.sources.files import FilesSource
from compute.sources.history_checks import check_recorded_past
from compute.sources.live import HISTORY_S, LiveSource
from compute.sources.simulated import SimulatedSource, choose_start, parse_source_name
from compute.sources.source import Source
from compute.sources.venue import DEFAULT_RETRY_POLICY, RetryingVenue, RetryPolicy, Venue
from compute.universe import Universe, VenueOptions
from schemas.version import describe_install
from schemas.vocabulary import Clock
from service.config.settings import Settings, SettingsError, find_proxy
from store.sql.market_store import MarketStore

ALPACA = "alpaca"


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
            venues = await stack.enter_async_context(
                open_live_venues(settings, universe, clock, settings.venues_folder)
            )
            source = live = build_live_source(universe, venues, clock, store)
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
    settings: Settings,
    universe: Universe,
    clock: Clock,
    listings_folder: Path,
    # Setting the wall clock cannot lengthen pauses.
    elapsed_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    draw_jitter: Callable[[], float] = random.random,
) -> AsyncIterator[Mapping[str, Venue]]:
    """Open a client for each venue of the universe; Alpaca's only if its key is set.

    `elapsed_ms` is a monotonic clock in ms, used for pauses and retries. `listings_folder` caches
    the venues' listings and need not exist. SettingsError if the extra `live` is not installed.
    """
    try:
        from compute.sources.alpaca import DATA_ADDRESS, SETTING_NAMES, TRADING_ADDRESS, AlpacaVenue
        from compute.sources.ccxt_venue import CcxtVenue, import_exchange, rebase_url
    except ImportError as error:
        raise SettingsError(
            f"live prices need the extra libraries ({error.name} is missing): run `make live`, or "
            f"{describe_install('live')}"
        ) from None
    key_id, secret_key, base = (
        settings.alpaca_key_id,
        settings.alpaca_secret_key,
        settings.live_api_base,
    )
    venues: dict[str, Venue] = {}
    async with AsyncExitStack() as stack:
        for name, symbols in collect_symbols(universe).items():
            venue: Venue
            if name == ALPACA:
                if key_id is None and secret_key is None:
                    continue
                if key_id is None or secret_key is None:
                    raise SettingsError(f"only one of {SETTING_NAMES} is set: set both, or neither")
                data, trading = (
                    address if base is None else rebase_url(address, base)
                    for address in (DATA_ADDRESS, TRADING_ADDRESS)
                )
                venue = AlpacaVenue(
                    key_id,
                    secret_key.get_secret_value(),
                    data_address=data,
                    trading_address=trading,
                    proxy=find_proxy(data),
                )
            elif import_exchange(name) is not None:
                # Each venue has several hosts.
                proxy = find_proxy(base or f"https://{name}", allows_socks=False)
                path = listings_folder / f"{name}.json"
                venue = CcxtVenue(
                    name,
                    symbols,
                    universe.venues.get(name, VenueOptions()),
                    path,
                    clock,
                    base,
                    proxy=proxy,
                )
            else:
                raise SettingsError(
                    f"the universe file names the venue {name}, which ccxt does not have"
                )
            stack.push_async_callback(venue.close)
            policy = choose_retry_policy(name)
            venues[name] = RetryingVenue(venue, elapsed_ms, sleep, draw_jitter, policy)
        yield venues


def describe_venues(venues: Sequence[str | None]) -> str:
    """Say how many assets have a source that answers; there is a venue or None for each."""
    counts = Counter(venue for venue in venues if venue is not None)
    text = f"{counts.total()} of {len(venues)} assets have a source that answers"
    places = ", ".join(f"{count} at {name}" for name, count in counts.most_common())
    return f"{text}: {places}" if places else text


def collect_symbols(universe: Universe) -> dict[str, set[str]]:
    """Return the symbols of a universe by venue, including perpetuals."""
    symbols_by_venue: defaultdict[str, set[str]] = defaultdict(set)
    for one in chain.from_iterable(asset.listings for asset in universe.assets):
        symbols_by_venue[one.venue] |= {one.symbol, one.perpetual or one.symbol}
    return dict(symbols_by_venue)


def choose_retry_policy(name: str, default: RetryPolicy = DEFAULT_RETRY_POLICY) -> RetryPolicy:
    """Return the retry policy of a venue."""
    # AlpacaVenue joins concurrent calls into one request, so a limit on calls would only split it.
    return default._replace(max_concurrent_calls=1000) if name == ALPACA else default


def build_live_source(
    universe: Universe,
    venues: Mapping[str, Venue],
    clock: Clock,
    store: MarketStore | None,
    history_s: int = HISTORY_S,
) -> LiveSource:
    """Return the live source that continues the bars of a store, if there is one."""

    async def load_bars(ticker: str, after: int) -> Series:
        return NO_BARS if store is None else build_series(await store.bars(ticker, after), "1h")

    async def load_sources() -> dict[str, str]:
        # In order of revision, so the newest one wins.
        return {row.ticker: row.listing for row in (() if store is None else await store.sources())}

    return LiveSource(universe, venues, clock, load_bars, load_sources, history_s)


def check_same_source(settings: Settings, stored_source: str | None, name: str) -> None:
    """Raise SettingsError if a store holds the bars of another source."""
    if stored_source in (None, name):
        return
    setting = "simulated" if parse_source_name(str(stored_source)) else stored_source
    wanted = name.partition(":")[0] if parse_source_name(name) else name
    raise SettingsError(
        f"{settings.store_name} holds bars of the source {setting}: set SIGNALS_SOURCE={setting}, "
        f"or set SIGNALS_DATABASE_URL to another database for {wanted}"
    )


def build_log_signer(settings: Settings, market: MarketStore, clock: Clock) -> LogSigner:
    """Return the signer of a store's log, which asks no witness."""
    return LogSigner(market.feed_log, settings.log_key_path, settings.log_origin, clock)


@asynccontextmanager
async def open_log_signer(
    settings: Settings, market: MarketStore, clock: Clock, on_checkpoint: OnCheckpoint
) -> AsyncIterator[LogSigner]:
    """Open the signer of a store's log with the witnesses of the settings.

    PolicyError if the policy file must be corrected.
    """
    feed_log, path, origin = market.feed_log, settings.log_key_path, settings.log_origin
    if settings.witness_policy is None:
        yield LogSigner(feed_log, path, origin, clock, on_checkpoint)
        return
    # Imported here, because a process without witnesses needs no HTTP client.
    from compute.signing.witnesses import Witnesses, load_witnesses

    listed = load_witnesses(settings.witness_policy)
    proxies = [found[1] for each in listed if (found := find_proxy(each.url))]
    witnesses = Witnesses(
        feed_log, listed, partial(on_checkpoint, "cosigned"), proxy=next(iter(proxies), None)
    )
    try:
        yield LogSigner(feed_log, path, origin, clock, on_checkpoint, witnesses.submit)
        # The end of a recording; after an interruption, the next start asks again.
        await witnesses.settle()
    finally:
        await witnesses.close()
