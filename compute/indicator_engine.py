"""Runs step functions over any subset of the sequences and keeps their carries. Pure NumPy."""

import hashlib
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Final, Generic, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from compute.indicators.contract import Carry, Readings

Rows = NDArray[np.int64]
Columns = TypeVar("Columns", bound=tuple[NDArray[Any], ...])
ColumnsIn = TypeVar("ColumnsIn", bound=tuple[NDArray[Any], ...], contravariant=True)
# Several bars of a sequence step at a time, at most so many and so many values of a column.
BLOCK_TURNS, BLOCK_VALUES = 64, 16_384


class StepFunction(Protocol[ColumnsIn]):
    """A step over many sequences at once, as of an indicator or of the alert engine.

    The columns of `bars` have shape (bars, sequences). Sequences and bars may be stepped together
    or one after another: the result must be the same.
    """

    def start(self, assets: int, /) -> Carry:
        """Return the carry of sequences that have not yet seen a bar."""

    def step(self, carry: Carry, bars: ColumnsIn, /) -> tuple[Carry, Readings]:
        """Advance each sequence by its bars, which may consume the carry."""


class Engine(Generic[Columns]):
    """Holds the carries of some step functions for every sequence, such as an asset's 4h bars.

    The caller numbers the sequences from 0 to `row_count` - 1. They do not depend on each other,
    so the k-th bars of all of them step together, whenever they closed.
    """

    def __init__(self, indicators: Sequence[StepFunction[Columns]], row_count: int) -> None:
        self._indicators: Final = tuple(indicators)
        self._carries: list[Carry] = [i.start(row_count) for i in self._indicators]

    def step(self, rows: Rows, bar_counts: Rows, bar: Columns) -> Readings:
        """Step the sequences `rows`, each listed once, on `bar_counts` bars each.

        In the columns of `bar`, each sequence's bars are adjacent and in order of close. Return
        their readings, shape (bars, indicators).
        """
        order, source, blocks = _split_into_blocks(bar_counts, bar)
        ordered = rows[order]
        chosen: Rows | slice = ordered
        # Adjacent rows as a slice, which selects views instead of copies.
        if len(rows) and bool((ordered[1:] == ordered[:-1] + 1).all()):
            chosen = slice(int(ordered[0]), int(ordered[-1]) + 1)
        readings = np.empty((len(bar[0]), len(self._indicators)), dtype=np.int8)
        for column, indicator in enumerate(self._indicators):
            whole = self._carries[column]
            # Rows are gathered and scattered instead of masked: the indicators need no masks, and
            # a step costs only as much as the rows that have a bar.
            part = {name: array[chosen] for name, array in whole.items()}
            read = []
            for bars in blocks:
                carry = {name: array[: bars[0].shape[1]] for name, array in part.items()}
                moved, reading = indicator.step(dict(carry), bars)
                for name, array in moved.items():
                    if array is not carry[name]:
                        carry[name][...] = array
                read.append(reading.ravel())
            if read:
                readings[source, column] = np.concatenate(read)
            if isinstance(chosen, np.ndarray):
                for name, array in part.items():
                    whole[name][chosen] = array
        return readings

    def dump_carries(self, column: int, rows: Rows) -> list[bytes]:
        """Return the carries of several sequences for one indicator, each as bytes."""
        # Sorted by name, so that the bytes do not depend on the order in which `start` lists them.
        arrays = (array[rows] for _, array in sorted(self._carries[column].items()))
        parts = [
            np.ascontiguousarray(array)
            .reshape(len(array), math.prod(array.shape[1:]))
            .view(np.uint8)
            for array in arrays
        ]
        return [row.tobytes() for row in np.concatenate(parts, axis=1)]

    def restore_carry(self, column: int, row: int, data: bytes) -> None:
        """Restore a carry that `dump_carries` returned for the same indicator and layout."""
        whole = self._carries[column]
        offset = 0
        for name in sorted(whole):
            cell = whole[name][row : row + 1]
            stored = np.frombuffer(data, cell.dtype, cell.size, offset)
            cell[...] = stored.reshape(cell.shape)
            offset += cell.nbytes


def _split_into_blocks(bar_counts: Rows, bar: Columns) -> tuple[Rows, Rows, list[Columns]]:
    """Return an order of the sequences, an order of the bars, and the bars in blocks.

    The k-th turn holds the k-th bar of every sequence that has one. The longest sequences come
    first, so that each turn steps the first rows of the carries. A block has the shape
    (turns, sequences) and joins adjacent turns of the same sequences.
    """
    # The usual hourly run: every sequence has one bar, and there is nothing to sort.
    if (bar_counts == 1).all():
        identity = np.arange(len(bar_counts))
        return identity, identity, [_reshape_bars(bar, 1)]
    order = np.argsort(-bar_counts, kind="stable")
    turn = np.arange(bar_counts.sum()) - np.repeat(np.cumsum(bar_counts) - bar_counts, bar_counts)
    widths = np.bincount(turn)
    edges = np.append(0, np.cumsum(widths))
    source = _invert_order(edges[turn] + np.repeat(_invert_order(order), bar_counts))
    moved = _select_bars(bar, source)
    blocks = []
    changes = np.flatnonzero(np.diff(widths)) + 1
    for start, end in pairwise([0, *changes.tolist(), len(widths)]):
        width = int(widths[start:end].max(initial=1))
        turns = max(1, min(BLOCK_TURNS, BLOCK_VALUES // width))
        for first in range(start, end, turns):
            last = min(first + turns, end)
            part = _select_bars(moved, slice(int(edges[first]), int(edges[last])))
            blocks.append(_reshape_bars(part, last - first))
    return order, source, blocks


def _reshape_bars(bar: Columns, turns: int) -> Columns:
    """Return columns of bars, turn by turn, in the shape (turns, sequences)."""
    kind = cast(Callable[..., Columns], type(bar))
    return kind(*(column.reshape(turns, len(column) // turns) for column in bar))


def _invert_order(order: Rows) -> Rows:
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return inverse


def _select_bars(bar: Columns, chosen: Rows | slice) -> Columns:
    kind = cast(Callable[..., Columns], type(bar))
    return kind(*(column[chosen] for column in bar))


def hash_layout(indicator: StepFunction[Any]) -> str:
    """Return a short digest of a carry's names, types and shapes.

    It is stored with each carry; if it differs, the stored bytes cannot be read back.
    """
    carry = indicator.start(1)
    text = ";".join(f"{n}:{carry[n].dtype.str}:{carry[n].shape[1:]}" for n in sorted(carry))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
