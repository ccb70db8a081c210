"""Compares stored bars with those fetched again (equal, revised, rescaled) and with the session."""

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import numpy as np

from compute.bars import HOUR_S, Series
from compute.sessions import Calendar, list_expected_bars, opens_off_hour

# A split divides all prices by one number, here to within 0.2 %. MIN_SPLIT is half a percent less
# than the smallest stock dividend that is declared as a split. Anything else is a venue's small
# correction, which must not change readings that were published.
MIN_SPLIT, MAX_SCALE_DEVIATION = 0.015, 0.002
MAX_COMPARED_BARS = 6
MIN_COMPARED_BARS = 3
# Two trading days of an exchange, because one missing bar must not hide an old cut.
_CUT_BARS = 14
CUT_REASON = "bars cut at full UTC hours"

StoredBarsLoader = Callable[[str, int], Awaitable[Series]]


class HistoryDiff(NamedTuple):
    """Open times of stored bars with other values, and of bars missing among the stored ones.

    `split_ratio` is the number of new shares for an old one, None if there was no split.
    """

    revised: tuple[int, ...] = ()
    backfilled: tuple[int, ...] = ()
    split_ratio: float | None = None


def diff_history(stored: Series, fetched: Series) -> HistoryDiff:
    """Compare stored bars with the bars that the venue now returns for the same time."""
    opens, stored_indexes, fetched_indexes = np.intersect1d(
        stored.open_time, fetched.open_time, return_indices=True
    )
    before, now = (
        np.stack([s.open, s.high, s.low, s.close, s.volume])[:, places]
        for s, places in ((stored, stored_indexes), (fetched, fetched_indexes))
    )
    ratio = before[:4] / now[:4]
    scale = float(np.median(ratio)) if len(opens) else 1.0
    is_scaled = bool((np.abs(ratio / scale - 1) < MAX_SCALE_DEVIATION).all())
    # One bar may be rescaled by chance; three are taken as evidence, or all if fewer are stored.
    has_enough_bars = len(opens) >= min(MIN_COMPARED_BARS, len(stored))
    if is_scaled and has_enough_bars and abs(scale - 1) > MIN_SPLIT:
        return HistoryDiff(split_ratio=scale)
    revised = opens[(before != now).any(axis=0)]
    return HistoryDiff(tuple(revised.tolist()), _find_backfilled(stored, fetched))


def _find_backfilled(stored: Series, fetched: Series) -> tuple[int, ...]:
    if not len(stored):
        return ()
    first, last = stored.open_time[0], stored.open_time[-1]
    missed = np.setdiff1d(fetched.open_time, stored.open_time)
    return tuple(missed[(missed > first) & (missed < last)].tolist())


class CutCheck:
    """Finds assets whose stored bars are not cut at the full hours of their session.

    Bars of stocks were once cut from the opening on, at half past, and those of perpetuals on
    stocks at hours that reach beyond the session. `load_stored_bars` returns an asset's stored bars
    that open after a time (epoch seconds).
    """

    def __init__(self, load_stored_bars: StoredBarsLoader) -> None:
        self._load_stored_bars: Final = load_stored_bars
        self._well_cut: Final[set[str]] = set()

    async def is_outdated(self, ticker: str, session: Calendar) -> bool:
        """Return whether the asset's newest stored bars have the old cut."""
        # Bars that are cut well stay so; an old cut is found again until new bars are stored.
        if not opens_off_hour(session) or ticker in self._well_cut:
            return False
        stored = await self._load_stored_bars(ticker, -1)
        is_outdated = not _is_well_cut(
            stored.select(np.arange(len(stored)) >= len(stored) - _CUT_BARS), session
        )
        if not is_outdated:
            self._well_cut.add(ticker)
        return is_outdated


def _is_well_cut(stored: Series, session: Calendar) -> bool:
    if not len(stored):
        return True
    first, last = int(stored.close_time[0]), int(stored.close_time[-1])
    expected = list_expected_bars(session, first - 1, last).close_time
    is_expected = np.isin(stored.close_time, expected) & (stored.open_time % HOUR_S == 0)
    return bool(is_expected.all())
