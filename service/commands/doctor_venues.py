"""The doctor's checks of the source, and of each listing of the universe file.

They send the requests that the next run would send, store nothing and change no file.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np
import structlog

from compute.bars import DAY_S
from compute.schedule import describe_clock, judge_clocks
from compute.sources.files import FilesSource
from compute.sources.live import HISTORY_S, LiveSource, choose_period_s
from compute.sources.source import Source, SourceError
from compute.sources.venue import Venue, VenueError
from compute.trading_sessions import list_expected_bars
from compute.universe import Asset, Listing, Universe, UniverseError, load_universe
from schemas.vocabulary import Clock
from service.commands.console import (
    Finding,
    ProgressLog,
    format_finding,
    format_names,
    open_progress_bar,
)
from service.config.settings import Settings, SettingsError
from service.config.sources import (
    ALPACA,
    check_same_source,
    create_bar_loader,
    create_sources_loader,
    describe_venues,
    open_live_venues,
    open_source,
)
from serving.snapshot import build_snapshot
from store.sql.market_store import MarketStore
from store.store_errors import StoreError

# 1d readings begin after this many daily bars.
MIN_HISTORY_DAYS = 200
ALPACA_KEY_SETTINGS = "SIGNALS_ALPACA_KEY_ID and SIGNALS_ALPACA_SECRET_KEY"
# The venues in the order of compute/universe.toml, with the quote currency of coins.
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
_RANKS: Final = {venue: rank for rank, venue in enumerate(_QUOTES)}
_PROXY_SYMBOLS: Final = {"binance": "{}/USDT:USDT", "hyperliquid": "XYZ-{}/USDC:USDC"}
_SPOT_ONLY: Final = ("coinbase", "kraken")
# A list that lacks more than half of at least this many symbols is taken as incomplete.
_MIN_JUDGED_SYMBOLS: Final = 6

# The symbols that a venue lists, or why it did not say.
Listed = frozenset[str] | VenueError


async def examine_source(
    settings: Settings, store: MarketStore | None, clock: Clock
) -> AsyncIterator[Finding]:
    """Yield the findings of a source that continues a store, or starts without one."""
    try:
        universe = load_universe(settings.universe)
        if settings.source == LiveSource.name:
            stored_source = None if store is None else (await store.progress()).source
            check_same_source(settings, stored_source, LiveSource.name)
            async for finding in _examine_live_source(settings, universe, store, clock):
                yield finding
        elif store is not None:
            async with open_source(settings, universe, store, clock) as source:
                yield _describe_source(source)
        elif settings.bars_folder is not None:
            recording = FilesSource(settings.bars_folder, universe)
            recording.check_begun(clock())
            yield _describe_source(recording)
    except (SettingsError, SourceError, StoreError, UniverseError) as error:
        yield Finding("fix", "source", str(error))


def _describe_source(source: Source) -> Finding:
    """Name the source, and the parts of a recording that are left out."""
    faults: list[str] = []
    if isinstance(source, FilesSource):
        faults += [f"{rows} rows rejected: {why}" for why, rows in source.rejected_counts.items()]
        faults += source.doubts
        if source.ignored_names:
            faults.append(f"files ignored: {format_names(source.ignored_names)}")
    name = "simulated. For real prices: make live" if source.kind == "simulated" else source.name
    return Finding("warn" if faults else "ok", "source", "; ".join([name, *faults]))


async def _examine_live_source(
    settings: Settings, universe: Universe, store: MarketStore | None, clock: Clock
) -> AsyncIterator[Finding]:
    # A temporary folder: cached listings could be outdated, and files written here could belong to
    # a user other than the service's.
    with TemporaryDirectory() as folder:
        async with open_live_venues(settings, universe, clock, Path(folder)) as venues:
            lists = await _fetch_lists(venues)
            for name, listed in lists.items():
                yield _check_venue(universe, name, listed, clock() // 1000)
            source = LiveSource(
                universe, venues, clock, create_bar_loader(store), create_sources_loader(store)
            )
            await source.open()
            skews_ms = await source.measure_skews_ms()
            verdict = judge_clocks(skews_ms)
            if not skews_ms:
                yield Finding(
                    "warn",
                    "clock",
                    "no venue reported its time, so this machine's clock is not checked",
                )
            elif verdict.problem is not None:
                yield Finding("fix", "clock", verdict.problem)
            else:
                count, total = len(skews_ms) - len(verdict.wrong_skews_ms), len(skews_ms)
                text = f"{count} of {total} venues that reported their time confirm this machine's"
                yield Finding("ok", "clock", text)
                for name, skew_ms in sorted(verdict.wrong_skews_ms.items()):
                    text = f"{describe_clock(name, skew_ms)}, so it is not believed"
                    yield Finding("warn", "clock", text)
            answering = [source.get_answering_venue(one.ticker) for one in universe.tracked_assets]
            chosen: dict[str, Listing | None] = {}
            for asset in universe.tracked_assets:
                used = source.get_listing(asset.ticker)
                chosen[asset.ticker] = next((at for at in asset.listings if str(at) == used), None)
            for finding in _check_coverage(universe, chosen, answering, has_key=ALPACA in venues):
                yield finding
            covered = {ticker: listing for ticker, listing in chosen.items() if listing}
            # These venues get no further requests.
            failures = {name: e.reason for name, e in lists.items() if isinstance(e, VenueError)}
            now, stored = clock() // 1000, None if store is None else await store.snapshot()
            snapshot = None if stored is None else build_snapshot(stored)
            # With a snapshot, the store knows. Without one, each venue is queried for a single day
            # at the start of that history: fetching all of it takes as long as a first start.
            if snapshot is None:
                probes = (
                    _probe_history(venues, universe.by_ticker[ticker], at, failures, now)
                    for ticker, at in covered.items()
                )
                histories = dict(zip(covered, await asyncio.gather(*probes), strict=True))
            else:
                histories = {
                    ticker: any(
                        "1d" in by for by in snapshot.stored.readings.get(ticker, {}).values()
                    )
                    for ticker in covered
                }
            yield _check_history(histories)
            if stored is not None and stored.market_time is not None:
                counts = sorted(stored.missing_bars.items(), key=lambda item: (-item[1], item[0]))
                names = format_names([f"{ticker} {count}" for ticker, count in counts])
                yield Finding(
                    "warn" if counts else "ok",
                    "bars",
                    f"{len(counts)} lack bars in the last 330 days, which their venues do not "
                    f"return ({names})"
                    if counts
                    else "no bar is missing in the stored history",
                )
            for finding in await _check_freshness(source, covered, failures, now):
                yield finding


async def _fetch_lists(
    venues: Mapping[str, Venue], on_progress: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, Listed]:
    """Return the symbols that each venue lists, fetched at once."""
    done = Counter[str]()

    async def fetch(venue: Venue) -> Listed:
        try:
            return await venue.fetch_symbols()
        except VenueError as error:
            return error
        finally:
            done["venues"] += 1
            on_progress(done["venues"], len(venues))

    return dict(zip(venues, await asyncio.gather(*map(fetch, venues.values())), strict=True))


def _check_venue(universe: Universe, venue: str, listed: Listed, now: int) -> Finding:
    """Check that a venue lists the symbols that the universe expects there."""
    expected: dict[str, list[str]] = {"first choices": [], "fallbacks": [], "perpetuals": []}
    for asset in universe.tracked_assets:
        for rank, listing in enumerate(asset.listings):
            if listing.venue == venue and listing.is_open(now):
                role = "fallbacks" if rank else "first choices"
                expected[role].append(f"{asset.ticker} as {listing.symbol}")
                if listing.perpetual is not None:
                    expected["perpetuals"].append(f"{asset.ticker} as {listing.perpetual}")
    if isinstance(listed, VenueError):
        first_choices = len(expected["first choices"])
        if listed.is_permanent and venue == ALPACA:
            return Finding("fix", "venue", listed.reason)
        return Finding(
            "warn",
            "venue",
            f"{venue} refuses requests from this IP address, perhaps by country "
            f"({listed.reason}): it is the first choice of {first_choices} assets, which use "
            "their fallbacks if they have any"
            if listed.is_permanent
            else f"{venue} is not responding ({listed.reason}): it is the first choice of "
            f"{first_choices} assets; those with stored bars wait for it",
        )
    faults, counts = list[str](), list[str]()
    for role, symbols in expected.items():
        missing = [one for one in symbols if one.rpartition(" ")[2] not in listed]
        if missing:
            faults.append(f"{len(missing)} of {len(symbols)} {role} ({format_names(missing)})")
        if symbols:
            counts.append(f"{len(symbols)} {role}")
    if faults:
        return Finding("warn", "venue", f"{venue} does not list {'; '.join(faults)}")
    if not counts:
        return Finding("ok", "venue", f"{venue} has no open listing in the universe file")
    return Finding("ok", "venue", f"{venue} lists all of {', '.join(counts)}")


def _check_coverage(
    universe: Universe,
    chosen: Mapping[str, Listing | None],
    answering: Sequence[str | None],
    *,
    has_key: bool,
) -> Iterator[Finding]:
    """Yield how many assets have a source, use a proxy instrument, or have no source."""
    covered = {ticker: listing for ticker, listing in chosen.items() if listing}
    yield Finding("ok" if any(answering) else "fix", "assets", describe_venues(answering))
    if proxies := [ticker for ticker, listing in covered.items() if listing.is_proxy]:
        yield Finding(
            "ok", "assets", f"{len(proxies)} use a perpetual as proxy ({format_names(proxies)})"
        )
    uncovered = chosen.keys() - covered.keys()
    missing_key = {
        ticker for ticker in uncovered if not has_key and universe.by_ticker[ticker].venue == ALPACA
    }
    if missing_key:
        names = format_names(sorted(missing_key))
        yield Finding(
            "warn",
            "assets",
            f"{len(missing_key)} are not covered ({names}): set {ALPACA_KEY_SETTINGS}",
        )
    if unlisted := sorted(uncovered - missing_key):
        yield Finding(
            "warn",
            "assets",
            f"{len(unlisted)} are not covered, because no available venue lists them "
            f"({format_names(unlisted)})",
        )


async def _probe_history(
    venues: Mapping[str, Venue],
    asset: Asset,
    listing: Listing,
    failures: Mapping[str, str],
    now: int,
) -> bool | str:
    """Return whether a venue has the first day of the history for 1d readings, or why unknown."""
    if listing.venue in failures:
        return failures[listing.venue]
    due_bars = list_expected_bars(asset.session, now - HISTORY_S, now)
    days, first = np.unique(due_bars.day, return_index=True)
    start = int(due_bars.begin_time[first[-min(MIN_HISTORY_DAYS, len(days))]])
    end, period_s = start + DAY_S, choose_period_s(asset.session)
    try:
        bars = await venues[listing.venue].fetch_bars(listing.symbol, start, end, period_s)
    except VenueError as error:
        return error.reason
    return any(start < bar.open_time + period_s <= end for bar in bars)


def _check_history(histories: Mapping[str, bool | str]) -> Finding:
    """Return which assets lack the history for 1d readings, and which were not checked."""
    checked = [ticker for ticker, found in histories.items() if isinstance(found, bool)]
    short_tickers = [ticker for ticker in checked if not histories[ticker]]
    parts = []
    if checked or not histories:
        parts.append(
            f"{len(checked) - len(short_tickers)} of {len(checked)} have history for readings of 1d"
        )
    if short_tickers:
        parts.append(
            f"{len(short_tickers)} lack bars of {MIN_HISTORY_DAYS} trading days "
            f"({format_names(short_tickers)})"
        )
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for ticker, found in histories.items():
        if isinstance(found, str):
            by_reason[found].append(ticker)
    for reason, tickers in by_reason.items():
        names = format_names(sorted(tickers))
        parts.append(f"the history of {len(tickers)} was not checked, {reason} ({names})")
    is_ok = bool(checked) and len(parts) == 1
    return Finding("ok" if is_ok else "warn", "bars", "; ".join(parts))


async def _check_freshness(
    source: LiveSource, covered: Mapping[str, Listing], failures: Mapping[str, str], now: int
) -> list[Finding]:
    """Return how many assets have the newest bar that is due, and why others do not."""

    async def is_fresh(ticker: str) -> bool:
        if covered[ticker].venue in failures:
            return False
        due_close = source.find_last_close(ticker, now - source.get_delay_s(ticker))
        return (await source.fetch(ticker, due_close - 1, now)).watermark >= due_close

    are_fresh = await asyncio.gather(*map(is_fresh, covered))
    stale = [ticker for ticker, fresh in zip(covered, are_fresh, strict=True) if not fresh]
    text = f"{len(covered) - len(stale)} of {len(covered)} have a fresh bar"
    are_all_stale = bool(stale) and len(stale) == len(covered)
    findings = [Finding("warn" if are_all_stale else "ok", "bars", text)]
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for ticker in stale:
        reason = failures.get(covered[ticker].venue) or source.late_reasons.get(ticker)
        by_reason[reason or "for an unknown reason"].append(ticker)
    single_failures = [f"{found[0]}: {why}" for why, found in by_reason.items() if len(found) == 1]
    for why, tickers in by_reason.items():
        if len(tickers) > 1:
            text = f"{len(tickers)} have no fresh bar, {why} ({format_names(tickers)})"
            findings.append(Finding("warn", "bars", text))
    if single_failures:
        text = f"{len(single_failures)} have no fresh bar ({format_names(single_failures)})"
        findings.append(Finding("warn", "bars", text))
    return findings


async def check_universe(settings: Settings, clock: Clock) -> int:
    """Print the findings by venue; return 1 if an asset has no listing."""
    # Findings report the same problems that the venues' clients would log.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    universe, now = load_universe(settings.universe), clock() // 1000
    names = {one.venue for asset in universe.tracked_assets for one in asset.listings}
    # With all candidates as listings, because a client keeps only listed symbols.
    wanted = Universe(
        assets=tuple(
            asset.model_copy(
                update={"fallbacks": (*asset.fallbacks, *_list_candidates(asset, names))}
            )
            for asset in universe.tracked_assets
        ),
        renamed_on=universe.renamed_on,
    )
    lists: dict[str, Listed] = dict.fromkeys(
        sorted(names), VenueError(f"set {ALPACA_KEY_SETTINGS}")
    )
    with (
        TemporaryDirectory() as folder,
        open_progress_bar("lists of markets", ProgressLog("lists of markets", clock)) as progress,
    ):
        async with open_live_venues(settings, wanted, clock, Path(folder)) as venues:
            lists |= await _fetch_lists(venues, progress)
    findings, checked = list[Finding](), dict[str, frozenset[str]]()
    for venue, symbols in lists.items():
        expected = _list_expected(universe, venue, now)
        if isinstance(symbols, VenueError):
            is_wrong_key = symbols.is_permanent and venue == ALPACA
            text = f"not checked: {symbols.reason} ({len(expected)} symbols)"
            findings.append(Finding("fix" if is_wrong_key else "warn", venue, text))
        # If a list lacks so much, the venue's answer is the likelier fault.
        elif (expected and not symbols) or sum(one not in symbols for one in expected) >= max(
            _MIN_JUDGED_SYMBOLS, len(expected) // 2 + 1
        ):
            text = f"not checked: its list lacks most of the file's {len(expected)} symbols"
            findings.append(Finding("warn", venue, text))
        else:
            checked[venue] = symbols
    for venue in checked:
        findings += _report_venue(universe, venue, checked, now)
    findings += _check_assets(universe, checked, now)
    for finding in findings:
        print(format_finding(finding))
    return 1 if any(finding.grade == "fix" for finding in findings) else 0


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


def _report_venue(
    universe: Universe, venue: str, checked: Mapping[str, frozenset[str]], now: int
) -> Iterator[Finding]:
    """Yield how many symbols a checked venue lists, and what to correct or try in the file."""
    symbols, expected = checked[venue], _list_expected(universe, venue, now)
    gone = []
    here = ((one, at) for one in universe.tracked_assets for at in _list_open(one, now))
    for asset, listing in here:
        if listing.venue == venue and listing.symbol not in symbols:
            role = "first choice" if listing == asset.listings[0] else "fallback"
            text = f"{asset.ticker}: does not list {listing.symbol} ({role})"
            known = {one.symbol for one in asset.listings if one.venue == venue}
            names = (
                listing.symbol.replace(_get_base(listing), base, 1) for base in _list_bases(asset)
            )
            if renamed := [one for one in names if one in symbols - known]:
                text += f"; renamed? It lists {', '.join(renamed)}"
            gone.append(text)
        elif listing.venue == venue and listing.perpetual and listing.perpetual not in symbols:
            gone.append(f"{asset.ticker}: does not list the perpetual {listing.perpetual}")
    found = sum(one in symbols for one in expected)
    yield Finding("warn" if gone else "ok", venue, f"lists {found} of {len(expected)} symbols")
    for text in gone:
        yield Finding("warn", venue, text)
    taken = {
        symbol
        for asset in universe.assets
        for listing in asset.listings
        for symbol in (listing.symbol, listing.perpetual)
        if listing.venue == venue
    }
    for asset in universe.tracked_assets:
        for listing in (one for one in asset.listings if one.until and not one.is_open(now)):
            if listing.venue == venue and listing.symbol in symbols:
                text = f"{asset.ticker}: lists {listing.symbol}, which the file ends on"
                yield Finding("warn", venue, f"{text} {listing.until}")
        for use in _find_possible_uses(asset, venue, checked, taken, now):
            yield Finding("ok", venue, f"{asset.ticker}: {use}")


def _find_possible_uses(
    asset: Asset,
    venue: str,
    checked: Mapping[str, frozenset[str]],
    taken: set[str | None],
    now: int,
) -> Iterator[str]:
    """Yield the untaken symbols of a venue that may be the asset's, and what they could serve."""
    usable = [
        one
        for one in _list_open(asset, now)
        if one.venue not in checked or one.symbol in checked[one.venue]
    ]
    here = [one for one in usable if one.venue == venue]
    free = checked[venue] - taken
    # A coin's venue must come before those in use; proxies are always welcome.
    ranks = [_RANKS[one.venue] for one in usable if one.venue in _RANKS]
    is_preferred = (
        asset.asset_class != "crypto"
        or not usable
        or _RANKS.get(venue, len(_RANKS)) < min(ranks, default=0)
    )
    for candidate in _list_candidates(asset, {venue}):
        if here and here[0].perpetual is None and candidate.perpetual in free:
            if _get_base(candidate) == _get_base(here[0]):
                yield f"lists the perpetual {candidate.perpetual}, which could give its funding"
        elif not here and candidate.symbol in free and is_preferred:
            kind = "proxy instrument" if candidate.is_proxy else "listing"
            yield f"lists {candidate.symbol}, a possible {kind} if it is the same asset"


def _check_assets(
    universe: Universe, checked: Mapping[str, frozenset[str]], now: int
) -> Iterator[Finding]:
    """Yield how many assets have a listing that a venue confirms, and which have none left."""
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
        yield Finding(
            "fix",
            "universe",
            f"without any listing left: {format_names(dead)}; add one each, or set removed_on",
        )
