"""Changes as columns, for work on all changes of a store: a row of each would take too long."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store.codes import KEYS_BY_CODE, TIMEFRAMES_BY_CODE
from store.market_rows import ChangeRow

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class ChangeColumns(NamedTuple):
    """Stored changes in order of `created_at`, each column of shape (changes,).

    `indicator` and `timeframe` are stored codes; `before` is NaN for a first reading.
    """

    created_at: Integers
    asset_id: Integers
    indicator: Integers
    timeframe: Integers
    close_time: Integers
    epoch: Integers
    before: Floats
    after: Integers
    price: Floats
    published: Integers

    def select(self, chosen: Any) -> "ChangeColumns":
        """Return the chosen changes, given as a slice or an index of NumPy."""
        return ChangeColumns._make(column[chosen] for column in self)

    def build_row(self, place: int, tickers: Mapping[int, str]) -> ChangeRow:
        """Return one change as a row; `tickers` has the ticker of each asset by its id."""
        before = self.before[place]
        return ChangeRow(
            int(self.created_at[place]),
            # A row that was altered may name no asset.
            tickers.get(int(self.asset_id[place])),  # type: ignore[arg-type]
            KEYS_BY_CODE[int(self.indicator[place])],
            TIMEFRAMES_BY_CODE[int(self.timeframe[place])],
            int(self.close_time[place]),
            int(self.epoch[place]),
            None if np.isnan(before) else int(before),
            int(self.after[place]),
            float(self.price[place]),
            bool(self.published[place]),
        )


DTYPES = (*["i8"] * 6, "f8", "i8", "f8", "i8")


def build_columns(rows: Sequence[Iterable[Any]]) -> ChangeColumns:
    """Return rows as columns; a row has the values of ChangeColumns, with None for NaN."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(DTYPES)
    return ChangeColumns._make(
        np.array(column, dtype=dtype) for column, dtype in zip(columns, DTYPES, strict=True)
    )


def concatenate(parts: Sequence[ChangeColumns]) -> ChangeColumns:
    """Return the changes of several parts, at least one, one after the other."""
    return ChangeColumns._make(np.concatenate(columns) for columns in zip(*parts, strict=True))
