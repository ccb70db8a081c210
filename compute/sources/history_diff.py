"""What a venue tells again of stored bars: the same, some of them revised, or a new scale."""

from typing import NamedTuple

import numpy as np

from compute.bars import Series

# Half a percent less than the smallest stock dividend that anybody declares as a split.
MIN_SPLIT, MAX_SCALE_DEVIATION = 0.015, 0.002
MAX_COMPARED_BARS = 6
MIN_COMPARED_BARS = 3


class HistoryDiff(NamedTuple):
    """Opening times of bars that are told otherwise, and of some that come after later ones.

    `split` is how many new shares stand for an old one, None where the scale is the same.
    """

    revised: tuple[int, ...] = ()
    backfilled: tuple[int, ...] = ()
    split_ratio: float | None = None


def diff_history(stored: Series, fetched: Series) -> HistoryDiff:
    """Compare stored bars with what is told of their time.

    A split divides every price by the same number.
    """
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
