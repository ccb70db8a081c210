"""Real markets as a source: each asset's bars come from one venue, the first that lists it.

If a venue fails, its assets become late, with a reason; no bar is ever made up for them.
"""

import asyncio
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from statistics import median
from typing import Final

import numpy as np
import structlog

from compute.bars import (
    DAY_S,
    HOUR_S,
    NO_BARS,
    NO_FUNDING,
    Funding,
    RawBar,
    Series,
    resample_bars,
    validate_bars,
)
from compute.sessions import (
    find_last_close,
    find_next_close,
    find_session_watermark,
    list_expected_bars,
    opens_off_hour,
)
from compute.sources.history_diff import (
    CUT_REASON,
    MAX_COMPARED_BARS,
    CutCheck,
    HistoryDiff,
    StoredBarsLoader,
    diff_history,
)
from compute.sources.source import FetchResult, NotReadyError
from compute.sources.venue import UnknownSymbolError, Venue, VenueError
from compute.universe import Listing, Session, Universe
from schemas.clock import Clock
from schemas.vocabulary import SourceKind, Timeframe, format_instant

HISTORY_S: Final = 330 * DAY_S
# A clock that is ahead lets bars in that are still forming, so computing stops beyond this skew.
MAX_SKEW_MS: Final = 30_000
_NO_NEWER_BAR: Final = "the venue has no newer bar yet"

log = structlog.get_logger("source")


class LiveSource:
    """Every asset of a universe that one of the venues lists; call `open` before any other method.

    A new asset gets `history_s` of history. `load_stored_bars` returns an asset's stored bars that
    open after a time (epoch seconds).
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
        load_stored_bars: StoredBarsLoader,
        history_s: int = HISTORY_S,
    ) -> None:
        self._assets: Final = universe.by_ticker
        self._venues: Final = venues
        self._clock: Final = clock
        self._begins_at: Final = (clock() // 1000 - history_s) // DAY_S * DAY_S
        self._load_stored_bars: Final = load_stored_bars
        self._cut_check: Final = CutCheck(load_stored_bars)
        self._listings: Final[dict[str, Listing]] = {}
        self._previous_listings: Final[dict[str, Listing]] = {}
        self._funding_cache: Final[dict[str, tuple[int, int, Funding]]] = {}
        self._refused_opens: Final = defaultdict[str, set[int]](set)
        self.late_reasons: Final[dict[str, str]] = {}

    async def open(self, stored_listings: Mapping[str, str]) -> None:
        """Choose each asset's listing: the stored one, else the first that a venue confirms.

        A venue that does not answer now counts as confirming, one that refuses this country does
        not. If a venue refuses the stored listing and another one confirms, that one takes its
        place. An asset that no venue lists is not covered.
        """
        # Prices differ between venues, so a change of venue restates the history. It happens only
        # here, at a start: later, a symbol that is gone makes its asset late.
        names = list(self._venues)
        symbol_sets = await asyncio.gather(
            *(self._fetch_symbols(self._venues[name]) for name in names)
        )
        symbols_by_venue = dict(zip(names, symbol_sets, strict=True))
        for ticker, asset in self._assets.items():
            reachable = [one for one in asset.listings if one.venue in self._venues]
            stored = [one for one in reachable if str(one) == stored_listings.get(ticker)]
            confirmed = [one for one in reachable if one.symbol in symbols_by_venue[one.venue]]
            if not (stored or confirmed):
                continue
            self._listings[ticker] = (confirmed or stored)[0]
            if stored and (stored[0] in confirmed or not confirmed):
                self._listings[ticker] = stored[0]
            elif stored:
                self._previous_listings[ticker] = stored[0]
                await self._check_if_replaced(ticker)

    def get_native_timeframe(self, ticker: str) -> Timeframe | None:
        """Return 1h if a venue lists the asset."""
        return "1h" if ticker in self._listings else None

    def get_listing(self, ticker: str) -> str | None:
        """Return venue and symbol of an asset's stored bars, None if it is not covered."""
        listing = self._previous_listings.get(ticker) or self._listings.get(ticker)
        return None if listing is None else str(listing)

    def has_off_hour_bars(self, ticker: str) -> bool:
        """Return False: bars are cut at full hours."""
        return False

    def get_delay_s(self, ticker: str) -> int:
        """Return the delay of an asset's venue."""
        listing = self._listings.get(ticker)
        return 0 if listing is None else self._venues[listing.venue].delay_s

    def get_end(self, ticker: str) -> int | None:
        """Return None: the source keeps growing."""
        return None

    def find_next_close(self, ticker: str, after: int) -> int | None:
        """Return the next close of the asset's session, which may turn out to be a gap."""
        return find_next_close(self._assets[ticker].session, max(after, self._begins_at))

    def find_last_close(self, ticker: str, at: int) -> int:
        """Return the last close of the asset's session by an instant."""
        return find_last_close(self._assets[ticker].session, at)

    async def measure_skew_ms(self) -> float | None:
        """Return how far this machine's clock is ahead of the venues', None if none answers."""
        # The median, so that a single venue whose clock is wrong does not stop computing.
        measurements = await asyncio.gather(
            *map(self._measure_venue_skew_ms, self._venues.values())
        )
        skews = [skew for skew in measurements if skew is not None]
        return median(skews) if skews else None

    async def check_ready(self) -> None:
        """Raise NotReadyError if no venue answers or this machine's clock is wrong."""
        skew = await self.measure_skew_ms()
        if skew is None:
            raise NotReadyError("no venue answers: check that this machine is online")
        if abs(skew) > MAX_SKEW_MS:
            raise NotReadyError(
                f"the clock of this machine is {abs(skew) / 1000:.0f} s "
                f"{'ahead of' if skew > 0 else 'behind'} that of the venues: correct it (NTP); "
                "nothing is computed until then"
            )

    async def fetch(self, ticker: str, after: int, until: int) -> FetchResult:
        """Return the asset's new bars and settlements in (after, until].

        If the venue fails, return nothing; `late_reasons` has the reason.
        """
        venue, session = self._get_venue(ticker), self._assets[ticker].session
        begin = max(after, self._begins_at)
        end = min(until, self._clock() // 1000 - venue.delay_s)
        is_recut = await self._cut_check.is_outdated(ticker, session)
        if find_last_close(session, end) <= begin and not is_recut:
            return FetchResult(
                NO_BARS, NO_FUNDING, max(after, find_session_watermark(session, end))
            )
        # The newest stored bars are fetched again. If they are on another scale, were another
        # venue's, or are cut otherwise, the whole history is fetched and restated.
        try:
            fetched, reason = (
                (await self._fetch_recut(ticker, begin, end), CUT_REASON)
                if is_recut
                else await self._fetch_series(ticker, begin, end)
            )
            funding = await self._fetch_funding(ticker, max(after, self._begins_at - DAY_S), end)
        except VenueError as error:
            self._record_late_reason(ticker, error.reason)
            return FetchResult(NO_BARS, NO_FUNDING, after, has_failed=True)
        bars = fetched.select(fetched.close_time > begin)
        watermark = self._find_watermark(ticker, bars, after, end)
        settlements = funding.select_between(after, watermark)
        if not reason:
            return FetchResult(bars, settlements, watermark)
        log.warning("history_replaced", ticker=ticker, why=reason)
        return FetchResult(
            bars, settlements, watermark, fetched.select(fetched.close_time <= begin), reason
        )

    async def _fetch_series(self, ticker: str, begin: int, end: int) -> tuple[Series, str]:
        """Return the bars that close in (begin, end], and some earlier ones.

        If the history must be restated, return all bars up to `end` and the reason.
        """
        newest = find_last_close(self._assets[ticker].session, begin)
        stored = await self._load_stored_bars(ticker, newest - (MAX_COMPARED_BARS + 1) * HOUR_S)
        first = int(stored.open_time[0]) if len(stored) else begin
        fetched = await self._fetch_bars(ticker, min(begin, first), end)
        reason = self._find_restatement_reason(ticker, stored, fetched)
        return (await self._fetch_bars(ticker, self._begins_at, end) if reason else fetched), reason

    async def _fetch_recut(self, ticker: str, begin: int, end: int) -> Series:
        """Return all bars up to `end`; VenueError if the last one due by `begin` is missing."""
        # The watermark has passed that bar, so it could not be added later.
        bars = await self._fetch_bars(ticker, self._begins_at, end)
        due = find_last_close(self._assets[ticker].session, begin)
        if not len(bars) or bars.close_time[-1] < due:
            raise VenueError(_NO_NEWER_BAR)
        return bars

    async def _check_if_replaced(self, ticker: str) -> None:
        """Forget the previous listing if the stored bars are already those of the new one."""
        # Coverage is published at a start: after a restatement it names the old listing until the
        # next one.
        stored = await self._load_stored_bars(ticker, -1)
        if not len(stored):
            del self._previous_listings[ticker]
            return
        newest = stored.select(np.arange(len(stored)) >= len(stored) - MAX_COMPARED_BARS)
        begin, end = int(newest.open_time[0]), int(newest.close_time[-1])
        with suppress(VenueError):
            self._find_restatement_reason(
                ticker, newest, await self._fetch_bars(ticker, begin, end)
            )

    def _find_restatement_reason(self, ticker: str, stored: Series, fetched: Series) -> str:
        """Return the reason to restate the history, in one line; empty if there is none."""
        diff = diff_history(stored, fetched)
        if ticker in self._previous_listings:
            if not len(stored) or diff == HistoryDiff():
                del self._previous_listings[ticker]
                return ""
            return f"bars of {self._listings[ticker]} instead of {self._previous_listings[ticker]}"
        if diff.split_ratio is not None:
            return (
                f"split {diff.split_ratio:g}:1"
                if diff.split_ratio > 1
                else f"split 1:{1 / diff.split_ratio:g}"
            )
        self._log_refused_bars(ticker, "bar_revised", diff.revised)
        self._log_refused_bars(ticker, "bar_backfilled", diff.backfilled)
        return ""

    def _log_refused_bars(self, ticker: str, event: str, opens: Iterable[int]) -> None:
        """Log and count, once each, bars that came too late to be stepped."""
        for opened in set(opens) - self._refused_opens[ticker]:
            self._refused_opens[ticker].add(opened)
            count = sum(map(len, self._refused_opens.values()))
            log.warning(event, ticker=ticker, opened=format_instant(1000 * opened), refused=count)

    async def _fetch_bars(self, ticker: str, begin: int, end: int) -> Series:
        """Return the asset's usable bars that close in (begin, end]."""
        symbol, session = self._listings[ticker].symbol, self._assets[ticker].session
        period_s = choose_period_s(session)
        rows = await self._get_venue(ticker).fetch_bars(symbol, begin, end, period_s)
        bars = self._clean_bars(ticker, rows, period_s)
        return join_session_bars(bars, session, begin, end)

    def _get_venue(self, ticker: str) -> Venue:
        return self._venues[self._listings[ticker].venue]

    def _clean_bars(self, ticker: str, rows: Sequence[RawBar], period_s: int) -> Series:
        """Return the valid bars in order."""
        accepted_rows, rejected_rows = validate_bars(rows, period_s)
        if rejected_rows:
            log.warning(
                "bars_rejected", ticker=ticker, bars=len(rejected_rows), reason=rejected_rows[0][1]
            )
        return Series.from_rows(accepted_rows, period_s)

    async def _fetch_funding(self, ticker: str, after: int, until: int) -> Funding:
        """Return the settlements of the asset's perpetual in (after, until], if it has one."""
        # Venues allow few requests for funding. So everything up to now is fetched at once, and a
        # history that is built batch by batch takes its settlements from the first fetch.
        perpetual = self._listings[ticker].perpetual
        if perpetual is None or after >= until:
            return NO_FUNDING
        cached = self._funding_cache.get(ticker)
        if cached is None or not cached[0] <= after < until <= cached[1]:
            now = self._clock() // 1000
            funding = await self._fetch_settlements(self._get_venue(ticker), perpetual, after, now)
            cached = self._funding_cache[ticker] = after, now, funding
        return cached[2].select_between(after, until)

    async def _fetch_settlements(
        self, venue: Venue, perpetual: str, after: int, until: int
    ) -> Funding:
        try:
            settlements = await venue.fetch_funding(perpetual, after, until)
        # The perpetual was delisted; the asset's own bars go on.
        except UnknownSymbolError:
            return NO_FUNDING
        return Funding.from_pairs(
            sorted({at: rate for at, rate in settlements if isfinite(rate)}.items())
        )

    def _find_watermark(self, ticker: str, bars: Series, after: int, until: int) -> int:
        """Return the newest close, or a later time if the session is closed and complete."""
        session = self._assets[ticker].session
        newest = int(bars.close_time[-1]) if len(bars) else after
        if newest < find_last_close(session, until):
            self._record_late_reason(ticker, _NO_NEWER_BAR)
            return newest
        self.late_reasons.pop(ticker, None)
        return max(newest, find_session_watermark(session, until))

    def _record_late_reason(self, ticker: str, reason: str) -> None:
        """Record and log why an asset is late, once per reason."""
        # By the time the bars come, newer settlements may have come too.
        self._funding_cache.pop(ticker, None)
        if self.late_reasons.get(ticker) != reason:
            self.late_reasons[ticker] = reason
            log.warning("bars_missing", ticker=ticker, at=self.get_listing(ticker), reason=reason)

    async def _fetch_symbols(self, venue: Venue) -> Container[str]:
        """Return the symbols of a venue: none if it refuses us, all if it does not answer now."""
        symbols: Container[str] = _AllSymbols()
        try:
            symbols = await venue.fetch_symbols()
            # The list may come from a file, which does not show whether the venue refuses us now.
            await venue.fetch_time_ms()
        except VenueError as error:
            log.warning("venue_unavailable", venue=venue.name, reason=error.reason)
            if error.is_permanent:
                symbols = ()
        return symbols

    async def _measure_venue_skew_ms(self, venue: Venue) -> float | None:
        """Return how far this machine's clock is ahead of a venue's, None if it does not answer."""
        # The venue read its clock between request and response; the middle is assumed.
        before = self._clock()
        try:
            venue_time_ms = await venue.fetch_time_ms()
        except VenueError:
            return None
        return (before + self._clock()) / 2 - venue_time_ms


def choose_period_s(session: Session) -> int:
    """Return the period of the bars to fetch: half an hour if the session opens off the hour."""
    return HOUR_S // 2 if opens_off_hour(session) else HOUR_S


def join_session_bars(bars: Series, session: Session, begin: int, end: int) -> Series:
    """Return the hourly bars that the session expects in (begin, end], from bars of any period."""
    # This drops the bar that is still forming, and the hours at which an instrument trades while
    # the session is closed: extended hours of stocks, and all others of proxy instruments.
    expected = list_expected_bars(session, begin, end)
    index = np.searchsorted(expected.close_time, bars.close_time)
    begin_time = np.append(expected.begin_time, np.iinfo(np.int64).max)[index]
    inside = bars.select(bars.open_time >= begin_time)
    if not len(inside):
        return NO_BARS
    # If the newest hour lacks its second half, that half may still come. In an older hour it was
    # never traded, and the first half is the bar.
    hours = resample_bars(inside, HOUR_S)
    return hours.select(hours.close_time <= inside.close_time[-1])


class _AllSymbols(Container[str]):
    """The symbols of a venue that did not answer: any of them may be listed."""

    def __contains__(self, symbol: object) -> bool:
        return True
