"""What `signals doctor` finds of live venues: each one's list, its clock, and every asset's bars.

It asks what the next run would ask, keeps nothing, and counts every tracked asset in some finding.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from compute.bars import DAY_S, HOUR_S
from compute.sessions import hours
from compute.sources.live import HISTORY_S, MOST_SKEW_MS, LiveSource
from compute.sources.venue import Venue, VenueError
from compute.universe import Asset, Listing, Universe
from schemas.clock import Clock
from service.commands.console import Finding, named
from service.config.settings import Settings
from service.config.sources import live_venues, stored_bars, stored_listings
from serving.snapshot_cache import computed_board
from store.errors import MarketStore

# Readings of 1d begin with so many bars.
WARM_DAYS = 200
ALPACA = "alpaca"
ALPACA_KEY = "SIGNALS_ALPACA_KEY_ID and SIGNALS_ALPACA_SECRET_KEY"


async def live_findings(
    settings: Settings, universe: Universe, store: MarketStore | None, clock: Clock
) -> AsyncIterator[Finding]:
    """Yield what a live source finds that goes on from a store, or would begin without one.

    SettingsError where its libraries are missing. `clock` tells epoch ms.
    """
    with TemporaryDirectory() as folder:
        async with live_venues(settings, universe, clock, Path(folder)) as venues:
            told = await asyncio.gather(*map(_listed, venues.values()))
            lists = dict(zip(venues, told, strict=True))
            for name, listed in lists.items():
                yield _venue(universe, name, listed)
            source = LiveSource(universe, venues, clock, stored_bars(store))
            await source.open(await stored_listings(store))
            yield await _clock(source)
            for finding in _sources(universe, source, has_key=ALPACA in venues):
                yield finding
            silent = {name: e.reason for name, e in lists.items() if isinstance(e, VenueError)}
            bars = _Bars(universe, venues, source, silent, clock() // 1000)
            yield await bars.history(await _read_daily(store))
            async for finding in bars.fresh():
                yield finding


async def _listed(venue: Venue) -> frozenset[str] | VenueError:
    try:
        return await venue.listed()
    except VenueError as error:
        return error


def _venue(universe: Universe, venue: str, listed: frozenset[str] | VenueError) -> Finding:
    """Hold the universe's symbols against what a venue said that it lists."""
    named_there = _symbols(universe, venue)
    if isinstance(listed, VenueError):
        return _not_asked(venue, listed, len(named_there["first choices"]))
    lacking = {
        what: [one for one in symbols if one.rpartition(" ")[2] not in listed]
        for what, symbols in named_there.items()
    }
    told = [
        f"{len(missing)} of {len(named_there[what])} {what} ({named(missing)})"
        for what, missing in lacking.items()
        if missing
    ]
    if told:
        return Finding("warn", "venue", f"{venue} does not list {'; '.join(told)}")
    counts = [f"{len(symbols)} {what}" for what, symbols in named_there.items() if symbols]
    return Finding("ok", "venue", f"{venue} lists all of {', '.join(counts)}")


def _symbols(universe: Universe, venue: str) -> dict[str, list[str]]:
    """Return tickers with a venue's symbols, by what these are for."""
    found: dict[str, list[str]] = {"first choices": [], "fallbacks": [], "perpetuals": []}
    for asset in universe.tracked:
        for place, listing in enumerate(asset.listings):
            if listing.venue != venue:
                continue
            found["fallbacks" if place else "first choices"].append(_as(asset, listing.symbol))
            if listing.perpetual is not None:
                found["perpetuals"].append(_as(asset, listing.perpetual))
    return found


def _as(asset: Asset, symbol: str) -> str:
    return f"{asset.ticker} as {symbol}"


def _not_asked(name: str, error: VenueError, first_choices: int) -> Finding:
    if not error.is_permanent:
        text = f"{name} cannot be asked at the moment ({error.reason}): {first_choices} assets wait"
        return Finding("warn", "venue", text)
    if name == ALPACA:
        return Finding("fix", "venue", error.reason)
    text = (
        f"{name} refuses this address, as venues do by country ({error.reason}): the fallbacks of "
        f"{first_choices} assets are asked"
    )
    return Finding("warn", "venue", text)


async def _clock(source: LiveSource) -> Finding:
    skew_ms = await source.skew_ms()
    if skew_ms is None:
        return Finding("warn", "clock", "no venue tells the time to hold this machine's against")
    side = "ahead of" if skew_ms > 0 else "behind"
    text = f"this machine's clock is {abs(skew_ms) / 1000:.1f} s {side} the venues'"
    if abs(skew_ms) > MOST_SKEW_MS:
        return Finding("fix", "clock", f"{text}: set it right (NTP), or nothing is computed")
    return Finding("ok", "clock", text)


def _sources(universe: Universe, source: LiveSource, *, has_key: bool) -> Iterator[Finding]:
    """Yield where bars come from, what stands in, and what is not covered."""
    chosen = {asset.ticker: _chosen(asset, source) for asset in universe.tracked}
    covered = {ticker: listing for ticker, listing in chosen.items() if listing}
    counts = Counter(listing.venue for listing in covered.values())
    told = ", ".join(f"{count} at {name}" for name, count in counts.most_common())
    total = f"{len(covered)} of {len(chosen)} assets have a source"
    yield Finding("ok" if covered else "fix", "assets", f"{total}: {told}" if told else total)
    if stand_ins := [ticker for ticker, listing in covered.items() if listing.is_stand_in]:
        text = f"for {len(stand_ins)} a perpetual stands in ({named(stand_ins)})"
        yield Finding("ok", "assets", text)
    unlocked = [
        ticker
        for ticker in chosen.keys() - covered.keys()
        if not has_key and universe.by_ticker[ticker].venue == ALPACA
    ]
    if unlocked:
        text = f"{len(unlocked)} are not covered ({named(sorted(unlocked))}): set {ALPACA_KEY}"
        yield Finding("warn", "assets", text)
    if rest := sorted(chosen.keys() - covered.keys() - set(unlocked)):
        text = f"{len(rest)} are not covered, for no venue that can be asked lists them"
        yield Finding("warn", "assets", f"{text} ({named(rest)})")


def _chosen(asset: Asset, source: LiveSource) -> Listing | None:
    at = source.listing(asset.ticker)
    return next((listing for listing in asset.listings if str(listing) == at), None)


async def _read_daily(store: MarketStore | None) -> set[str] | None:
    """Return the assets that a store has readings of 1d of, None where it serves none yet."""
    board = None if store is None else computed_board(await store.snapshot())
    if board is None:
        return None
    readings = board.snapshot.readings
    return {t for t, by_key in readings.items() if any("1d" in by for by in by_key.values())}


class _Bars:
    """The bars of the covered assets at their venues; `now` is epoch seconds.

    Venues that are `silent`, for a reason each, are not asked again.
    """

    def __init__(
        self,
        universe: Universe,
        venues: Mapping[str, Venue],
        source: LiveSource,
        silent: Mapping[str, str],
        now: int,
    ) -> None:
        chosen = {asset: _chosen(asset, source) for asset in universe.tracked}
        self._covered: Final = {asset.ticker: asset for asset, at in chosen.items() if at}
        self._listings: Final = {asset.ticker: at for asset, at in chosen.items() if at}
        self._venues: Final = venues
        self._source: Final = source
        self._silent: Final = silent
        self._now: Final = now

    async def history(self, warm: set[str] | None) -> Finding:
        """Say which have too few bars for readings of 1d: those not warm, else by asking."""
        tickers = list(self._covered)
        if warm is None:
            tickers = [t for t in tickers if self._listings[t].venue not in self._silent]
            has_history = await asyncio.gather(*map(self._has_history, tickers))
        else:
            has_history = [ticker in warm for ticker in tickers]
        short = [ticker for ticker, has in zip(tickers, has_history, strict=True) if not has]
        enough = f"{len(tickers) - len(short)} of {len(tickers)} have history for readings of 1d"
        if not short:
            return Finding("ok" if tickers else "warn", "bars", enough)
        text = f"{enough}; of {len(short)} there are no bars of {WARM_DAYS} trading days"
        return Finding("warn", "bars", f"{text} ({named(short)})")

    async def fresh(self) -> AsyncIterator[Finding]:
        """Yield which have the newest bar that is due, and why others do not."""
        is_fresh = await asyncio.gather(*map(self._is_fresh, self._covered))
        stale = [ticker for ticker, fresh in zip(self._covered, is_fresh, strict=True) if not fresh]
        count = len(self._covered)
        yield Finding("ok", "bars", f"{count - len(stale)} of {count} have a fresh bar")
        by_reason: defaultdict[str, list[str]] = defaultdict(list)
        for ticker in stale:
            silent = self._silent.get(self._listings[ticker].venue)
            by_reason[silent or self._source.reasons[ticker]].append(ticker)
        alone = [f"{found[0]}: {why}" for why, found in by_reason.items() if len(found) == 1]
        for why, tickers in by_reason.items():
            if len(tickers) > 1:
                text = f"{len(tickers)} have no fresh bar, {why} ({named(tickers)})"
                yield Finding("warn", "bars", text)
        if alone:
            yield Finding("warn", "bars", f"{len(alone)} have no fresh bar ({named(alone)})")

    async def _has_history(self, ticker: str) -> bool:
        """Say whether a venue has bars of the day with which enough of them begin.

        One that fails is not said to lack them: it is what has no fresh bar either.
        """
        listing = self._listings[ticker]
        begin = _first_needed(self._covered[ticker], self._now)
        try:
            bars = await self._venues[listing.venue].bars(listing.symbol, begin, begin + DAY_S)
        except VenueError:
            return True
        return any(begin < bar.open_time + HOUR_S <= begin + DAY_S for bar in bars)

    async def _is_fresh(self, ticker: str) -> bool:
        if self._listings[ticker].venue in self._silent:
            return False
        due = self._source.last_close(ticker, self._now - self._source.delay_s(ticker))
        fetched = await self._source.fetch(ticker, due - 1, self._now)
        return fetched.watermark >= due


def _first_needed(asset: Asset, now: int) -> int:
    """Return when the first trading day opens of those that readings of 1d need."""
    due = hours(asset.session, now - HISTORY_S, now)
    days, first = np.unique(due.day, return_index=True)
    return int(due.open_time[first[-min(WARM_DAYS, len(days))]])
