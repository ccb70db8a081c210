"""Compares bars that were fetched again with the stored ones: equal, revised, or rescaled."""

from typing import NamedTuple

import numpy as np

from compute.bars import Series

# A split divides all prices by one number, here to within 0.2 %. MIN_SPLIT is half a percent less
# than the smallest stock dividend that is declared as a split. Anything else is a venue's small
# correction, which must not change readings that were published.
MIN_SPLIT, MAX_SCALE_DEVIATION = 0.015, 0.002
MAX_COMPARED_BARS = 6
MIN_COMPARED_BARS = 3


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
