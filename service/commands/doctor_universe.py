"""`signals doctor --universe`: compares each listing of the universe file with the venues' lists.

It changes no file.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import structlog

from compute.sources.venue import Venue, VenueError
from compute.universe import Asset, Listing, Universe, load_universe
from schemas.vocabulary import Clock
from service.commands.console import (
    Finding,
    OnProgress,
    ProgressLog,
    format_finding,
    format_names,
    open_progress_bar,
)
from service.commands.doctor_live import ALPACA, ALPACA_KEY_SETTINGS
from service.config.settings import Settings
from service.config.sources import open_live_venues

# The venues in the order in which docs/universe.md prefers them, with the quote currency of coins.
_QUOTES: Final = {
    "binance": "USDT",
    "bybit": "USDT",
    "okx": "USDT",
    "gate": "USDT",
    "kucoin": "USDT",
    "hyperliquid": "USDC",
    "coinbase": "USD",
    "kraken": "USD",
}
_PREFERENCE: Final = tuple(_QUOTES)
_PROXY_SYMBOLS: Final = {"binance": "{}/USDT:USDT", "hyperliquid": "XYZ-{}/USDC:USDC"}
_SPOT_ONLY: Final = ("coinbase", "kraken")
# A list that lacks more than half of at least this many symbols is taken as incomplete.
_MIN_JUDGED_SYMBOLS: Final = 6

Symbols = Mapping[str, frozenset[str]]
# A listing that a venue no longer has, or, if the last value is true, only its perpetual.
Gone = tuple[Asset, Listing, bool]


async def check_universe(settings: Settings, clock: Clock) -> int:
    """Print the findings by venue; return 1 if an asset has no listing."""
    # Findings report the same problems that the venues' clients would log.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    universe, now = load_universe(settings.universe), clock() // 1000
    lists = await _fetch_lists(settings, universe, clock)
    findings = _compare(universe, lists, now)
    for finding in findings:
        print(format_finding(finding))
    return 1 if any(finding.grade == "fix" for finding in findings) else 0


async def _fetch_lists(
    settings: Settings, universe: Universe, clock: Clock
) -> dict[str, frozenset[str] | VenueError]:
    """Return the symbols of each venue that the universe names, or the reason for having none."""
    names = {one.venue for asset in universe.tracked_assets for one in asset.listings}
    no_key = VenueError(f"set {ALPACA_KEY_SETTINGS}")
    with (
        TemporaryDirectory() as folder,
        open_progress_bar("lists of markets", ProgressLog("lists of markets", clock)) as progress,
    ):
        wanted = _add_candidates(universe, names)
        async with open_live_venues(settings, wanted, clock, Path(folder)) as venues:
            done = Counter[str]()
            found = await asyncio.gather(
                *(_fetch_list(venues[name], done, len(venues), progress) for name in venues)
            )
    return dict.fromkeys(sorted(names), no_key) | dict(zip(venues, found, strict=True))


async def _fetch_list(
    venue: Venue, done: Counter[str], total: int, on_progress: OnProgress
) -> frozenset[str] | VenueError:
    try:
        return await venue.fetch_symbols()
    except VenueError as error:
        return error
    finally:
        done["venues"] += 1
        on_progress(done["venues"], total)


def _add_candidates(universe: Universe, venues: set[str]) -> Universe:
    """Return the universe with all candidates as listings: a client keeps only listed symbols."""
    assets = tuple(
        asset.model_copy(update={"fallbacks": (*asset.fallbacks, *_list_candidates(asset, venues))})
        for asset in universe.tracked_assets
    )
    return Universe(assets=assets, renamed_on=universe.renamed_on)


def _list_candidates(asset: Asset, venues: set[str]) -> Iterator[Listing]:
    """Yield the symbols that the asset would have at the venues if they named it as others do."""
    if asset.asset_class != "crypto":
        for venue in venues & _PROXY_SYMBOLS.keys():
            yield Listing(venue=venue, symbol=_PROXY_SYMBOLS[venue].format(asset.ticker))
        return
    for venue in sorted(venues & _QUOTES.keys()):
        for base in _list_bases(asset):
            pair = f"{base}/{_QUOTES[venue]}"
            perpetual = None if venue in _SPOT_ONLY else f"{pair}:{_QUOTES[venue]}"
            yield Listing(venue=venue, symbol=pair, perpetual=perpetual)


def _list_bases(asset: Asset) -> list[str]:
    """Return the names of a coin: its ticker, then those in its listings."""
    return list(dict.fromkeys([asset.ticker, *(_get_base(one) for one in asset.listings)]))


def _get_base(listing: Listing) -> str:
    return listing.symbol.partition("/")[0]


def _compare(
    universe: Universe, lists: Mapping[str, frozenset[str] | VenueError], now: int
) -> list[Finding]:
    findings, checked = list[Finding](), dict[str, frozenset[str]]()
    for venue, symbols in lists.items():
        expected = _list_expected(universe, venue, now)
        if isinstance(symbols, VenueError):
            is_wrong_key = symbols.is_permanent and venue == ALPACA
            text = f"not checked: {symbols.reason} ({len(expected)} symbols)"
            findings.append(Finding("fix" if is_wrong_key else "warn", venue, text))
        elif _is_incomplete(symbols, expected):
            text = f"not checked: its list lacks most of the file's {len(expected)} symbols"
            findings.append(Finding("warn", venue, text))
        else:
            checked[venue] = symbols
    for venue in checked:
        findings += _report_venue(universe, venue, checked, now)
    return [*findings, *_check_assets(universe, checked, now)]


def _list_expected(universe: Universe, venue: str, now: int) -> list[str]:
    """Return the symbols that a venue should list now, perpetuals included."""
    return [
        symbol
        for asset in universe.tracked_assets
        for listing in _list_open(asset, now)
        for symbol in (listing.symbol, listing.perpetual)
        if listing.venue == venue and symbol is not None
    ]


def _list_open(asset: Asset, now: int) -> list[Listing]:
    return [listing for listing in asset.listings if listing.is_open(now)]


def _is_incomplete(symbols: frozenset[str], expected: list[str]) -> bool:
    """Return whether a list lacks so much that the venue's answer is the likelier fault."""
    missing_count = len([symbol for symbol in expected if symbol not in symbols])
    is_empty = not symbols and bool(expected)
    return is_empty or missing_count >= max(_MIN_JUDGED_SYMBOLS, len(expected) // 2 + 1)


def _find_gone(universe: Universe, venue: str, symbols: frozenset[str], now: int) -> Iterator[Gone]:
    for asset in universe.tracked_assets:
        for listing in _list_open(asset, now):
            if listing.venue != venue:
                continue
            if listing.symbol not in symbols:
                yield asset, listing, False
            elif listing.perpetual is not None and listing.perpetual not in symbols:
                yield asset, listing, True


def _report_venue(universe: Universe, venue: str, checked: Symbols, now: int) -> Iterator[Finding]:
    symbols, expected = checked[venue], _list_expected(universe, venue, now)
    gone = [*_find_gone(universe, venue, symbols, now)]
    found = len([symbol for symbol in expected if symbol in symbols])
    yield Finding("warn" if gone else "ok", venue, f"lists {found} of {len(expected)} symbols")
    for one in gone:
        yield Finding("warn", venue, _describe_gone(*one, symbols))
    taken = {
        symbol
        for asset in universe.assets
        for listing in asset.listings
        for symbol in (listing.symbol, listing.perpetual)
        if listing.venue == venue
    }
    for asset in universe.tracked_assets:
        ended = (one for one in asset.listings if one.until and not one.is_open(now))
        for listing in ended:
            if listing.venue == venue and listing.symbol in symbols:
                text = f"{asset.ticker}: lists {listing.symbol}, which the file ends on"
                yield Finding("warn", venue, f"{text} {listing.until}")
        for use in _find_possible_uses(asset, venue, checked, taken, now):
            yield Finding("ok", venue, f"{asset.ticker}: {use}")


def _describe_gone(
    asset: Asset, listing: Listing, is_perpetual: bool, symbols: frozenset[str]
) -> str:
    if is_perpetual:
        return f"{asset.ticker}: does not list the perpetual {listing.perpetual}"
    role = "first choice" if listing == asset.listings[0] else "fallback"
    text = f"{asset.ticker}: does not list {listing.symbol} ({role})"
    known = {one.symbol for one in asset.listings if one.venue == listing.venue}
    renamed = [
        symbol
        for base in _list_bases(asset)
        if (symbol := listing.symbol.replace(_get_base(listing), base, 1)) in symbols - known
    ]
    return f"{text}; renamed? It lists {', '.join(renamed)}" if renamed else text


def _find_possible_uses(
    asset: Asset, venue: str, checked: Symbols, taken: set[str | None], now: int
) -> Iterator[str]:
    """Yield the untaken symbols of a venue that may be the asset's, and what they could serve."""
    usable = [
        one
        for one in _list_open(asset, now)
        if one.venue not in checked or one.symbol in checked[one.venue]
    ]
    here = [one for one in usable if one.venue == venue]
    free = checked[venue] - taken
    for candidate in _list_candidates(asset, {venue}):
        if here and here[0].perpetual is None and candidate.perpetual in free:
            if _get_base(candidate) == _get_base(here[0]):
                yield f"lists the perpetual {candidate.perpetual}, which could give its funding"
        elif not here and candidate.symbol in free and _is_preferred(venue, asset, usable):
            kind = "proxy instrument" if candidate.is_proxy else "listing"
            yield f"lists {candidate.symbol}, a possible {kind} if it is the same asset"


def _is_preferred(venue: str, asset: Asset, usable: list[Listing]) -> bool:
    """Return whether a coin's venue comes before those in use; proxies are always welcome."""
    if asset.asset_class != "crypto" or not usable:
        return True
    ranks = [_PREFERENCE.index(one.venue) for one in usable if one.venue in _PREFERENCE]
    return _PREFERENCE.index(venue) < min(ranks, default=0)


def _check_assets(universe: Universe, checked: Symbols, now: int) -> Iterator[Finding]:
    if not checked:
        yield Finding("fix", "universe", "no venue was checked: check that this machine is online")
        return
    confirmed, dead = list[str](), list[str]()
    for asset in universe.tracked_assets:
        listings = _list_open(asset, now)
        if any(one.symbol in checked.get(one.venue, ()) for one in listings):
            confirmed.append(asset.ticker)
        elif all(one.venue in checked for one in listings):
            dead.append(asset.ticker)
    total = len(universe.tracked_assets)
    text = f"{len(confirmed)} of {total} assets have a listing that a venue confirms"
    if unknown := total - len(confirmed) - len(dead):
        text += f"; {unknown} without one have listings that are not checked"
    yield Finding("warn" if unknown else "ok", "universe", text)
    if dead:
        names = format_names(dead)
        text = f"without any listing left: {names}; add one each, or set removed_on"
        yield Finding("fix", "universe", text)
