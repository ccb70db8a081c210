"""Bars that a session expects and a venue's answer lacks: listed, fetched again, and logged."""

from collections.abc import Awaitable, Callable
from typing import Final

import numpy as np
import structlog

from compute.bars import COLUMNS, HOUR_S, Series, Times
from compute.sessions import Calendar, list_expected_bars
from schemas.vocabulary import format_instant

# A venue that shortens its answers delivers more in smaller windows. One that has no more bars
# costs two requests per fetch, one that returns 200 of a year's 7,920 bars about 40. Bars that
# stay missing are never fetched again, because the asset's watermark passes them.
MAX_REQUESTS: Final = 64
MIN_SPLIT_S: Final = 96 * HOUR_S
# As many bars before the first one show whether the listing began then.
PROBED_BARS: Final = 24

BarFetcher = Callable[[int, int], Awaitable[Series]]

log = structlog.get_logger("source")


class MissingBarLog:
    """Logs the bars that readings go on without, each once, however often they are fetched."""

    def __init__(self) -> None:
        self._logged_until: Final[dict[str, int]] = {}

    def write(self, ticker: str, listing: str | None, missing: Times) -> None:
        """Log the closes of an asset's missing bars in one line."""
        if not len(missing) or missing[-1] <= self._logged_until.get(ticker, -1):
            return
        self._logged_until[ticker] = int(missing[-1])
        first, last = (format_instant(1000 * int(missing[place])) for place in (0, -1))
        log.warning(
            "bars_skipped", ticker=ticker, at=listing, bars=len(missing), first=first, last=last
        )


def list_missing(session: Calendar, bars: Series, after: int, until: int) -> Times:
    """Return the closes in (after, until] that the session expects and that no bar has."""
    expected = list_expected_bars(session, after, until).close_time
    return expected[~np.isin(expected, bars.close_time)]


async def fill_holes(
    session: Calendar, bars: Series, after: int, fetch: BarFetcher, *, may_begin_later: bool
) -> Series:
    """Return `bars` with what `fetch` adds to the closes between `after` and the newest bar.

    `fetch` returns the bars that close in (after, until]. If `may_begin_later`, closes before the
    first bar are fetched only if the venue has bars shortly before it.
    """
    if not len(bars):
        return bars
    newest = int(bars.close_time[-1])
    if may_begin_later:
        bars, after = await _find_beginning(session, bars, after, fetch)
    missing = list_missing(session, bars, after, newest)
    if not len(missing):
        return bars
    windows = _split(missing, max(MIN_SPLIT_S, int(missing[-1] - missing[0]) // 2 + HOUR_S))
    requests = 0
    while windows and requests < MAX_REQUESTS:
        begin, end = windows.pop()
        count, answer = len(bars), await fetch(begin, end)
        known = bars.select((bars.close_time > begin) & (bars.close_time <= end))
        bars = _merge(bars, answer)
        requests += 1
        # A window that brings nothing new has nothing more, unless its answer was shortened: then
        # it lacks bars that an earlier one had, and shorter windows bring the others.
        longest_s = max(len(answer) * HOUR_S, MIN_SPLIT_S)
        is_short = not np.isin(known.close_time, answer.close_time).all()
        if len(bars) > count or (is_short and end - begin > longest_s):
            windows += _split(list_missing(session, bars, begin, end), longest_s)
    return bars


async def _find_beginning(
    session: Calendar, bars: Series, after: int, fetch: BarFetcher
) -> tuple[Series, int]:
    """Return the bars, with older ones if the venue has them, and the time they may begin."""
    first = int(bars.open_time[0])
    earlier = list_missing(session, bars, after, first)[-PROBED_BARS:]
    if not len(earlier):
        return bars, after
    older = await fetch(int(earlier[0]) - HOUR_S, int(earlier[-1]))
    return (_merge(bars, older), after) if len(older) else (bars, first)


def _split(missing: Times, longest_s: int) -> list[tuple[int, int]]:
    """Return windows of at most a length that hold the missing closes."""
    windows = []
    while len(missing):
        begin = int(missing[0]) - HOUR_S
        inside = missing <= begin + longest_s
        windows.append((begin, int(missing[inside][-1])))
        missing = missing[~inside]
    return windows


def _merge(bars: Series, others: Series) -> Series:
    """Return the bars and those of the others that close at other times, oldest first."""
    joined = bars.concatenate(others.select(~np.isin(others.close_time, bars.close_time)))
    order = np.argsort(joined.close_time)
    return Series(*(getattr(joined, name)[order] for name in COLUMNS))
