"""The doctor's checks of the source, and of each listing of the universe file.

They send the requests that the next run would send, store nothing and change no file.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

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
    format_names,
    open_progress_bar,
)
from service.config.settings import Settings, SettingsError
from service.config.sources import (
    ALPACA,
    build_live_source,
    check_same_source,
    collect_symbols,
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
            source = build_live_source(universe, venues, clock, store)
            await source.open()
            skews_ms = await source.measure_skews_ms()
            verdict = judge_clocks(skews_ms)
            if not skews_ms:
                text = "no venue reported its time, so this machine's clock is not checked"
                yield Finding("warn", "clock", text)
            elif verdict.problem is not None:
                yield Finding("fix", "clock", verdict.problem)
            else:
                count, total = len(skews_ms) - len(verdict.wrong_skews_ms), len(skews_ms)
                text = f"{count} of {total} venues that reported their time confirm this machine's"
                yield Finding("ok", "clock", text)
                for name, skew_ms in sorted(verdict.wrong_skews_ms.items()):
                    text = f"{describe_clock(name, skew_ms)}, so it is not believed"
                    yield Finding("warn", "clock", text)
            covered = {
                asset.ticker: listing
                for asset in universe.tracked_assets
                for listing in asset.listings
                if str(listing) == source.get_listing(asset.ticker)
            }
            for finding in _check_coverage(universe, covered, source, has_key=ALPACA in venues):
                yield finding
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
                readings = snapshot.stored.readings
                histories = {
                    ticker: any("1d" in by for by in readings.get(ticker, {}).values())
                    for ticker in covered
                }
            yield _check_history(histories)
            if stored is not None and stored.market_time is not None:
                counts = sorted(stored.missing_bars.items(), key=lambda item: (-item[1], item[0]))
                names = format_names([f"{ticker} {count}" for ticker, count in counts])
                lacking = f"{len(counts)} lack bars in the last 330 days, which their venues do not"
                yield (
                    Finding("warn", "bars", f"{lacking} return ({names})")
                    if counts
                    else Finding("ok", "bars", "no bar is missing in the stored history")
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


def _walk_listings(
    universe: Universe, venue: str, now: int
) -> Iterator[tuple[Asset, Listing, str]]:
    for asset in universe.tracked_assets:
        for rank, listing in enumerate(asset.listings):
            if listing.venue == venue and listing.is_open(now):
                yield asset, listing, "fallback" if rank else "first choice"


def _check_venue(universe: Universe, venue: str, listed: Listed, now: int) -> Finding:
    """Check that a venue lists the symbols that the universe expects there."""
    expected: dict[str, list[str]] = {"first choices": [], "fallbacks": [], "perpetuals": []}
    for asset, listing, role in _walk_listings(universe, venue, now):
        expected[f"{role}s"].append(f"{asset.ticker} as {listing.symbol}")
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
    universe: Universe, covered: Mapping[str, Listing], source: LiveSource, *, has_key: bool
) -> Iterator[Finding]:
    """Yield how many assets have a source, use a proxy instrument, or have no source."""
    answering = [source.get_answering_venue(one.ticker) for one in universe.tracked_assets]
    yield Finding("ok" if any(answering) else "fix", "assets", describe_venues(answering))
    if proxies := [ticker for ticker, listing in covered.items() if listing.is_proxy]:
        text = f"{len(proxies)} use a perpetual as proxy ({format_names(proxies)})"
        yield Finding("ok", "assets", text)
    uncovered = [one for one in universe.tracked_assets if one.ticker not in covered]
    without_key = {one.ticker for one in uncovered if not has_key and one.venue == ALPACA}
    if without_key:
        names = format_names(sorted(without_key))
        text = f"{len(without_key)} are not covered ({names}): set {ALPACA_KEY_SETTINGS}"
        yield Finding("warn", "assets", text)
    if unlisted := sorted({one.ticker for one in uncovered} - without_key):
        text = f"{len(unlisted)} are not covered, because no available venue lists them"
        yield Finding("warn", "assets", f"{text} ({format_names(unlisted)})")


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
    by_result: defaultdict[bool | str, list[str]] = defaultdict(list)
    for ticker, found in histories.items():
        by_result[found].append(ticker)
    complete, short = by_result.pop(True, []), by_result.pop(False, [])
    checked = len(complete) + len(short)
    parts = []
    if checked or not histories:
        parts.append(f"{len(complete)} of {checked} have history for readings of 1d")
    if short:
        days = f"bars of {MIN_HISTORY_DAYS} trading days"
        parts.append(f"{len(short)} lack {days} ({format_names(short)})")
    for reason, tickers in by_result.items():
        names = format_names(sorted(tickers))
        parts.append(f"the history of {len(tickers)} was not checked, {reason} ({names})")
    is_ok = bool(checked) and len(parts) == 1
    return Finding("ok" if is_ok else "warn", "bars", "; ".join(parts))


async def _check_freshness(
    source: LiveSource, covered: Mapping[str, Listing], failures: Mapping[str, str], now: int
) -> list[Finding]:
    """Return how many assets have the newest bar that is due, and why others do not."""

    async def find_fault(ticker: str) -> str:
        if (failure := failures.get(covered[ticker].venue)) is not None:
            return failure
        due_close = source.find_last_close(ticker, now - source.get_delay_s(ticker))
        if (await source.fetch(ticker, due_close - 1, now)).watermark >= due_close:
            return ""
        return source.late_reasons.get(ticker) or "for an unknown reason"

    by_fault: defaultdict[str, list[str]] = defaultdict(list)
    for ticker, fault in zip(covered, await asyncio.gather(*map(find_fault, covered)), strict=True):
        by_fault[fault].append(ticker)
    fresh = by_fault.pop("", [])
    text = f"{len(fresh)} of {len(covered)} have a fresh bar"
    findings = [Finding("warn" if covered and not fresh else "ok", "bars", text)]
    for fault, tickers in by_fault.items():
        if len(tickers) > 1:
            text = f"{len(tickers)} have no fresh bar, {fault} ({format_names(tickers)})"
            findings.append(Finding("warn", "bars", text))
    if single := [f"{one[0]}: {fault}" for fault, one in by_fault.items() if len(one) == 1]:
        text = f"{len(single)} have no fresh bar ({format_names(single)})"
        findings.append(Finding("warn", "bars", text))
    return findings


async def check_universe(settings: Settings, clock: Clock) -> AsyncIterator[Finding]:
    """Yield the findings by venue, and whether an asset has no listing left."""
    universe, now = load_universe(settings.universe), clock() // 1000
    tracked = universe.model_copy(update={"assets": universe.tracked_assets})
    lists: dict[str, Listed] = dict.fromkeys(
        sorted(collect_symbols(tracked)), VenueError(f"set {ALPACA_KEY_SETTINGS}")
    )
    with (
        TemporaryDirectory() as folder,
        open_progress_bar("lists of markets", ProgressLog("lists of markets", clock)) as progress,
    ):
        async with open_live_venues(settings, tracked, clock, Path(folder)) as venues:
            lists |= await _fetch_lists(venues, progress)
    checked = dict[str, frozenset[str]]()
    for venue, symbols in lists.items():
        expected = _list_expected(universe, venue, now)
        if isinstance(symbols, VenueError):
            is_wrong_key = symbols.is_permanent and venue == ALPACA
            text = f"not checked: {symbols.reason} ({len(expected)} symbols)"
            yield Finding("fix" if is_wrong_key else "warn", venue, text)
        # If a list lacks so much, the venue's answer is the likelier fault.
        elif (expected and not symbols) or sum(one not in symbols for one in expected) >= max(
            _MIN_JUDGED_SYMBOLS, len(expected) // 2 + 1
        ):
            text = f"not checked: its list lacks most of the file's {len(expected)} symbols"
            yield Finding("warn", venue, text)
        else:
            checked[venue] = symbols
            for finding in _report_venue(universe, venue, symbols, now):
                yield finding
    for finding in _check_assets(universe, checked, now):
        yield finding


def _list_expected(universe: Universe, venue: str, now: int) -> list[str]:
    """Return the symbols that a venue should list now, perpetuals included."""
    return [
        symbol
        for _, listing, _ in _walk_listings(universe, venue, now)
        for symbol in (listing.symbol, listing.perpetual)
        if symbol is not None
    ]


def _report_venue(
    universe: Universe, venue: str, symbols: frozenset[str], now: int
) -> Iterator[Finding]:
    """Yield how many symbols a checked venue lists, and what to correct in the file."""
    expected, faults = _list_expected(universe, venue, now), list[str]()
    for asset, listing, role in _walk_listings(universe, venue, now):
        if listing.symbol not in symbols:
            faults.append(f"{asset.ticker}: does not list {listing.symbol} ({role})")
        elif listing.perpetual and listing.perpetual not in symbols:
            faults.append(f"{asset.ticker}: does not list the perpetual {listing.perpetual}")
    found = sum(one in symbols for one in expected)
    yield Finding("warn" if faults else "ok", venue, f"lists {found} of {len(expected)} symbols")
    faults += [
        f"{asset.ticker}: lists {listing.symbol}, which the file ends on {listing.until}"
        for asset in universe.tracked_assets
        for listing in asset.listings
        if listing.venue == venue and listing.symbol in symbols
        if listing.until is not None and not listing.is_open(now)
    ]
    for text in faults:
        yield Finding("warn", venue, text)


def _check_assets(
    universe: Universe, checked: Mapping[str, frozenset[str]], now: int
) -> Iterator[Finding]:
    """Yield how many assets have a listing that a venue confirms, and which have none left."""
    if not checked:
        yield Finding("fix", "universe", "no venue was checked: check that this machine is online")
        return
    confirmed, dead = list[str](), list[str]()
    for asset in universe.tracked_assets:
        listings = [listing for listing in asset.listings if listing.is_open(now)]
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
