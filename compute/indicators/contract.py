"""What every indicator promises: one step over all assets at once, a carry between bars."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Readings = NDArray[np.int8]
Carry = dict[str, NDArray[np.generic]]
Values = dict[str, Floats]

WARMUP = 199
NO_READING = -128
BULLISH, NEUTRAL, BEARISH = 1, 0, -1
ZERO_DIVISOR = 1e-12


class Bar(NamedTuple):
    """One closed bar of each of N assets; every field has shape (N,).

    `funding` is the annualised sum of the day's funding rates, NaN where there is no gate.
    """

    open: Floats
    high: Floats
    low: Floats
    close: Floats
    volume: Floats
    funding: Floats


class Indicator(Protocol):
    """A step function and the carry it needs.

    Every array of a carry has assets on its first axis, so that the engine can gather and scatter
    rows; `bars` counts the bars each asset has been stepped on. `note` tells users in a sentence
    what a reading means.
    """

    id: str
    name: str
    version: int
    note: str

    def start(self, assets: int) -> Carry:
        """Return the carry of assets that have not yet seen a bar."""

    def advance(self, carry: Carry, bar: Bar) -> Values:
        """Move the carry's windows by one bar; return the raw values, NaN while undefined."""

    def step(self, carry: Carry, bar: Bar) -> tuple[Carry, Readings]:
        """Advance by one bar, which may consume the carry; return +1, 0, -1 or NO_READING."""
