"""The doctor's checks of live venues: their listings and clocks, and the bars of each asset.

It sends the requests that the next run would send and stores nothing.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from compute.bars import DAY_S
from compute.schedule import describe_clock, judge_clocks
from compute.sessions import list_expected_bars
from compute.sources.live import HISTORY_S, LiveSource, choose_period_s
from compute.sources.venue import Venue, VenueError
from compute.universe import Asset, Listing, Universe
from schemas.vocabulary import Clock
from service.commands.console import Finding, format_names
from service.config.settings import Settings
from service.config.sources import create_bar_loader, create_sources_loader, open_live_venues
from serving.snapshot import build_snapshot
from store.sql.market_store import MarketStore

# 1d readings begin after this many daily bars.
MIN_HISTORY_DAYS = 200
ALPACA = "alpaca"
ALPACA_KEY_SETTINGS = "SIGNALS_ALPACA_KEY_ID and SIGNALS_ALPACA_SECRET_KEY"


async def check_live_source(
    settings: Settings, universe: Universe, store: MarketStore | None, clock: Clock
) -> AsyncIterator[Finding]:
    """Yield the findings of a live source that continues a store, or that starts without one.

    SettingsError if its libraries are missing.
    """
    # A temporary folder: cached listings could be outdated, and files written here could belong to
    # a user other than the service's.
    with TemporaryDirectory() as folder:
        async with open_live_venues(settings, universe, clock, Path(folder)) as venues:
            results = await asyncio.gather(*map(_fetch_listed_symbols, venues.values()))
            results_by_venue = dict(zip(venues, results, strict=True))
            for name, result in results_by_venue.items():
                yield _check_venue(universe, name, result, clock() // 1000)
            source = LiveSource(
                universe, venues, clock, create_bar_loader(store), create_sources_loader(store)
            )
            await source.open()
            async for finding in _check_clocks(source):
                yield finding
            for finding in _check_coverage(universe, source, has_key=ALPACA in venues):
                yield finding
            failure_reasons = {
                name: e.reason for name, e in results_by_venue.items() if isinstance(e, VenueError)
            }
            bar_checks = _BarChecks(universe, venues, source, failure_reasons, clock() // 1000)
            yield await bar_checks.check_history(await _read_daily_tickers(store))
            for finding in await _check_missing_bars(store):
                yield finding
            async for finding in bar_checks.check_freshness():
                yield finding


async def _fetch_listed_symbols(venue: Venue) -> frozenset[str] | VenueError:
    try:
        return await venue.fetch_symbols()
    except VenueError as error:
        return error


def _check_venue(
    universe: Universe, venue: str, listed_symbols: frozenset[str] | VenueError, now: int
) -> Finding:
    """Check that a venue lists the symbols that the universe expects there."""
    symbols_by_role = _group_symbols_by_role(universe, venue, now)
    if isinstance(listed_symbols, VenueError):
        return _report_unavailable_venue(
            venue, listed_symbols, len(symbols_by_role["first choices"])
        )
    missing_by_role = {
        what: [one for one in symbols if one.rpartition(" ")[2] not in listed_symbols]
        for what, symbols in symbols_by_role.items()
    }
    descriptions = [
        f"{len(missing)} of {len(symbols_by_role[what])} {what} ({format_names(missing)})"
        for what, missing in missing_by_role.items()
        if missing
    ]
    if descriptions:
        return Finding("warn", "venue", f"{venue} does not list {'; '.join(descriptions)}")
    counts = [f"{len(symbols)} {what}" for what, symbols in symbols_by_role.items() if symbols]
    if not counts:
        return Finding("ok", "venue", f"{venue} has no open listing in the universe file")
    return Finding("ok", "venue", f"{venue} lists all of {', '.join(counts)}")


def _group_symbols_by_role(universe: Universe, venue: str, now: int) -> dict[str, list[str]]:
    """Return the symbols expected at a venue now, by role: first choice, fallback, perpetual."""
    symbols_by_role: dict[str, list[str]] = {"first choices": [], "fallbacks": [], "perpetuals": []}
    for asset in universe.tracked_assets:
        for rank, listing in enumerate(asset.listings):
            if listing.venue != venue or not listing.is_open(now):
                continue
            symbols_by_role["fallbacks" if rank else "first choices"].append(
                _format_listing(asset, listing.symbol)
            )
            if listing.perpetual is not None:
                symbols_by_role["perpetuals"].append(_format_listing(asset, listing.perpetual))
    return symbols_by_role


def _format_listing(asset: Asset, symbol: str) -> str:
    return f"{asset.ticker} as {symbol}"


def _report_unavailable_venue(name: str, error: VenueError, first_choices: int) -> Finding:
    if not error.is_permanent:
        text = (
            f"{name} is not responding ({error.reason}): it is the first choice of {first_choices} "
            "assets; those with stored bars wait for it"
        )
        return Finding("warn", "venue", text)
    if name == ALPACA:
        return Finding("fix", "venue", error.reason)
    text = (
        f"{name} refuses requests from this IP address, perhaps by country ({error.reason}): it is "
        f"the first choice of {first_choices} assets, which use their fallbacks if they have any"
    )
    return Finding("warn", "venue", text)


async def _check_clocks(source: LiveSource) -> AsyncIterator[Finding]:
    """Yield whether the venues confirm this machine's clock, and whose clocks are wrong."""
    skews_ms = await source.measure_skews_ms()
    if not skews_ms:
        text = "no venue reported its time, so this machine's clock is not checked"
        yield Finding("warn", "clock", text)
        return
    verdict = judge_clocks(skews_ms)
    if verdict.problem is not None:
        yield Finding("fix", "clock", verdict.problem)
        return
    count = len(skews_ms) - len(verdict.wrong_skews_ms)
    text = f"{count} of {len(skews_ms)} venues that reported their time confirm this machine's"
    yield Finding("ok", "clock", text)
    for name, skew_ms in sorted(verdict.wrong_skews_ms.items()):
        yield Finding("warn", "clock", f"{describe_clock(name, skew_ms)}, so it is not believed")


def _check_coverage(universe: Universe, source: LiveSource, *, has_key: bool) -> Iterator[Finding]:
    """Yield how many assets have a source, use a proxy instrument, or have no source."""
    chosen_listings = {
        asset.ticker: _find_chosen_listing(asset, source) for asset in universe.tracked_assets
    }
    covered = {ticker: listing for ticker, listing in chosen_listings.items() if listing}
    counts = Counter(listing.venue for listing in covered.values())
    venue_counts = ", ".join(f"{count} at {name}" for name, count in counts.most_common())
    total = f"{len(covered)} of {len(chosen_listings)} assets have a source"
    yield Finding(
        "ok" if covered else "fix", "assets", f"{total}: {venue_counts}" if venue_counts else total
    )
    if proxies := [ticker for ticker, listing in covered.items() if listing.is_proxy]:
        text = f"{len(proxies)} use a perpetual as proxy ({format_names(proxies)})"
        yield Finding("ok", "assets", text)
    missing_key = [
        ticker
        for ticker in chosen_listings.keys() - covered.keys()
        if not has_key and universe.by_ticker[ticker].venue == ALPACA
    ]
    if missing_key:
        names = format_names(sorted(missing_key))
        text = f"{len(missing_key)} are not covered ({names}): set {ALPACA_KEY_SETTINGS}"
        yield Finding("warn", "assets", text)
    if uncovered := sorted(chosen_listings.keys() - covered.keys() - set(missing_key)):
        text = f"{len(uncovered)} are not covered, because no available venue lists them"
        yield Finding("warn", "assets", f"{text} ({format_names(uncovered)})")


def _find_chosen_listing(asset: Asset, source: LiveSource) -> Listing | None:
    listing_name = source.get_listing(asset.ticker)
    return next((listing for listing in asset.listings if str(listing) == listing_name), None)


async def _read_daily_tickers(store: MarketStore | None) -> set[str] | None:
    """Return the assets with 1d readings in a store, None if it has no snapshot yet."""
    snapshot = None if store is None else build_snapshot(await store.snapshot())
    if snapshot is None:
        return None
    readings = snapshot.stored.readings
    return {t for t, by_key in readings.items() if any("1d" in by for by in by_key.values())}


async def _check_missing_bars(store: MarketStore | None) -> list[Finding]:
    """Return which assets lack bars inside their stored history; nothing before a first start."""
    snapshot = None if store is None else await store.snapshot()
    if snapshot is None or snapshot.market_time is None:
        return []
    if not snapshot.missing_bars:
        return [Finding("ok", "bars", "no bar is missing in the stored history")]
    counts = sorted(snapshot.missing_bars.items(), key=lambda item: (-item[1], item[0]))
    names = format_names([f"{ticker} {count}" for ticker, count in counts])
    text = f"{len(counts)} lack bars in the last 330 days, which their venues do not return"
    return [Finding("warn", "bars", f"{text} ({names})")]


class _BarChecks:
    """Checks the bars of covered assets at their venues; `now` is epoch seconds.

    Venues in `failure_reasons` get no further requests.
    """

    def __init__(
        self,
        universe: Universe,
        venues: Mapping[str, Venue],
        source: LiveSource,
        failure_reasons: Mapping[str, str],
        now: int,
    ) -> None:
        chosen = {asset: _find_chosen_listing(asset, source) for asset in universe.tracked_assets}
        # Why the history of an asset could not be checked, by ticker.
        self._unchecked: Final[dict[str, str]] = {}
        self._covered: Final = {asset.ticker: asset for asset, at in chosen.items() if at}
        self._listings: Final = {asset.ticker: at for asset, at in chosen.items() if at}
        self._venues: Final = venues
        self._source: Final = source
        self._failure_reasons: Final = failure_reasons
        self._now: Final = now

    async def check_history(self, warm_tickers: set[str] | None) -> Finding:
        """Return which assets lack the history for 1d readings, and which were not checked."""
        # With a snapshot, the store knows. Without one, each venue is queried for a single day at
        # the start of that history: fetching all of it takes as long as a first start.
        if warm_tickers is None:
            found = await asyncio.gather(*map(self._has_history, self._covered))
            has_history = dict(zip(self._covered, found, strict=True))
        else:
            has_history = {ticker: ticker in warm_tickers for ticker in self._covered}
        checked = [ticker for ticker in has_history if ticker not in self._unchecked]
        short_tickers = [ticker for ticker in checked if not has_history[ticker]]
        parts = []
        if checked or not self._covered:
            full_count = len(checked) - len(short_tickers)
            parts.append(f"{full_count} of {len(checked)} have history for readings of 1d")
        if short_tickers:
            short = f"{len(short_tickers)} lack bars of {MIN_HISTORY_DAYS} trading days"
            parts.append(f"{short} ({format_names(short_tickers)})")
        by_reason: defaultdict[str, list[str]] = defaultdict(list)
        for ticker, reason in self._unchecked.items():
            by_reason[reason].append(ticker)
        for reason, tickers in by_reason.items():
            text = f"the history of {len(tickers)} was not checked, {reason}"
            parts.append(f"{text} ({format_names(sorted(tickers))})")
        is_ok = bool(checked) and len(parts) == 1
        return Finding("ok" if is_ok else "warn", "bars", "; ".join(parts))

    async def check_freshness(self) -> AsyncIterator[Finding]:
        """Yield how many assets have the newest bar that is due, and why others do not."""
        is_fresh = await asyncio.gather(*map(self._is_fresh, self._covered))
        stale = [ticker for ticker, fresh in zip(self._covered, is_fresh, strict=True) if not fresh]
        count = len(self._covered)
        text = f"{count - len(stale)} of {count} have a fresh bar"
        yield Finding("warn" if stale and len(stale) == count else "ok", "bars", text)
        by_reason: defaultdict[str, list[str]] = defaultdict(list)
        for ticker in stale:
            failure_reason = self._failure_reasons.get(self._listings[ticker].venue)
            late_reason = self._source.late_reasons.get(ticker, "for an unknown reason")
            by_reason[failure_reason or late_reason].append(ticker)
        single_failures = [
            f"{found[0]}: {why}" for why, found in by_reason.items() if len(found) == 1
        ]
        for why, tickers in by_reason.items():
            if len(tickers) > 1:
                text = f"{len(tickers)} have no fresh bar, {why} ({format_names(tickers)})"
                yield Finding("warn", "bars", text)
        if single_failures:
            yield Finding(
                "warn",
                "bars",
                f"{len(single_failures)} have no fresh bar ({format_names(single_failures)})",
            )

    async def _has_history(self, ticker: str) -> bool:
        """Return whether a venue has bars of the first day of the needed history."""
        listing, asset = self._listings[ticker], self._covered[ticker]
        if (reason := self._failure_reasons.get(listing.venue)) is not None:
            self._unchecked[ticker] = reason
            return False
        start, period_s = _find_history_start(asset, self._now), choose_period_s(asset.session)
        try:
            bars = await self._venues[listing.venue].fetch_bars(
                listing.symbol, start, start + DAY_S, period_s
            )
        except VenueError as error:
            self._unchecked[ticker] = error.reason
            return False
        return any(start < bar.open_time + period_s <= start + DAY_S for bar in bars)

    async def _is_fresh(self, ticker: str) -> bool:
        if self._listings[ticker].venue in self._failure_reasons:
            return False
        due_close = self._source.find_last_close(
            ticker, self._now - self._source.get_delay_s(ticker)
        )
        fetched = await self._source.fetch(ticker, due_close - 1, self._now)
        return fetched.watermark >= due_close


def _find_history_start(asset: Asset, now: int) -> int:
    """Return when the first trading day needed for 1d readings opens (epoch seconds)."""
    due_bars = list_expected_bars(asset.session, now - HISTORY_S, now)
    days, first = np.unique(due_bars.day, return_index=True)
    return int(due_bars.begin_time[first[-min(MIN_HISTORY_DAYS, len(days))]])
