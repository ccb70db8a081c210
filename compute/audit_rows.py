"""Compares the stored changes with those that follow from the bars, both ways. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from compute.indicators.contract import Indicator
from compute.rows import change_rows, market_ms
from compute.stepper import ITS_INDICATOR, LEGACY_KEY, Cell, Changes
from store.digest import changes_digest
from store.rows import ChangeRow, EpochRow, PassRow


class Epochs:
    """Which version of an indicator a bar's reading comes from."""

    def __init__(self, rows: Iterable[EpochRow], indicators: Sequence[Indicator]) -> None:
        self._versions: Final = {indicator.id: indicator.version for indicator in indicators}
        self._rows: Final[dict[Cell, list[EpochRow]]] = {}
        for row in rows:
            self._rows.setdefault(Cell(row.ticker, row.timeframe, row.indicator), []).append(row)

    @property
    def has_foreign(self) -> bool:
        """Say whether any row may come from another version of its indicator."""
        return any(
            row.version != self._versions[cell.key]
            for cell, rows in self._rows.items()
            for row in rows
        )

    def number(self, cell: Cell, close_time: int) -> int:
        """Return the epoch that a bar of a cell belongs to, 0 where none is recorded."""
        epoch = self._at(cell, close_time)
        return 0 if epoch is None else epoch.epoch

    def foreign_version(self, cell: Cell, close_time: int) -> int | None:
        """Return the version a bar was read with, None where it is the code's own."""
        epoch = self._at(cell, close_time)
        own = self._versions[_computed(cell).key]
        return None if epoch is None or epoch.version == own else epoch.version

    def _at(self, cell: Cell, close_time: int) -> EpochRow | None:
        rows = self._rows.get(_computed(cell), ())
        return next((row for row in reversed(rows) if row.from_close_time <= close_time), None)


class RowAudit:
    """Takes the passes in order; `findings` holds one line for every wrong row."""

    def __init__(
        self,
        cells: Sequence[Cell],
        epochs: Epochs,
        publish_from: Mapping[str, int],
        pruned_before: int,
        *,
        is_nominal: bool,
    ) -> None:
        """Say from when rows must be there, and whether `created_at` is a function of the bars."""
        self.findings: Final[list[str]] = []
        self._cells = cells
        self._epochs = epochs
        self._publish_from = publish_from
        self._pruned_before = pruned_before
        self._is_nominal = is_nominal
        self._last_created_at = 0
        self._missing: dict[str, ChangeRow] = {}
        self._surplus: dict[str, ChangeRow] = {}
        self._pruned: dict[Cell, ChangeRow] = {}

    def compare(self, row: PassRow, changes: Changes, stored: Sequence[ChangeRow]) -> None:
        """Compare one pass: what follows from its bars, and what is stored of it."""
        expected = self._expected(changes, stored)
        self._check_digest(row, expected, stored)
        for given in stored:
            known = expected if given.id in expected else self._missing
            wanted = known.pop(given.id, None)
            if wanted is not None:
                self._match(given, wanted)
            elif not self._is_foreign(given):
                self._surplus[given.id] = given
        for wanted in expected.values():
            if wanted.id in self._surplus:
                self._match(self._surplus.pop(wanted.id), wanted)
            elif wanted.created_at < self._pruned_before:
                self._pruned[_cell(wanted)] = wanted
            else:
                self._missing[wanted.id] = wanted
        for given in stored:
            pruned = self._pruned.get(_cell(given))
            if pruned is not None and pruned.created_at < given.created_at:
                del self._pruned[_cell(given)]
        self._last_created_at = row.last_created_at or self._last_created_at

    def finish(self, ownerless: Iterable[ChangeRow]) -> None:
        """Report what is left over: rows of no pass, missing rows, surplus rows."""
        left = [
            ("belongs to no pass", ownerless),
            ("is missing", self._missing.values()),
            ("does not follow from the bars", self._surplus.values()),
            ("is missing: pruning keeps a cell's newest old row", self._pruned.values()),
        ]
        self.findings.extend(f"changes: {row.id} {fault}" for fault, rows in left for row in rows)

    def _expected(self, changes: Changes, stored: Sequence[ChangeRow]) -> dict[str, ChangeRow]:
        """Give the changes their rows; what another version read keeps its places between them."""
        rows: dict[str, ChangeRow] = {}
        taken = {row.created_at for row in stored if self._is_foreign(row)}
        times = market_ms(changes.run)
        for row in change_rows(changes, self._cells, times, lambda cell: 0, self._publish_from):
            if not self._is_foreign(row):
                self._last_created_at = max(row.created_at, self._last_created_at + 1)
                while self._last_created_at in taken:
                    self._last_created_at += 1
                epoch = self._epochs.number(_cell(row), row.close_time)
                own = row._replace(created_at=self._last_created_at, epoch=epoch)
                rows[own.id] = own
        return rows

    def _is_foreign(self, row: ChangeRow) -> bool:
        return self._epochs.foreign_version(_cell(row), row.close_time) is not None

    def _match(self, given: ChangeRow, wanted: ChangeRow) -> None:
        has_aged = given.created_at < self._pruned_before
        if not self._is_nominal or (has_aged and self._epochs.has_foreign):
            wanted = wanted._replace(created_at=given.created_at)
        fields = ("created_at", "before", "after", "price", "published")
        wrong = [
            f"{name} is {getattr(given, name)} where the bars give {getattr(wanted, name)}"
            for name in fields
            if getattr(given, name) != getattr(wanted, name)
        ]
        if wrong:
            self.findings.append(f"changes: {given.id}: {', '.join(wrong)}")

    def _check_digest(
        self, row: PassRow, expected: Mapping[str, ChangeRow], stored: Sequence[ChangeRow]
    ) -> None:
        """Where rows have aged out, the stored digest is held against the recomputed rows."""
        if changes_digest(stored) == row.changes_digest:
            return
        has_aged = row.first_created_at is not None and row.first_created_at < self._pruned_before
        if has_aged and (
            not self._is_nominal
            or self._epochs.has_foreign
            or changes_digest(expected.values()) == row.changes_digest
        ):
            return
        self.findings.append(
            f"changes: pass {row.number} does not hold the rows it was committed with"
        )


def _computed(cell: Cell) -> Cell:
    """Return the cell whose indicator a cell's readings come from."""
    return cell._replace(key=ITS_INDICATOR) if cell.key == LEGACY_KEY else cell


def _cell(row: ChangeRow) -> Cell:
    return Cell(row.ticker, row.timeframe, row.indicator)
