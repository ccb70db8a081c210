"""Steps all indicators over any subset of assets and keeps their carries. Pure NumPy."""

import hashlib
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from compute.indicators.contract import Bar, Carry, Indicator, Readings

Rows = NDArray[np.int64]


class Engine:
    """The carries of one timeframe: every indicator, every asset.

    Assets are numbered 0 to `assets` - 1 by the caller; `step` takes the numbers of those that
    have a new bar, each at most once.
    """

    def __init__(self, indicators: Sequence[Indicator], assets: int) -> None:
        self.indicators: Final = tuple(indicators)
        self.assets: Final = assets
        self._carries: list[Carry] = [i.start(assets) for i in self.indicators]

    def step(self, rows: Rows, bar: Bar) -> Readings:
        """Step the assets `rows` on one bar each; return readings, shape (rows, indicators)."""
        readings = np.empty((len(rows), len(self.indicators)), dtype=np.int8)
        everyone = len(rows) == self.assets and bool((rows == np.arange(self.assets)).all())
        for column, indicator in enumerate(self.indicators):
            if everyone:
                self._carries[column], readings[:, column] = indicator.step(
                    self._carries[column], bar
                )
            else:
                readings[:, column] = self._step_some(column, rows, bar)
        return readings

    def _step_some(self, column: int, rows: Rows, bar: Bar) -> Readings:
        whole = self._carries[column]
        part: Carry = {name: array[rows] for name, array in whole.items()}
        part, readings = self.indicators[column].step(part, bar)
        for name, array in part.items():
            whole[name][rows] = array
        return readings

    def carry(self, column: int, row: int) -> bytes:
        """Return one asset's carry of one indicator as bytes, to be stored."""
        whole = self._carries[column]
        return b"".join(whole[name][row].tobytes() for name in sorted(whole))

    def restore(self, column: int, row: int, data: bytes) -> None:
        """Put back what `carry` returned for the same indicator and layout."""
        whole = self._carries[column]
        place = 0
        for name in sorted(whole):
            cell = whole[name][row : row + 1]
            stored = np.frombuffer(data, cell.dtype, cell.size, place)
            cell[...] = stored.reshape(cell.shape)
            place += cell.nbytes


def layout(indicator: Indicator) -> str:
    """Return a short digest of the names, types and shapes of an indicator's carry."""
    carry = indicator.start(1)
    text = ";".join(f"{n}:{carry[n].dtype.str}:{carry[n].shape[1:]}" for n in sorted(carry))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
