"""Steps functions over any subset of sequences and keeps their carries. Pure NumPy."""

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby, pairwise
from typing import Any, Final, Generic, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from compute.indicators.contract import Carry, Readings

Rows = NDArray[np.int64]
Columns = TypeVar("Columns", bound=tuple[NDArray[Any], ...])
ColumnsIn = TypeVar("ColumnsIn", bound=tuple[NDArray[Any], ...], contravariant=True)
BLOCK_ROWS = 4096


class StepFunction(Protocol[ColumnsIn]):
    """A step over all sequences at once, as an indicator's and the alert engine's are."""

    def start(self, assets: int, /) -> Carry:
        """Return the carry of sequences that have not yet seen a bar."""

    def step(self, carry: Carry, bar: ColumnsIn, /) -> tuple[Carry, Readings]:
        """Advance by one bar of each sequence, which may consume the carry."""


class Engine(Generic[Columns]):
    """The carries of some step functions and every sequence, such as an asset's 4h bars.

    Sequences are numbered 0 to `rows` - 1 by the caller. They do not depend on each other, so that
    the k-th bars of all of them step together, whenever they closed.
    """

    def __init__(self, indicators: Sequence[StepFunction[Columns]], row_count: int) -> None:
        self._indicators: Final = tuple(indicators)
        self._carries: list[Carry] = [i.start(row_count) for i in self._indicators]

    def step(self, rows: Rows, bar_counts: Rows, bar: Columns) -> Readings:
        """Step the sequences `rows`, each named once, on `count` bars each.

        The bars of a sequence lie together in the columns of `bar`, in order of close. Returns
        their readings, shape (bars, indicators).
        """
        if len(rows) <= BLOCK_ROWS:
            return self._step_block(rows, bar_counts, bar)
        bars = np.append(0, np.cumsum(bar_counts))
        readings = []
        for first in range(0, len(rows), BLOCK_ROWS):
            last = min(first + BLOCK_ROWS, len(rows))
            part = _select_bars(bar, slice(bars[first], bars[last]))
            readings.append(self._step_block(rows[first:last], bar_counts[first:last], part))
        return np.concatenate(readings)

    def _step_block(self, rows: Rows, bar_counts: Rows, bar: Columns) -> Readings:
        """Step few enough sequences that what one indicator remembers of them stays in a cache."""
        order, source, bars = _split_into_turns(bar_counts, bar)
        chosen = _to_slice(rows[order])
        readings = np.empty((len(bar[0]), len(self._indicators)), dtype=np.int8)
        for column, indicator in enumerate(self._indicators):
            whole = self._carries[column]
            part = {name: array[chosen] for name, array in whole.items()}
            if bars:
                readings[source, column] = np.concatenate(_step_turns(indicator, part, bars))
            if isinstance(chosen, np.ndarray):
                for name, array in part.items():
                    whole[name][chosen] = array
        return readings

    def dump_carry(self, column: int, row: int) -> bytes:
        """Return one sequence's carry of one indicator as bytes, to be stored."""
        return self.dump_carries(column, np.array([row]))[0]

    def dump_carries(self, column: int, rows: Rows) -> list[bytes]:
        """Return the same of some sequences."""
        arrays = (array[rows] for _, array in sorted(self._carries[column].items()))
        parts = [_rows_to_bytes(array) for array in arrays]
        return [row.tobytes() for row in np.concatenate(parts, axis=1)]

    def restore_carry(self, column: int, row: int, data: bytes) -> None:
        """Put back what `carry` returned for the same indicator and layout."""
        whole = self._carries[column]
        offset = 0
        for name in sorted(whole):
            cell = whole[name][row : row + 1]
            stored = np.frombuffer(data, cell.dtype, cell.size, offset)
            cell[...] = stored.reshape(cell.shape)
            offset += cell.nbytes


def _rows_to_bytes(array: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Return each row of an array as its bytes, shape (rows, bytes)."""
    rows = np.ascontiguousarray(array).reshape(len(array), math.prod(array.shape[1:]))
    return rows.view(np.uint8)


def _to_slice(rows: Rows) -> Rows | slice:
    """Return neighbouring rows as a slice, which gathers views: nothing to copy or put back."""
    if len(rows) and bool((rows[1:] == rows[:-1] + 1).all()):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def _split_into_turns(bar_counts: Rows, bar: Columns) -> tuple[Rows, Rows, list[Columns]]:
    """Return an order of the sequences, one of the bars, and these as turns of all k-th bars.

    The order has the longest sequences first, so that those which have a bar are the first ones
    in every turn.
    """
    if (bar_counts == 1).all():
        identity = np.arange(len(bar_counts))
        return identity, identity, [bar]
    order = np.argsort(-bar_counts, kind="stable")
    turn = np.arange(bar_counts.sum()) - np.repeat(np.cumsum(bar_counts) - bar_counts, bar_counts)
    edges = np.append(0, np.cumsum(np.bincount(turn)))
    source = _invert_order(edges[turn] + np.repeat(_invert_order(order), bar_counts))
    moved = _select_bars(bar, source)
    return order, source, [_select_bars(moved, slice(*edge)) for edge in pairwise(edges.tolist())]


def _invert_order(order: Rows) -> Rows:
    """Return where each place of an order has gone."""
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return inverse


def _select_bars(bar: Columns, chosen: Rows | slice) -> Columns:
    """Return some bars of all."""
    kind = cast(Callable[..., Columns], type(bar))
    return kind(*(column[chosen] for column in bar))


def _step_turns(
    indicator: StepFunction[Columns], carry: Carry, bars: Iterable[Columns]
) -> list[Readings]:
    """Step the first rows of a carry on each turn's bars, in place; return the turns' readings.

    As long as no sequence ends, an indicator goes on with the arrays that it returned.
    """
    readings = []
    for length, turns in groupby(bars, key=lambda bar: len(bar[0])):
        part: Carry = {name: array[:length] for name, array in carry.items()}
        moved = dict(part)
        for bar in turns:
            moved, reading = indicator.step(moved, bar)
            readings.append(reading)
        for name, array in moved.items():
            if array is not part[name]:
                part[name][...] = array
    return readings


def hash_layout(indicator: StepFunction[Any]) -> str:
    """Return a short digest of the names, types and shapes of a carry."""
    carry = indicator.start(1)
    text = ";".join(f"{n}:{carry[n].dtype.str}:{carry[n].shape[1:]}" for n in sorted(carry))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
