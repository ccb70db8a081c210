"""Real markets as a source: the bars of an asset come from one venue at a time.

If a venue fails, its assets become late, with a reason; no bar is ever made up for them. Prices
differ between venues, so an asset stays at the source of its stored bars while that works.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

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
    Times,
    find_settlement_fault,
    resample_bars,
    validate_bars,
)
from compute.schedule import compute_lag_s, describe_clock, judge_clocks
from compute.sources.history_checks import (
    MAX_COMPARED_BARS,
    StoredBarsLoader,
    diff_history,
    fill_holes,
    find_reason_to_hold,
    list_missing,
    select_compared,
)
from compute.sources.source import FetchResult, NotReadyError, Source
from compute.sources.venue import UnknownSymbolError, Venue, VenueError
from compute.trading_sessions import (
    find_last_close,
    find_next_close,
    find_session_watermark,
    list_expected_bars,
    opens_off_hour,
)
from compute.universe import Asset, Listing, Session, Universe
from schemas.vocabulary import Clock, SourceKind, Timeframe, format_instant


class VenueStatus(NamedTuple):
    """The symbols that a venue lists, none unless it answered; `error` says why it did not."""

    symbols: frozenset[str]
    error: VenueError | None = None

    @property
    def is_refusing(self) -> bool:
        """Whether the venue refuses this country or key; otherwise it may answer again soon."""
        return self.error is not None and self.error.is_permanent


def choose_listing(
    asset: Asset, statuses: Mapping[str, VenueStatus], source: str | None, now: int
) -> Listing | None:
    """Return an asset's listing, None if it has none; `now` is in epoch seconds.

    `source` is that of its stored bars, if there are any. Venues without a status are not used.
    """
    usable = [listing for listing in asset.listings if listing.venue in statuses]
    open_ones = [listing for listing in usable if listing.is_open(now)]
    confirmed = [one for one in open_ones if one.symbol in statuses[one.venue].symbols]
    silent = [
        one
        for one in open_ones
        if statuses[one.venue].error is not None and not statuses[one.venue].is_refusing
    ]
    # If the universe has a new symbol for the stored one, the asset stays at the same venue.
    venue = (source or "").partition(" ")[0]
    stored = [one for one in usable if str(one) == source]
    stored = stored or [one for one in usable if one.venue == venue]
    # Stored bars wait for a venue that is silent or limits requests. They are replaced only by
    # those of a venue that answers: otherwise the asset would be late at either.
    for listing in stored:
        if listing in confirmed or listing in silent or not confirmed:
            return listing
    # Without stored bars there is nothing to mix, so an asset does not wait for a silent venue
    # while another one answers.
    return next(iter([*confirmed, *silent]), None)


log = structlog.get_logger("source")


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


HISTORY_S: Final = 330 * DAY_S
# The pages of the venue that most assets use.
PAGE_ROWS: Final = 1000
MAX_LOGGED_NAMES: Final = 10
# How long after a split of a stock its adjustment is recognised; no session is closed as long.
LOOK_BACK_S: Final = 14 * DAY_S
# Venues that refuse, and assets without a venue, are tried again daily: rules and lists change.
CHOICE_INTERVAL_MS: Final = 1000 * DAY_S
_NO_NEWER_BAR: Final = "the venue has no newer bar yet"

# Returns the source of each asset's newest stored bars, by ticker.
SourcesLoader = Callable[[], Awaitable[Mapping[str, str]]]


class LiveSource(Source):
    """Every asset of a universe that one of the venues lists; call `open` before any other method.

    A new asset gets `history_s` of history. `load_stored_bars` returns an asset's stored bars that
    open after a time (epoch seconds), `load_sources` where the stored bars come from.
    """

    name = "live"
    kind: SourceKind = "live"

    def __init__(
        self,
        universe: Universe,
        venues: Mapping[str, Venue],
        clock: Clock,
        load_stored_bars: StoredBarsLoader,
        load_sources: SourcesLoader,
        history_s: int = HISTORY_S,
    ) -> None:
        self._assets: Final = universe.by_ticker
        self._venues: Final = venues
        self._clock: Final = clock
        self._begins_at: Final = (clock() // 1000 - history_s) // DAY_S * DAY_S
        self._load_stored_bars: Final = load_stored_bars
        self._load_sources: Final = load_sources
        self._sources: Mapping[str, str] = {}
        self._listings: dict[str, Listing] = {}
        self._statuses: dict[str, VenueStatus] = {}
        self._chosen_at = clock()
        self._needs_choice = False
        self._logged_rejections: Final = set[tuple[str, str, str]]()
        self._refused_opens: Final = defaultdict[str, set[int]](set)
        self._wrong_skews_ms: dict[str, float] = {}
        self._silences: dict[str, str] = {}
        self._missing_logged_until: Final[dict[str, int]] = {}
        self.late_reasons: Final[dict[str, str]] = {}

    async def open(self) -> None:
        """Choose each asset's listing by the answers of the venues and the stored sources.

        An asset without a listing is not covered.
        """
        self._sources = await self._load_sources()
        names = list(self._venues)
        found = await asyncio.gather(*(self._fetch_status(self._venues[name]) for name in names))
        self._statuses = statuses = dict(zip(names, found, strict=True))
        now = self._clock() // 1000
        self._listings = {
            asset.ticker: listing
            for asset in self._assets.values()
            if (listing := choose_listing(asset, statuses, self._sources.get(asset.ticker), now))
        }
        self._chosen_at, self._needs_choice = self._clock(), False
        self.late_reasons.clear()

    async def has_moved(self) -> bool:
        """Choose the listings again if that is due; return whether any asset's has changed."""
        is_refused = any(status.is_refusing for status in self._statuses.values())
        is_incomplete = is_refused or len(self._listings) < len(self._assets)
        is_old = self._clock() - self._chosen_at >= CHOICE_INTERVAL_MS
        if not (self._needs_choice or (is_incomplete and is_old)):
            return False
        before = self._listings
        await self.open()
        self._log_moves(before)
        return self._listings != before

    def _log_moves(self, before: Mapping[str, Listing]) -> None:
        """Log the assets whose listing has changed, in a line for each pair of venues."""
        moves = defaultdict[tuple[str | None, str | None], list[str]](list)
        for ticker in sorted(before.keys() | self._listings.keys()):
            old, new = before.get(ticker), self._listings.get(ticker)
            if old != new:
                moves[old.venue if old else None, new.venue if new else None].append(ticker)
        for (left, entered), tickers in moves.items():
            names = tickers[:MAX_LOGGED_NAMES]
            log.warning("assets_moved", old=left, new=entered, count=len(tickers), assets=names)

    def get_native_timeframe(self, ticker: str) -> Timeframe | None:
        """Return 1h if a venue lists the asset."""
        return "1h" if ticker in self._listings else None

    def get_listing(self, ticker: str) -> str | None:
        """Return venue and symbol of the asset's bars, None if it is not covered."""
        listing = self._listings.get(ticker)
        return None if listing is None else str(listing)

    def get_answering_venue(self, ticker: str) -> str | None:
        """Return the venue of the asset's bars, None if it did not answer when it was chosen."""
        listing = self._listings.get(ticker)
        if listing is None or self._statuses[listing.venue].error is not None:
            return None
        return listing.venue

    def get_delay_s(self, ticker: str) -> int:
        """Return the delay of an asset's venue."""
        listing = self._listings.get(ticker)
        return 0 if listing is None else self._venues[listing.venue].delay_s

    def find_next_close(self, ticker: str, after: int) -> int | None:
        """Return the next close of the asset's session, which may turn out to be a gap."""
        return find_next_close(self._assets[ticker].session, max(after, self._begins_at))

    def find_last_close(self, ticker: str, at: int) -> int:
        """Return the last close of the asset's session by an instant."""
        return find_last_close(self._assets[ticker].session, at)

    async def measure_skews_ms(self) -> dict[str, float]:
        """Return how far this machine's clock is ahead of that of each venue that answers."""
        skews = await asyncio.gather(*map(self._measure_venue_skew_ms, self._venues.values()))
        found = zip(self._venues, skews, strict=True)
        return {name: skew for name, skew in found if skew is not None}

    async def check_ready(self) -> None:
        """Raise NotReadyError if no venue answers or this machine's clock may be wrong."""
        # Another process may have moved assets between `open` and the lock of this one.
        self._sources = await self._load_sources()
        skews_ms = await self.measure_skews_ms()
        verdict = judge_clocks(skews_ms)
        if verdict.problem is not None:
            silences = "" if skews_ms else f" ({'; '.join(sorted(self._silences.values()))})"
            raise NotReadyError(verdict.problem + silences)
        for name in verdict.wrong_skews_ms.keys() - self._wrong_skews_ms.keys():
            reason = describe_clock(name, verdict.wrong_skews_ms[name])
            log.warning("venue_clock_wrong", venue=name, reason=reason)
        # A clock that was wrong counts as wrong until the venue reports a right time.
        silent = {n: skew for n, skew in self._wrong_skews_ms.items() if n not in skews_ms}
        self._wrong_skews_ms = silent | dict(verdict.wrong_skews_ms)

    async def fetch(self, ticker: str, after: int, until: int) -> FetchResult:
        """Return the asset's new bars and settlements in (after, until].

        If the venue fails, return nothing; `late_reasons` has the reason.
        """
        listing, session = self._listings[ticker], self._assets[ticker].session
        venue, begin = self._venues[listing.venue], max(after, self._begins_at)
        # At a venue whose clock is behind, a bar still forms after its close by this machine's.
        skew_ms = self._wrong_skews_ms.get(venue.name, 0)
        lag_s = compute_lag_s(skew_ms)
        end = min(until, self._clock() // 1000 - venue.delay_s - lag_s)
        name = str(listing)
        if self._sources.get(ticker, name) != name:
            # The change may have been committed since the sources were loaded.
            self._sources = await self._load_sources()
        source = self._sources.get(ticker, name)
        rebuild_reason = "" if source == name else f"bars of {name} instead of {source}"
        if find_last_close(session, end) <= begin and not rebuild_reason:
            if lag_s and find_last_close(session, end + lag_s) > begin:
                self._record_late_reason(ticker, describe_clock(venue.name, skew_ms))
            return FetchResult(
                NO_BARS, NO_FUNDING, max(after, find_session_watermark(session, end))
            )
        try:
            fetched, reason = await self._fetch_series(ticker, after, end, rebuild_reason)
            funding = await self._fetch_funding(ticker, max(after, self._begins_at - DAY_S), end)
        except VenueError as error:
            # A venue that has begun to refuse, or no longer has the symbol, is left before the next
            # run.
            self._needs_choice |= (
                self.late_reasons.get(ticker) != error.reason
                if isinstance(error, UnknownSymbolError)
                else error.is_permanent and not self._statuses[venue.name].is_refusing
            )
            self._record_late_reason(ticker, error.reason)
            return FetchResult(NO_BARS, NO_FUNDING, after, has_failed=True)
        fetched, held_reason = await self._hold_implausible(ticker, fetched, begin)
        is_newly_held = held_reason != "" and self.late_reasons.get(ticker) != held_reason
        bars = fetched.select(fetched.close_time > begin)
        watermark = self._find_watermark(ticker, bars, after, end, held_reason)
        result = FetchResult(
            bars,
            funding.select_between(after, watermark),
            watermark,
            missing=self._find_missing(ticker, fetched, after, reason),
            is_newly_held=is_newly_held,
        )
        if not reason:
            return result
        log.warning("history_replaced", ticker=ticker, why=reason)
        history = fetched.select(fetched.close_time <= begin)
        return replace(result, history=history, reason=reason)

    async def _fetch_series(
        self, ticker: str, after: int, end: int, reason: str
    ) -> tuple[Series, str]:
        """Return the bars that close in (after, end], and some earlier ones.

        If the history must be restated, for the given reason or for another one, return all bars
        up to `end` and the reason. What a first answer lacks is fetched again.
        """
        session, begin = self._assets[ticker].session, max(after, self._begins_at)
        if reason:
            fetched = await self._fetch_bars(ticker, self._begins_at, end)
            # The watermark has passed the last bar due by `begin`, so it could not be added later.
            # Without any bar from before `begin`, the new bars would continue the stored history.
            due = find_last_close(session, begin)
            if not len(fetched) or fetched.close_time[-1] < due or fetched.close_time[0] > begin:
                raise VenueError(_NO_NEWER_BAR)
        else:
            # The newest stored bars are fetched again, to see whether they are on another scale.
            window = list_expected_bars(session, begin // DAY_S * DAY_S - LOOK_BACK_S, begin)
            # Bars of the session, not hours of the clock: a stock's first hours follow a night.
            since = window.open_time[-MAX_COMPARED_BARS if session == "24x7" else 0]
            stored = select_compared(await self._load_stored_bars(ticker, int(since) - 1))
            first = int(stored.open_time[0]) if len(stored) else begin
            fetched = await self._fetch_bars(ticker, min(begin, first), end)
            diff = diff_history(stored, fetched)
            self._log_refused_bars(ticker, "bar_revised", diff.revised)
            self._log_refused_bars(ticker, "bar_backfilled", diff.backfilled)
            if (ratio := diff.split_ratio) is not None:
                reason = f"split {ratio:g}:1" if ratio > 1 else f"split 1:{1 / ratio:g}"
                fetched = await self._fetch_bars(ticker, self._begins_at, end)
        is_history = bool(reason) or after < self._begins_at
        filled = await fill_holes(
            session,
            fetched,
            self._begins_at if is_history else begin,
            partial(self._fetch_more, ticker),
            may_begin_later=is_history,
        )
        return filled, reason

    async def _fetch_more(self, ticker: str, begin: int, end: int) -> Series:
        """Return bars of a window that the first answer may have left out."""
        try:
            return await self._fetch_bars(ticker, begin, end)
        # A venue may say so of a window without bars; it just had bars of the symbol.
        except UnknownSymbolError:
            return NO_BARS

    async def _hold_implausible(self, ticker: str, bars: Series, begin: int) -> tuple[Series, str]:
        """Return the bars without an implausible newest one, and why it is held."""
        # Only a bar of this hour is held: the next run takes what the venue then returns. So a real
        # crash is at most one run late, and a restart needs to remember nothing.
        closed = int(bars.close_time[-1]) if len(bars) else 0
        if closed <= begin or self._clock() // 1000 - closed >= HOUR_S:
            return bars, ""
        others = [
            partial(self._fetch_bars, ticker, listing=listing)
            for listing in self._assets[ticker].listings
            if listing != self._listings[ticker] and listing.venue in self._venues
        ]
        reason = await find_reason_to_hold(bars, others)
        return (bars.select(bars.close_time < closed) if reason else bars), reason

    def _find_missing(self, ticker: str, bars: Series, after: int, reason: str) -> Times:
        """Return the closes that no bar up to the newest one has; log each once."""
        if not len(bars):
            return NO_BARS.close_time
        # A listing that begins later than the history is not a hole.
        is_history = bool(reason) or after < self._begins_at
        begin = int(bars.open_time[0]) if is_history else after
        missing = list_missing(self._assets[ticker].session, bars, begin, int(bars.close_time[-1]))
        if len(missing) and missing[-1] > self._missing_logged_until.get(ticker, -1):
            self._missing_logged_until[ticker] = int(missing[-1])
            first, last = (format_instant(1000 * int(missing[place])) for place in (0, -1))
            log.warning(
                "bars_skipped",
                ticker=ticker,
                at=self.get_listing(ticker),
                bars=len(missing),
                first=first,
                last=last,
            )
        return missing

    def _log_refused_bars(self, ticker: str, event: str, opens: Iterable[int]) -> None:
        """Log and count, once each, bars that came too late to be stepped."""
        for opened in set(opens) - self._refused_opens[ticker]:
            self._refused_opens[ticker].add(opened)
            count = sum(map(len, self._refused_opens.values()))
            log.warning(event, ticker=ticker, opened=format_instant(1000 * opened), refused=count)

    async def _fetch_bars(
        self, ticker: str, begin: int, end: int, listing: Listing | None = None
    ) -> Series:
        """Return an asset's usable hourly bars that close in (begin, end], by default its own."""
        listing, session = listing or self._listings[ticker], self._assets[ticker].session
        period_s = choose_period_s(session)
        venue, length_s = self._venues[listing.venue], PAGE_ROWS * period_s
        # A call that fails is repeated as a whole, so none has many pages. Some venues include the
        # first bar after a window, which the next one has too.
        rows: dict[RawBar, None] = {}
        for first in range(begin, end, length_s):
            last = min(first + length_s, end)
            page = await venue.fetch_bars(listing.symbol, first, last, period_s)
            rows |= dict.fromkeys(page)
        accepted_rows, rejected_rows = validate_bars(list(rows), period_s)
        reasons = [reason for _, reason in rejected_rows]
        self._log_rejected_rows("bars_rejected", ticker, listing, reasons)
        bars = Series.from_rows(accepted_rows, period_s)
        return join_session_bars(bars, session, begin, end)

    async def _fetch_funding(self, ticker: str, after: int, until: int) -> Funding:
        """Return the usable settlements of an asset's perpetual in (after, until], in order."""
        listing = self._listings[ticker]
        if listing.perpetual is None or after >= until:
            return NO_FUNDING
        venue = self._venues[listing.venue]
        try:
            settlements = await venue.fetch_funding(listing.perpetual, after, until)
        # The perpetual was delisted; the asset's own bars go on.
        except UnknownSymbolError:
            return NO_FUNDING
        faults = [find_settlement_fault(*settlement) for settlement in settlements]
        self._log_rejected_rows("settlements_rejected", ticker, listing, filter(None, faults))
        usable = {
            at: rate for (at, rate), fault in zip(settlements, faults, strict=True) if not fault
        }
        return Funding.from_pairs(sorted(usable.items())).select_between(after, until)

    def _log_rejected_rows(
        self, event: str, ticker: str, listing: Listing, reasons: Iterable[str]
    ) -> None:
        """Log why rows of a venue were rejected: once per asset and reason, with their number."""
        for reason, count in Counter(reasons).items():
            if (event, ticker, reason) not in self._logged_rejections:
                self._logged_rejections.add((event, ticker, reason))
                log.warning(event, ticker=ticker, at=str(listing), rows=count, reason=reason)

    def _find_watermark(
        self, ticker: str, bars: Series, after: int, until: int, held_reason: str
    ) -> int:
        """Return the newest close, or a later time if the session is closed and complete."""
        session = self._assets[ticker].session
        newest = int(bars.close_time[-1]) if len(bars) else after
        if newest < find_last_close(session, until):
            event = "bar_held" if held_reason else "bars_missing"
            self._record_late_reason(ticker, held_reason or _NO_NEWER_BAR, event)
            return newest
        self.late_reasons.pop(ticker, None)
        return max(newest, find_session_watermark(session, until))

    def _record_late_reason(self, ticker: str, reason: str, event: str = "bars_missing") -> None:
        """Record why an asset is late; log a venue's failure once for all its assets."""
        if self.late_reasons.get(ticker) == reason:
            return
        is_logged = reason != _NO_NEWER_BAR and reason in self.late_reasons.values()
        self.late_reasons[ticker] = reason
        if not is_logged:
            log.warning(event, ticker=ticker, at=self.get_listing(ticker), reason=reason)

    async def _fetch_status(self, venue: Venue) -> VenueStatus:
        """Return the symbols of a venue, or why it does not answer."""
        try:
            symbols = await venue.fetch_symbols()
            # The list may come from a file, which does not show whether the venue refuses us now.
            await venue.fetch_time_ms()
        except VenueError as error:
            log.warning("venue_unavailable", venue=venue.name, reason=error.reason)
            return VenueStatus(frozenset(), error)
        return VenueStatus(symbols)

    async def _measure_venue_skew_ms(self, venue: Venue) -> float | None:
        """Return how far this machine's clock is ahead of a venue's, None if it does not answer."""
        # The venue read its clock between request and response; the middle is assumed.
        before = self._clock()
        try:
            venue_time_ms = await venue.fetch_time_ms()
        except VenueError as error:
            self._silences[venue.name] = error.reason
            return None
        return (before + self._clock()) / 2 - venue_time_ms
