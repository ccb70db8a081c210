"""Changes as columns, those of a batch and those of a store: either can be a million rows."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from schemas.vocabulary import Timeframe
from store.codes import KEYS_BY_CODE, TIMEFRAMES_BY_CODE
from store.market_rows import Batch, ChangeRow

# Stands for a missing reading, as in the digest.
NO_BEFORE = 127


class ChangedCell(NamedTuple):
    """The values that all changes of a cell share."""

    ticker: str
    indicator: str
    timeframe: Timeframe
    epoch: int


@dataclass(frozen=True, slots=True, eq=False)
class ChangeTable:
    """Changes as columns of shape (changes,); a row is built when it is read.

    `cell` is an index in `cells`; `before` is NO_BEFORE for a cell's first reading.
    """

    cells: Sequence[ChangedCell]
    created_at: NDArray[np.int64]
    cell: NDArray[np.int64]
    close_time: NDArray[np.int64]
    before: NDArray[np.int8]
    after: NDArray[np.int8]
    price: NDArray[np.float64]
    published: NDArray[np.bool_]

    @classmethod
    def from_rows(cls, rows: Iterable[ChangeRow]) -> "ChangeTable":
        """Return changes as columns in the given order; a table is returned as it is."""
        if isinstance(rows, ChangeTable):
            return rows
        rows = list(rows)
        at, ticker, indicator, timeframe, closed, epoch, before, after, price, published = (
            zip(*rows, strict=True) if rows else ((),) * len(ChangeRow._fields)
        )
        named = list(zip(ticker, indicator, timeframe, epoch, strict=True))
        numbers = {one: number for number, one in enumerate(dict.fromkeys(named))}
        return cls(
            list(starmap(ChangedCell, numbers)),
            np.array(at, dtype=np.int64),
            np.array([numbers[one] for one in named], dtype=np.int64),
            np.array(closed, dtype=np.int64),
            np.array([NO_BEFORE if one is None else one for one in before], dtype=np.int8),
            np.array(after, dtype=np.int8),
            np.array(price, dtype=np.float64),
            np.array(published, dtype=np.bool_),
        )

    def __len__(self) -> int:
        return len(self.created_at)

    def __iter__(self) -> Iterator[ChangeRow]:
        columns = zip(
            self.created_at.tolist(),
            map(self.cells.__getitem__, self.cell.tolist()),
            self.close_time.tolist(),
            self.list_before(),
            self.after.tolist(),
            self.price.tolist(),
            self.published.tolist(),
            strict=True,
        )
        for at, (ticker, indicator, timeframe, epoch), closed, *rest in columns:
            yield ChangeRow(at, ticker, indicator, timeframe, closed, epoch, *rest)

    def select(self, chosen: "slice | NDArray[np.int64]") -> "ChangeTable":
        """Return the chosen changes, in the order of their indexes."""
        columns = (getattr(self, field.name)[chosen] for field in fields(self)[1:])
        return ChangeTable(self.cells, *columns)

    def list_before(self) -> list[int | None]:
        """Return the readings before, None for a missing one."""
        return [None if before == NO_BEFORE else before for before in self.before.tolist()]

    def find_newest(self) -> "ChangeTable":
        """Return the last change of each cell, oldest first."""
        _, from_end = np.unique(self.cell[::-1], return_index=True)
        return self.select(np.sort(len(self) - 1 - from_end))


def count_rows(batch: Batch) -> tuple[int, int, int]:
    """Return the numbers of published changes, of alerts, and of bars that were held back."""
    published = int(ChangeTable.from_rows(batch.changes).published.sum())
    return published, len(batch.alerts), batch.held_bars


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
