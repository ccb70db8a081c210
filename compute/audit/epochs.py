"""Epochs: which version of an indicator or engine each stored row comes from. Pure."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from compute.stepper import LEGACY_INDICATOR, LEGACY_KEY, Cell
from schemas.vocabulary import ENGINE_KEYS
from store.market_rows import AlertRow, EpochRow, FeedRow


class Epochs:
    """Which version of an indicator a bar's reading, or an engine's action, comes from."""

    def __init__(self, rows: Iterable[EpochRow], versions: Mapping[str, int]) -> None:
        """Take the code's own versions of every key."""
        self._versions: Final = versions
        self._rows: Final[dict[Cell, list[EpochRow]]] = {}
        for row in rows:
            self._rows.setdefault(Cell(row.ticker, row.timeframe, row.indicator), []).append(row)
        self._mixed: Final = {
            cell
            for cell, epoch_rows in self._rows.items()
            if any(row.version != versions.get(cell.key) for row in epoch_rows)
        }
        self._renewed: Final = {
            cell for cell, epoch_rows in self._rows.items() if any(row.epoch for row in epoch_rows)
        }

    def select(self, tickers: Collection[str]) -> "Epochs":
        """Return those of some assets."""
        rows = (
            row for epoch_rows in self._rows.values() for row in epoch_rows if row.ticker in tickers
        )
        return Epochs(rows, self._versions)

    @property
    def has_foreign(self) -> bool:
        """Say whether any row may come from another version of its indicator."""
        return bool(self._mixed)

    def is_mixed(self, cell: Cell) -> bool:
        """Say whether any row of a cell may come from another version."""
        return _to_computed_cell(cell) in self._mixed

    def has_begun(self, cell: Cell) -> bool:
        """Say whether a cell has begun in this store."""
        return _to_computed_cell(cell) in self._rows

    def find_start(self, cell: Cell) -> int | None:
        """Return the bar from which on a cell counts, None if it has not begun."""
        rows = self._rows.get(_to_computed_cell(cell))
        return rows[0].from_close_time if rows else None

    def is_plain(self, cell: Cell) -> bool:
        """Say whether all rows of a cell are of epoch 0 and of the code's own version."""
        computed_cell = _to_computed_cell(cell)
        return computed_cell not in self._mixed and computed_cell not in self._renewed

    def find_epoch(self, cell: Cell, close_time: int) -> int:
        """Return the epoch that a bar of a cell belongs to, 0 where none is recorded."""
        epoch = self._find_row(cell, close_time)
        return 0 if epoch is None else epoch.epoch

    def find_revision(self, cell: Cell) -> int | None:
        """Return the bars revision of a cell's newest epoch, None if it has none."""
        rows = self._rows.get(cell)
        return rows[-1].revision if rows else None

    def find_version(self, cell: Cell, close_time: int) -> int | None:
        """Return the version of a bar's epoch, None before the first one."""
        epoch = self._find_row(cell, close_time)
        return None if epoch is None else epoch.version

    def find_foreign_version(self, cell: Cell, close_time: int) -> int | None:
        """Return the version a bar was read with, None where it is the code's own."""
        if not self.is_mixed(cell):
            return None
        version = self.find_version(cell, close_time)
        return None if version == self._versions.get(_to_computed_cell(cell).key) else version

    def list_starts(self) -> dict[Cell, list[int]]:
        """Return the bars from which on each cell's epochs count, oldest first."""
        return {cell: [row.from_close_time for row in rows] for cell, rows in self._rows.items()}

    def _find_row(self, cell: Cell, close_time: int) -> EpochRow | None:
        rows = self._rows.get(_to_computed_cell(cell), ())
        return next((row for row in reversed(rows) if row.from_close_time <= close_time), None)


def get_cell(row: FeedRow) -> Cell:
    """Return the cell of a reading that changed, or of the engine that acted."""
    key = ENGINE_KEYS[row.indicator] if isinstance(row, AlertRow) else row.indicator
    return Cell(row.ticker, row.timeframe, key)


def _to_computed_cell(cell: Cell) -> Cell:
    """Return the cell whose indicator a cell's readings come from."""
    return cell._replace(key=LEGACY_INDICATOR) if cell.key == LEGACY_KEY else cell
