"""Finds the version of an indicator or alert engine that each stored row comes from. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from compute.engine_state import FIRST_BAR, REPLACES
from compute.stepper import LEGACY_INDICATOR, LEGACY_KEY, Cell, SeriesKey
from schemas.vocabulary import ENGINE_KEYS
from store.market_rows import AlertRow, EpochRow, FeedRow


class Epochs:
    """The stored epochs of all cells, searched by cell and bar."""

    def __init__(
        self,
        rows: Iterable[EpochRow],
        versions: Mapping[str, int],
        sunday_joining: Collection[SeriesKey],
    ) -> None:
        """Take this code's version of every key, and the sequences that join Sunday's hours."""
        self._versions: Final = versions
        self._sunday_joining: Final = frozenset(sunday_joining)
        self._rows: Final[dict[Cell, list[EpochRow]]] = {}
        for row in rows:
            self._rows.setdefault(Cell(row.ticker, row.timeframe, row.indicator), []).append(row)
        self._mixed: Final = {
            cell
            for cell, epoch_rows in self._rows.items()
            if any(row.version != self._find_code_version(cell) for row in epoch_rows)
        }
        self._rebuilt: Final = {
            cell for cell, epoch_rows in self._rows.items() if any(row.epoch for row in epoch_rows)
        }

    def list_faults(self) -> list[str]:
        """Describe cells whose epochs do not follow each other."""
        return [
            f"epochs: {'.'.join(cell)}: {fault}"
            for cell, rows in sorted(self._rows.items())
            if (fault := _find_fault(rows))
        ]

    def select(self, tickers: Collection[str]) -> "Epochs":
        """Return the epochs of some assets."""
        rows = (
            row for epoch_rows in self._rows.values() for row in epoch_rows if row.ticker in tickers
        )
        return Epochs(rows, self._versions, self._sunday_joining)

    @property
    def has_foreign(self) -> bool:
        """Whether any row may come from another version of its indicator."""
        return bool(self._mixed)

    def is_mixed(self, cell: Cell) -> bool:
        """Return whether any row of a cell may come from another version."""
        return _to_computed_cell(cell) in self._mixed

    def has_begun(self, cell: Cell) -> bool:
        """Return whether a cell has an epoch in this store."""
        return _to_computed_cell(cell) in self._rows

    def find_start(self, cell: Cell) -> int | None:
        """Return the close of the first bar that counts for a cell, None if it has no epoch."""
        rows = self._rows.get(_to_computed_cell(cell))
        return rows[0].from_close_time if rows else None

    def is_plain(self, cell: Cell) -> bool:
        """Return whether all rows of a cell are of epoch 0 and of this code's version."""
        computed_cell = _to_computed_cell(cell)
        return computed_cell not in self._mixed and computed_cell not in self._rebuilt

    def find_epoch(self, cell: Cell, close_time: int) -> int:
        """Return the epoch that a bar of a cell belongs to, 0 if none is stored."""
        epoch = self._find_row(cell, close_time)
        return 0 if epoch is None else epoch.epoch

    def find_newest(self, cell: Cell) -> EpochRow | None:
        """Return the newest epoch of a cell, None if it has none."""
        rows = self._rows.get(cell)
        return rows[-1] if rows else None

    def find_first_bar(self, cell: Cell) -> int | None:
        """Return the close of the bar that a cell says it began with; None if it can't be checked.

        That is so if it began otherwise, or with another version than this code's.
        """
        row = next(iter(self._rows.get(cell, ())), None)
        if row is None or row.reason != FIRST_BAR or row.version != self._find_code_version(cell):
            return None
        return row.from_close_time

    def find_version(self, cell: Cell, close_time: int) -> int | None:
        """Return the version of a bar's epoch, None before the first one."""
        epoch = self._find_row(cell, close_time)
        return None if epoch is None else epoch.version

    def find_foreign_version(self, cell: Cell, close_time: int) -> int | None:
        """Return the version that read a bar, None if it is this code's."""
        if not self.is_mixed(cell):
            return None
        version = self.find_version(cell, close_time)
        return None if version == self._find_code_version(_to_computed_cell(cell)) else version

    def list_starts(self) -> dict[Cell, list[int]]:
        """Return the close of the first bar of each cell's epochs, oldest first."""
        return {cell: [row.from_close_time for row in rows] for cell, rows in self._rows.items()}

    def find_last_start(self, cell: Cell) -> int:
        """Return the close of the first bar of a cell's newest epoch, -1 if it has no epoch."""
        rows = self._rows.get(cell)
        return rows[-1].from_close_time if rows else -1

    def _find_code_version(self, cell: Cell) -> int | None:
        """Return the version by which this code steps a cell, None if it does not know the key."""
        return self._versions.get(cell.key)

    def _find_row(self, cell: Cell, close_time: int) -> EpochRow | None:
        rows = self._rows.get(_to_computed_cell(cell), ())
        return next((row for row in reversed(rows) if row.from_close_time <= close_time), None)


def _find_fault(rows: Sequence[EpochRow]) -> str:
    """Return what is wrong with the epochs of a cell, '' if nothing is."""
    if [row.epoch for row in rows] != [*range(len(rows))]:
        return f"the epochs are numbered {', '.join(str(row.epoch) for row in rows)}"
    for before, row in pairwise(rows):
        if row.from_close_time < before.from_close_time:
            return f"epoch {row.epoch} begins before the one that it follows"
        if row.reason.startswith(REPLACES) and row.reason != f"{REPLACES} {before.version}":
            return f"epoch {row.epoch} {row.reason}, but the one before has {before.version}"
    return ""


def get_cell(row: FeedRow) -> Cell:
    """Return the cell of a change's reading, or of an alert's engine."""
    # The legacy key has no engine. A row that names it is damaged, and its digest says so.
    engines: Mapping[str, str] = ENGINE_KEYS
    key = engines.get(row.indicator, "") if isinstance(row, AlertRow) else row.indicator
    return Cell(row.ticker, row.timeframe, key)


def _to_computed_cell(cell: Cell) -> Cell:
    """Return the cell whose indicator gives a cell's readings: for the legacy key, another one."""
    return cell._replace(key=LEGACY_INDICATOR) if cell.key == LEGACY_KEY else cell
