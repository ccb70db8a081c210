"""What a venue tells again of stored bars: the same, some of them revised, or a new scale."""

from typing import NamedTuple

import numpy as np

from compute.bars import Series

# Half a percent less than the smallest stock dividend that anybody declares as a split.
LEAST_SPLIT, SAME_SCALE = 0.015, 0.002
MOST_COMPARED = 6
ENOUGH = 3


class Overlap(NamedTuple):
    """The opening times of revised bars, and how many new shares stand for an old one, if any."""

    revised: tuple[int, ...]
    split: float | None


def compared(stored: Series, told: Series) -> Overlap:
    """Compare bars by their opening times; a split divides every price by the same number."""
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
        return Overlap((), scale)
    return Overlap(tuple(opens[(before != now).any(axis=0)].tolist()), None)
