"""Real markets as a source: each asset's bars from one venue, by the first of its listings there.

What goes wrong at a venue leaves an asset where it is: late, with a reason, and nothing invented.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from statistics import median
from typing import Final

import numpy as np
import structlog

from compute.bars import DAY_S, HOUR_S, NO_BARS, NO_FUNDING, Funding, RawBar, Series, accepted
from compute.sessions import complete_until, hours, last_close, next_close
from compute.sources.history_diff import MOST_COMPARED, Overlap, compared
from compute.sources.source import Fetched, NotReadyError
from compute.sources.venue import UnknownSymbolError, Venue, VenueError
from compute.universe import Listing, Universe
from schemas.clock import Clock
from schemas.vocabulary import SourceKind, Timeframe, instant

HISTORY_S: Final = 330 * DAY_S
MOST_SKEW_MS: Final = 30_000

Stored = Callable[[str, int], Awaitable[Series]]

log = structlog.get_logger("source")


class LiveSource:
    """Every asset of a universe that one of the venues lists; `clock` tells epoch ms.

    A store that has nothing of an asset yet gets `history_s` of it. `stored` returns an asset's
    bars that the store holds and that open after a time (epoch seconds).
    """

    name = "live"
    kind: SourceKind = "live"
    ends_at: None = None
    shown_history_s = 0

    def __init__(
        self,
        universe: Universe,
        venues: Mapping[str, Venue],
        clock: Clock,
        stored: Stored,
        history_s: int = HISTORY_S,
    ) -> None:
        self._assets: Final = universe.by_ticker
        self._venues: Final = venues
        self._clock: Final = clock
        self._begin: Final = (clock() // 1000 - history_s) // DAY_S * DAY_S
        self._stored: Final = stored
        self._listings: Final[dict[str, Listing]] = {}
        self._left: Final[dict[str, Listing]] = {}
        self._rates_held: Final[dict[str, tuple[int, int, Funding]]] = {}
        self._refused: Final = defaultdict[str, set[int]](set)
        self.reasons: Final[dict[str, str]] = {}

    async def open(self, remembered: Mapping[str, str]) -> None:
        """Choose where each asset's bars come from; those that a store `remembered` stay there.

        That is the first of its listings that a venue confirms, or may yet: one that cannot be
        asked is waited for, one that refuses this country is not. What no venue lists is not
        covered. Where the remembered venue refuses, another that confirms takes its place.
        """
        names = list(self._venues)
        asked = await asyncio.gather(*(self._listed(self._venues[name]) for name in names))
        listed = dict(zip(names, asked, strict=True))
        for ticker, asset in self._assets.items():
            known = [one for one in asset.listings if one.venue in self._venues]
            kept = [one for one in known if str(one) == remembered.get(ticker)]
            confirmed = [one for one in known if one.symbol in listed[one.venue]]
            if not (kept or confirmed):
                continue
            self._listings[ticker] = (confirmed or kept)[0]
            if kept and (kept[0] in confirmed or not confirmed):
                self._listings[ticker] = kept[0]
            elif kept:
                self._left[ticker] = kept[0]
                await self._look_whether_replaced(ticker)

    def native(self, ticker: str) -> Timeframe | None:
        """Return 1h for what a venue lists."""
        return "1h" if ticker in self._listings else None

    def listing(self, ticker: str) -> str | None:
        """Return venue and symbol of an asset's stored bars, None for one that is not covered."""
        listing = self._left.get(ticker) or self._listings.get(ticker)
        return None if listing is None else str(listing)

    def delay_s(self, ticker: str) -> int:
        """Return the delay of an asset's venue."""
        listing = self._listings.get(ticker)
        return 0 if listing is None else self._venues[listing.venue].delay_s

    def next_close(self, ticker: str, after: int) -> int | None:
        """Return the next close of the asset's session, which may turn out to be a gap."""
        return next_close(self._assets[ticker].session, max(after, self._begin))

    def last_close(self, ticker: str, at: int) -> int:
        """Return the last close of the asset's session by an instant."""
        return last_close(self._assets[ticker].session, at)

    async def skew_ms(self) -> float | None:
        """Return how far the machine's clock is ahead of the venues', None where none is told."""
        asked = await asyncio.gather(*map(self._skew_ms, self._venues.values()))
        skews = [skew for skew in asked if skew is not None]
        return median(skews) if skews else None

    async def ready(self) -> None:
        """Raise NotReadyError where no venue answers, or where this machine's clock is wrong."""
        skew = await self.skew_ms()
        if skew is None:
            raise NotReadyError("no venue answers: is this machine online?")
        if abs(skew) > MOST_SKEW_MS:
            raise NotReadyError(
                f"the clock of this machine is {abs(skew) / 1000:.0f} s "
                f"{'ahead of' if skew > 0 else 'behind'} that of the venues: set it right (NTP); "
                "nothing is computed until then"
            )

    async def fetch(self, ticker: str, after: int, until: int) -> Fetched:
        """Return what the venue tells of (after, until]; nothing, and why, where it fails.

        Bars that are stored are asked for again: where they are on another scale, or those of
        another venue, the history is told anew.
        """
        venue, session = self._venue(ticker), self._assets[ticker].session
        begin = max(after, self._begin)
        end = min(until, self._clock() // 1000 - venue.delay_s)
        if last_close(session, end) <= begin:
            return Fetched(NO_BARS, NO_FUNDING, max(after, complete_until(session, end)))
        try:
            told, why = await self._told(ticker, begin, end)
            rates = await self._rates(ticker, max(after, self._begin - DAY_S), end)
        except VenueError as error:
            self._is_late_because(ticker, error.reason)
            return Fetched(NO_BARS, NO_FUNDING, after)
        bars = told.where(told.close_time > begin)
        watermark = self._watermark(ticker, bars, after, end)
        settled = rates.between(after, watermark)
        if not why:
            return Fetched(bars, settled, watermark)
        log.warning("history_replaced", ticker=ticker, why=why)
        return Fetched(bars, settled, watermark, told.where(told.close_time <= begin), why)

    async def _told(self, ticker: str, begin: int, end: int) -> tuple[Series, str]:
        """Return the bars that close in (begin, end], with some or all before them, and why all."""
        newest = last_close(self._assets[ticker].session, begin)
        stored = await self._stored(ticker, newest - (MOST_COMPARED + 1) * HOUR_S)
        first = int(stored.open_time[0]) if len(stored) else begin
        told = await self._asked(ticker, min(begin, first), end)
        why = self._why_anew(ticker, stored, told)
        return (await self._asked(ticker, self._begin, end) if why else told), why

    async def _look_whether_replaced(self, ticker: str) -> None:
        """Find out whether the stored bars of an asset are those of its new venue already."""
        stored = await self._stored(ticker, -1)
        if not len(stored):
            del self._left[ticker]
            return
        newest = stored.where(np.arange(len(stored)) >= len(stored) - MOST_COMPARED)
        begin, end = int(newest.open_time[0]), int(newest.close_time[-1])
        with suppress(VenueError):
            self._why_anew(ticker, newest, await self._asked(ticker, begin, end))

    def _why_anew(self, ticker: str, stored: Series, told: Series) -> str:
        """Say why the history must be told anew, in a line; empty where it stands."""
        found = compared(stored, told)
        if ticker in self._left:
            if not len(stored) or found == Overlap():
                del self._left[ticker]
                return ""
            return f"bars of {self._listings[ticker]} instead of {self._left[ticker]}"
        if found.split is not None:
            return f"split {found.split:g}:1" if found.split > 1 else f"split 1:{1 / found.split:g}"
        self._refuse(ticker, "bar_revised", found.revised)
        self._refuse(ticker, "bar_belated", found.belated)
        return ""

    def _refuse(self, ticker: str, event: str, opens: Iterable[int]) -> None:
        """Log and count, once each, bars that come too late to be stepped."""
        for opened in set(opens) - self._refused[ticker]:
            self._refused[ticker].add(opened)
            count = sum(map(len, self._refused.values()))
            log.warning(event, ticker=ticker, opened=instant(1000 * opened), refused=count)

    async def _asked(self, ticker: str, begin: int, end: int) -> Series:
        """Return the bars of a venue that close in (begin, end]."""
        told = await self._venue(ticker).bars(self._listings[ticker].symbol, begin, end)
        return self._bars(ticker, told, begin, end)

    def _venue(self, ticker: str) -> Venue:
        return self._venues[self._listings[ticker].venue]

    def _bars(self, ticker: str, told: Sequence[RawBar], begin: int, end: int) -> Series:
        """Return what can be used of what was told, in order.

        Neither the forming bar nor what perpetuals do while the session is closed.
        """
        good, bad = accepted(told, HOUR_S)
        if bad:
            log.warning("bars_rejected", ticker=ticker, bars=len(bad), reason=bad[0][1])
        bars = Series.of(good, HOUR_S)
        due = hours(self._assets[ticker].session, begin, end).close_time
        return bars.where(np.isin(bars.close_time, due))

    async def _rates(self, ticker: str, after: int, until: int) -> Funding:
        """Return the settlements of the matching perpetual, none where there is none any more.

        All up to now are asked for at once, for venues allow few such requests; a history that is
        read in parts has them from the first.
        """
        perpetual = self._listings[ticker].perpetual
        if perpetual is None or after >= until:
            return NO_FUNDING
        held = self._rates_held.get(ticker)
        if held is None or not held[0] <= after < until <= held[1]:
            now = self._clock() // 1000
            told = await self._settled(self._venue(ticker), perpetual, after, now)
            held = self._rates_held[ticker] = after, now, told
        return held[2].between(after, until)

    async def _settled(self, venue: Venue, perpetual: str, after: int, until: int) -> Funding:
        try:
            told = await venue.funding(perpetual, after, until)
        except UnknownSymbolError:
            return NO_FUNDING
        return Funding.of(sorted({at: rate for at, rate in told if isfinite(rate)}.items()))

    def _watermark(self, ticker: str, bars: Series, after: int, until: int) -> int:
        """Return the newest close; the clock while the session is closed and lacks none."""
        session = self._assets[ticker].session
        newest = int(bars.close_time[-1]) if len(bars) else after
        if newest < last_close(session, until):
            self._is_late_because(ticker, "the venue has no newer bar yet")
            return newest
        self.reasons.pop(ticker, None)
        return max(newest, complete_until(session, until))

    def _is_late_because(self, ticker: str, reason: str) -> None:
        """Note why; by when the bars come, newer rates may have come too."""
        self._rates_held.pop(ticker, None)
        if self.reasons.get(ticker) != reason:
            self.reasons[ticker] = reason
            log.warning("bars_missing", ticker=ticker, at=self.listing(ticker), reason=reason)

    async def _listed(self, venue: Venue) -> Container[str]:
        """Return what a venue lists: nothing if it refuses us, all if it does not answer now."""
        listed: Container[str] = _Everything()
        try:
            listed = await venue.listed()
            await venue.clock()  # for a kept list does not tell whether it refuses by now
        except VenueError as error:
            log.warning("venue_not_asked", venue=venue.name, reason=error.reason)
            if error.is_permanent:
                listed = ()
        return listed

    async def _skew_ms(self, venue: Venue) -> float | None:
        """Return how far the machine's clock is ahead of a venue's, None where it is not told."""
        before = self._clock()
        try:
            told = await venue.clock()
        except VenueError:
            return None
        return (before + self._clock()) / 2 - told


class _Everything(Container[str]):
    """What a venue lists that could not be asked."""

    def __contains__(self, symbol: object) -> bool:
        return True
