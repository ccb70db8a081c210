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
from compute.sessions import list_expected_bars
from compute.sources.live import HISTORY_S, MAX_SKEW_MS, LiveSource, choose_period_s
from compute.sources.venue import Venue, VenueError
from compute.universe import Asset, Listing, Universe
from schemas.clock import Clock
from service.commands.console import Finding, format_names
from service.config.settings import Settings
from service.config.sources import create_bar_loader, load_listings, open_live_venues
from serving.snapshot_cache import build_snapshot
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
                yield _check_venue(universe, name, result)
            source = LiveSource(universe, venues, clock, create_bar_loader(store))
            await source.open(await load_listings(store))
            yield await _check_clock(source)
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
    universe: Universe, venue: str, listed_symbols: frozenset[str] | VenueError
) -> Finding:
    """Check that a venue lists the symbols that the universe expects there."""
    symbols_by_role = _group_symbols_by_role(universe, venue)
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
    return Finding("ok", "venue", f"{venue} lists all of {', '.join(counts)}")


def _group_symbols_by_role(universe: Universe, venue: str) -> dict[str, list[str]]:
    """Return the symbols expected at a venue, by role: first choice, fallback, perpetual."""
    symbols_by_role: dict[str, list[str]] = {"first choices": [], "fallbacks": [], "perpetuals": []}
    for asset in universe.tracked_assets:
        for rank, listing in enumerate(asset.listings):
            if listing.venue != venue:
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
        text = f"{name} is not responding ({error.reason}): {first_choices} assets wait for it"
        return Finding("warn", "venue", text)
    if name == ALPACA:
        return Finding("fix", "venue", error.reason)
    text = (
        f"{name} refuses requests from this IP address, perhaps by country ({error.reason}): "
        f"{first_choices} assets use their fallbacks"
    )
    return Finding("warn", "venue", text)


async def _check_clock(source: LiveSource) -> Finding:
    skew_ms = await source.measure_skew_ms()
    if skew_ms is None:
        return Finding(
            "warn", "clock", "no venue reported its time, so this machine's clock is not checked"
        )
    side = "ahead of" if skew_ms > 0 else "behind"
    text = f"this machine's clock is {abs(skew_ms) / 1000:.1f} s {side} the venues'"
    if abs(skew_ms) > MAX_SKEW_MS:
        return Finding("fix", "clock", f"{text}: nothing is computed until you correct it (NTP)")
    return Finding("ok", "clock", text)


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
        self._covered: Final = {asset.ticker: asset for asset, at in chosen.items() if at}
        self._listings: Final = {asset.ticker: at for asset, at in chosen.items() if at}
        self._venues: Final = venues
        self._source: Final = source
        self._failure_reasons: Final = failure_reasons
        self._now: Final = now

    async def check_history(self, warm_tickers: set[str] | None) -> Finding:
        """Return which assets lack the history for 1d readings."""
        # With a snapshot, the store knows. Without one, each venue is queried for a single day at
        # the start of that history: fetching all of it takes as long as a first start.
        tickers = list(self._covered)
        if warm_tickers is None:
            tickers = [t for t in tickers if self._listings[t].venue not in self._failure_reasons]
            has_history = await asyncio.gather(*map(self._has_history, tickers))
        else:
            has_history = [ticker in warm_tickers for ticker in tickers]
        short_tickers = [
            ticker for ticker, has in zip(tickers, has_history, strict=True) if not has
        ]
        summary = (
            f"{len(tickers) - len(short_tickers)} of {len(tickers)} have history for readings of 1d"
        )
        if not short_tickers:
            return Finding("ok" if tickers else "warn", "bars", summary)
        short = f"{len(short_tickers)} lack bars of {MIN_HISTORY_DAYS} trading days"
        return Finding("warn", "bars", f"{summary}; {short} ({format_names(short_tickers)})")

    async def check_freshness(self) -> AsyncIterator[Finding]:
        """Yield how many assets have the newest bar that is due, and why others do not."""
        is_fresh = await asyncio.gather(*map(self._is_fresh, self._covered))
        stale = [ticker for ticker, fresh in zip(self._covered, is_fresh, strict=True) if not fresh]
        count = len(self._covered)
        yield Finding("ok", "bars", f"{count - len(stale)} of {count} have a fresh bar")
        by_reason: defaultdict[str, list[str]] = defaultdict(list)
        for ticker in stale:
            failure_reason = self._failure_reasons.get(self._listings[ticker].venue)
            by_reason[failure_reason or self._source.late_reasons[ticker]].append(ticker)
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
        start, period_s = _find_history_start(asset, self._now), choose_period_s(asset.session)
        try:
            bars = await self._venues[listing.venue].fetch_bars(
                listing.symbol, start, start + DAY_S, period_s
            )
        except VenueError:
            # The check of fresh bars reports this venue, so do not report its assets twice.
            return True
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
