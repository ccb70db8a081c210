"""Builds longer bars from hourly ones, for readings and for charts alike; imports only NumPy.

Times are epoch seconds UTC.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.int64]
Prices = NDArray[np.float64]
DAY_S = 86_400


class LongerBars(NamedTuple):
    """Bars on UTC boundaries, oldest first; every column has shape (bars,)."""

    open_time: Times
    close_time: Times
    open: Prices
    high: Prices
    low: Prices
    close: Prices
    volume: Prices


def compute_close_time(open_time: Times, period_s: int) -> Times:
    """Return when bars close; a bar that ends off its boundary closes at the next one.

    Hourly bars close on full hours and daily bars at 00:00 UTC, just before a run reads them.
    """
    return -(-(open_time + period_s) // period_s) * period_s


def find_longer_close(close_time: Times, period_s: int, *, joins_sundays: bool = False) -> Times:
    """Return when the longer bar closes to which each hourly bar belongs: the one it closes in.

    If `joins_sundays`, Sunday's hours belong to Monday's daily bar.
    """
    bucket = compute_close_time(close_time - period_s, period_s)
    if joins_sundays and period_s == DAY_S:
        # The epoch began on a Thursday, so it is Monday 00:00 on days 4, 11, 18 and so on.
        bucket = np.where(bucket // DAY_S % 7 == 4, bucket + DAY_S, bucket)
    return bucket


def mark_changes(values: Times) -> NDArray[np.bool_]:
    """Return whether each value differs from the one before it; the first one always does."""
    differs = np.ones(len(values), dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=differs[1:])
    return differs


def build_longer_bars(
    close_time: Times,
    prices: Sequence[Prices],
    period_s: int,
    *,
    joins_sundays: bool = False,
) -> LongerBars:
    """Build longer bars on UTC boundaries, as `find_longer_close` assigns the hourly ones.

    `prices` are the hourly columns open, high, low, close and volume, with at least one bar.
    """
    bucket = find_longer_close(close_time, period_s, joins_sundays=joins_sundays)
    first = np.flatnonzero(mark_changes(bucket))
    last = np.append(first[1:], len(bucket)) - 1
    opened, high, low, closed, volume = prices
    return LongerBars(
        open_time=bucket[first] - period_s,
        close_time=bucket[first],
        open=opened[first],
        high=np.maximum.reduceat(high, first),
        low=np.minimum.reduceat(low, first),
        close=closed[last],
        volume=np.add.reduceat(volume, first),
    )
