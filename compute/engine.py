"""Steps functions over any subset of sequences and keeps their carries. Pure NumPy."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, Final, Generic, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from compute.indicators.contract import Carry, Readings

Rows = NDArray[np.int64]
Columns = TypeVar("Columns", bound=tuple[NDArray[Any], ...])
ColumnsIn = TypeVar("ColumnsIn", bound=tuple[NDArray[Any], ...], contravariant=True)


class Stepping(Protocol[ColumnsIn]):
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

    def __init__(self, indicators: Sequence[Stepping[Columns]], rows: int) -> None:
        self._indicators: Final = tuple(indicators)
        self._carries: list[Carry] = [i.start(rows) for i in self._indicators]

    def step(self, rows: Rows, count: Rows, bar: Columns) -> Readings:
        """Step the sequences `rows`, each named once, on `count` bars each.

        The bars of a sequence lie together in the columns of `bar`, in order of close. Returns
        their readings, shape (bars, indicators).
        """
        order = np.argsort(-count, kind="stable")
        place, sizes = _turns(count, order)
        bars = _split(bar, place, sizes)
        chosen = _stretch(rows[order])
        readings = np.empty((len(place), len(self._indicators)), dtype=np.int8)
        for column, indicator in enumerate(self._indicators):
            whole = self._carries[column]
            part = {name: array[chosen] for name, array in whole.items()}
            if bars:
                readings[:, column] = np.concatenate(_step_turns(indicator, part, bars))[place]
            if isinstance(chosen, np.ndarray):
                for name, array in part.items():
                    whole[name][chosen] = array
        return readings

    def carry(self, column: int, row: int) -> bytes:
        """Return one sequence's carry of one indicator as bytes, to be stored."""
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


def _stretch(rows: Rows) -> Rows | slice:
    """Return neighbouring rows as a slice, which gathers views: nothing to copy or put back."""
    if len(rows) and bool((np.diff(rows) == 1).all()):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def _turns(count: Rows, order: Rows) -> tuple[Rows, Rows]:
    """Return each bar's place when turn k holds all k-th bars in an order of the sequences.

    And how many bars each turn has. In an order that has the longest sequences first, those which
    have a bar are the first ones in every turn.
    """
    turn = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    sizes = np.bincount(turn)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return (np.cumsum(sizes) - sizes)[turn] + np.repeat(rank, count), sizes


def _split(bar: Columns, place: Rows, sizes: Rows) -> list[Columns]:
    """Return the bars turn by turn."""
    kind, columns = cast(Callable[..., Columns], type(bar)), []
    for column in bar:
        moved = np.empty_like(column)
        moved[place] = column
        columns.append(np.split(moved, np.cumsum(sizes[:-1])))
    return list(map(kind, *columns)) if len(place) else []


def _step_turns(
    indicator: Stepping[Columns], carry: Carry, bars: Iterable[Columns]
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


def layout(indicator: Stepping[Any]) -> str:
    """Return a short digest of the names, types and shapes of a carry."""
    carry = indicator.start(1)
    text = ";".join(f"{n}:{carry[n].dtype.str}:{carry[n].shape[1:]}" for n in sorted(carry))
    return hashlib.sha256(text.encode()).hexdigest()[:12]
