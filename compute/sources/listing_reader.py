"""Reads what venues hold of an asset: the usable bars and settlements of its listings."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import structlog

from compute.bars import (
    HOUR_S,
    NO_BARS,
    NO_FUNDING,
    Funding,
    RawBar,
    Series,
    find_settlement_fault,
    resample_bars,
    validate_bars,
)
from compute.sessions import list_expected_bars, opens_off_hour
from compute.sources.venue import UnknownSymbolError, Venue
from compute.universe import Asset, Listing, Session
from schemas.clock import Clock

log = structlog.get_logger("source")


class ListingReader:
    """Fetches rows from venues and leaves out, with a line in the log, those that cannot be used.

    All times are epoch seconds. A failing venue raises VenueError.
    """

    def __init__(
        self, assets: Mapping[str, Asset], venues: Mapping[str, Venue], clock: Clock
    ) -> None:
        self._assets: Final = assets
        self._venues: Final = venues
        self._clock: Final = clock
        self._funding_cache: Final[dict[str, tuple[int, int, Funding]]] = {}
        self._logged_rejections: Final = set[tuple[str, str, str]]()

    async def fetch_bars(self, ticker: str, listing: Listing, begin: int, end: int) -> Series:
        """Return the hourly bars of an asset's listing that close in (begin, end], in order."""
        session = self._assets[ticker].session
        period_s = choose_period_s(session)
        venue = self._venues[listing.venue]
        rows = await venue.fetch_bars(listing.symbol, begin, end, period_s)
        bars = self._clean_bars(ticker, listing, rows, period_s)
        return join_session_bars(bars, session, begin, end)

    async def fetch_funding(self, ticker: str, listing: Listing, after: int, until: int) -> Funding:
        """Return the settlements of a listing's perpetual in (after, until], if it has one."""
        # Venues allow few requests for funding. So everything up to now is fetched at once, and a
        # history that is built batch by batch takes its settlements from the first fetch.
        if listing.perpetual is None or after >= until:
            return NO_FUNDING
        cached = self._funding_cache.get(ticker)
        if cached is None or not cached[0] <= after < until <= cached[1]:
            now = self._clock() // 1000
            funding = await self._fetch_settlements(ticker, listing, listing.perpetual, after, now)
            cached = self._funding_cache[ticker] = after, now, funding
        return cached[2].select_between(after, until)

    def forget_funding(self, *tickers: str) -> None:
        """Fetch the settlements of some assets again when they are next requested."""
        for ticker in tickers:
            self._funding_cache.pop(ticker, None)

    def _clean_bars(
        self, ticker: str, listing: Listing, rows: Sequence[RawBar], period_s: int
    ) -> Series:
        """Return the valid bars in order."""
        accepted_rows, rejected_rows = validate_bars(rows, period_s)
        reasons = [reason for _, reason in rejected_rows]
        self._log_rejected_rows("bars_rejected", ticker, listing, reasons)
        return Series.from_rows(accepted_rows, period_s)

    async def _fetch_settlements(
        self, ticker: str, listing: Listing, perpetual: str, after: int, until: int
    ) -> Funding:
        """Return the usable settlements of a perpetual in (after, until], in order."""
        try:
            settlements = await self._venues[listing.venue].fetch_funding(perpetual, after, until)
        # The perpetual was delisted; the asset's own bars go on.
        except UnknownSymbolError:
            return NO_FUNDING
        faults = [find_settlement_fault(*settlement) for settlement in settlements]
        self._log_rejected_rows("settlements_rejected", ticker, listing, filter(None, faults))
        usable = {
            at: rate for (at, rate), fault in zip(settlements, faults, strict=True) if not fault
        }
        return Funding.from_pairs(sorted(usable.items()))

    def _log_rejected_rows(
        self, event: str, ticker: str, listing: Listing, reasons: Iterable[str]
    ) -> None:
        """Log why rows of a venue were rejected: once per asset and reason, with their number."""
        for reason, count in Counter(reasons).items():
            if (event, ticker, reason) not in self._logged_rejections:
                self._logged_rejections.add((event, ticker, reason))
                log.warning(event, ticker=ticker, at=str(listing), rows=count, reason=reason)


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
