"""What a venue tells again of stored bars: the same, some of them revised, or a new scale."""

from typing import NamedTuple

import numpy as np

from compute.bars import Series

# Half a percent less than the smallest stock dividend that anybody declares as a split.
LEAST_SPLIT, SAME_SCALE = 0.015, 0.002
MOST_COMPARED = 6
ENOUGH = 3


class Overlap(NamedTuple):
    """Opening times of bars that are told otherwise, and of some that come after later ones.

    `split` is how many new shares stand for an old one, None where the scale is the same.
    """

    revised: tuple[int, ...] = ()
    belated: tuple[int, ...] = ()
    split: float | None = None


def compared(stored: Series, told: Series) -> Overlap:
    """Compare stored bars with what is told of their time.

    A split divides every price by the same number.
    """
    opens, mine, theirs = np.intersect1d(stored.open_time, told.open_time, return_indices=True)
    before, now = (
        np.stack([s.open, s.high, s.low, s.close, s.volume])[:, places]
        for s, places in ((stored, mine), (told, theirs))
    )
    ratio = before[:4] / now[:4]
    scale = float(np.median(ratio)) if len(opens) else 1.0
    is_scaled = bool((np.abs(ratio / scale - 1) < SAME_SCALE).all())
    is_known = len(opens) >= min(ENOUGH, len(stored))
    if is_scaled and is_known and abs(scale - 1) > LEAST_SPLIT:
        return Overlap(split=scale)
    revised = opens[(before != now).any(axis=0)]
    return Overlap(tuple(revised.tolist()), _belated(stored, told))


def _belated(stored: Series, told: Series) -> tuple[int, ...]:
    if not len(stored):
        return ()
    first, last = stored.open_time[0], stored.open_time[-1]
    missed = np.setdiff1d(told.open_time, stored.open_time)
    return tuple(missed[(missed > first) & (missed < last)].tolist())
