"""The contract of an indicator: it steps all assets at once and keeps a carry between bars."""

from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Readings = NDArray[np.int8]
Carry = dict[str, NDArray[Any]]
Values = dict[str, Floats]

WARMUP = 199
NO_READING = -128
BULLISH, NEUTRAL, BEARISH = 1, 0, -1
ZERO_DIVISOR = 1e-12


class Bar(NamedTuple):
    """Closed bars as columns; an indicator takes the same number of each of N assets.

    Its fields have shape (bars, N), oldest bar first. `funding` is the annualised sum of the day's
    funding rates, NaN if there are none.
    """

    open: Floats
    high: Floats
    low: Floats
    close: Floats
    volume: Floats
    funding: Floats


class Indicator(Protocol):
    """A step function and the carry that it needs.

    A step takes one bar of each asset or many, with equal results, bit for bit. Every array of a
    carry has assets on its first axis, so that the engine can gather and scatter rows; `bars`
    counts each asset's stepped bars. `note` explains a reading to users in a sentence.
    Raise `version` if the formula, its parameters or the carry change: stored carries of another
    version are rebuilt and begin an epoch.
    """

    id: str
    name: str
    version: int
    note: str

    def start(self, assets: int) -> Carry:
        """Return the carry of assets that have not yet seen a bar."""

    def advance(self, carry: Carry, bars: Bar) -> Values:
        """Move the averages and windows behind the raw values; return the values on each bar.

        They have shape (bars, N), and are NaN while undefined.
        """

    def step(self, carry: Carry, bars: Bar) -> tuple[Carry, Readings]:
        """Advance by the bars; return the carry, and +1, 0, -1 or NO_READING on each bar.

        The given carry may be overwritten. The readings have shape (bars, N).
        """
