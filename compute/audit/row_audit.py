"""Compares the stored rows of both tiers with those that follow from the bars, both ways. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Final

import numpy as np

from compute.alerts.alert_pipeline import Alert
from compute.batch_rows import build_alert_rows, build_change_rows, filter_shown_alerts
from compute.schedule import find_last_run, to_market_ms
from compute.stepper import LEGACY_INDICATOR, LEGACY_KEY, Cell, Changes
from schemas.vocabulary import ENGINE_KEYS
from store.digest import digest_alerts, digest_changes
from store.market_rows import AlertRow, ChangeRow, CommitRow, EpochRow, FeedRow, Progress

TABLES: dict[type[FeedRow], str] = {ChangeRow: "changes", AlertRow: "alerts"}
COMPARED_FIELDS = {
    ChangeRow: ("created_at", "before", "after", "price", "published"),
    AlertRow: ("created_at", "price"),
}


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

    def find_epoch(self, cell: Cell, close_time: int) -> int:
        """Return the epoch that a bar of a cell belongs to, 0 where none is recorded."""
        epoch = self._find_row(cell, close_time)
        return 0 if epoch is None else epoch.epoch

    def find_revision(self, cell: Cell) -> int | None:
        """Return of which generation of bars a cell's newest epoch is, None where it has none."""
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


class RowAudit:
    """Takes the passes in order; `findings` holds one line for every wrong row."""

    def __init__(
        self,
        cells: Sequence[Cell],
        engines: Sequence[Cell],
        epochs: Epochs,
        publish_from: Mapping[str, int],
        progress: Progress,
        *,
        is_nominal: bool,
    ) -> None:
        """Say what is computed, from when rows must be there, and whether times are nominal.

        Where they are, `created_at` is a function of the bars.
        """
        self.findings: Final[list[str]] = []
        self._cells = cells
        self._engines = frozenset(engines)
        self._epochs = epochs
        self._publish_from = publish_from
        self._pruned_before: dict[type[FeedRow], int] = {
            ChangeRow: progress.pruned_before,
            AlertRow: progress.alerts_pruned_before,
        }
        self._is_nominal = is_nominal
        self._last_created_at = 0
        self._missing: dict[str, FeedRow] = {}
        self._surplus: dict[str, FeedRow] = {}
        self._pruned: dict[tuple[object, ...], FeedRow] = {}

    def is_foreign(self, row: FeedRow) -> bool:
        """Say whether the code can't recompute a row: another version's, or not followed now."""
        is_lost = isinstance(row, AlertRow) and get_cell(row) not in self._engines
        return (
            is_lost or self._epochs.find_foreign_version(get_cell(row), row.close_time) is not None
        )

    def compare(
        self,
        commit: CommitRow,
        changes: Changes,
        alerts: Sequence[Alert],
        stored: Sequence[FeedRow],
    ) -> None:
        """Compare one pass: what follows from its bars, and what is stored of it."""
        expected = self._build_expected(changes, alerts, stored)
        self._check_digests(commit, expected.values(), stored)
        for stored_row in stored:
            candidates = expected if stored_row.id in expected else self._missing
            expected_row = candidates.pop(stored_row.id, None)
            if expected_row is not None:
                self._compare_row(stored_row, expected_row)
            elif not self.is_foreign(stored_row):
                self._surplus[stored_row.id] = stored_row
        for expected_row in expected.values():
            if expected_row.id in self._surplus:
                self._compare_row(self._surplus.pop(expected_row.id), expected_row)
            elif self._has_aged(expected_row):
                self._pruned[_to_pruning_key(expected_row)] = expected_row
            else:
                self._missing[expected_row.id] = expected_row
        for stored_row in stored:
            pruned = (
                self._pruned.get(_to_pruning_key(stored_row))
                if self._has_aged(stored_row)
                else None
            )
            if pruned is not None and pruned.created_at < stored_row.created_at:
                del self._pruned[_to_pruning_key(stored_row)]
        self._last_created_at = commit.last_created_at or self._last_created_at

    def finish(self, unreferenced: Iterable[FeedRow]) -> None:
        """Report what is left over: rows of no pass, missing rows, surplus rows."""
        leftovers = [
            ("belongs to no pass", unreferenced),
            ("is missing", self._missing.values()),
            ("does not follow from the bars", self._surplus.values()),
            ("is missing: pruning keeps a cell's newest old row", self._pruned.values()),
        ]
        for fault, rows in leftovers:
            self.findings.extend(f"{TABLES[type(row)]}: {row.id} {fault}" for row in rows)

    def _build_expected(
        self, changes: Changes, alerts: Sequence[Alert], stored: Sequence[FeedRow]
    ) -> dict[str, FeedRow]:
        """Give changes and alerts their rows; those of other versions keep their places between."""
        rows: dict[str, FeedRow] = {}
        ids = {row.id for row in stored}
        taken_times = {row.created_at for row in stored if self.is_foreign(row)}
        for row in self._build_candidates(changes, alerts):
            epoch = self._epochs.find_epoch(get_cell(row), row.close_time)
            numbered = row._replace(epoch=epoch) if epoch else row
            if self.is_foreign(row) or not self._is_expected(numbered, numbered.id in ids):
                continue
            self._last_created_at = max(row.created_at, self._last_created_at + 1)
            while self._last_created_at in taken_times:
                self._last_created_at += 1
            rows[numbered.id] = numbered._replace(created_at=self._last_created_at)
        return rows

    def _build_candidates(self, changes: Changes, alerts: Sequence[Alert]) -> list[FeedRow]:
        """Return all rows in order, each with the earliest time that it may have."""
        shown = filter_shown_alerts(alerts, self._publish_from)
        hours = np.array([alert.hour for alert in shown], dtype=np.int64)
        rows: list[FeedRow] = [
            *build_change_rows(
                changes, self._cells, to_market_ms(changes.run), lambda cell: 0, self._publish_from
            ),
            *build_alert_rows(shown, to_market_ms(hours), lambda cell: 0),
        ]
        return sorted(rows, key=attrgetter("created_at"))

    def _is_expected(self, row: FeedRow, is_stored: bool) -> bool:
        """Say whether a row belongs there: an engine publishes what fires once it has begun.

        What it holds at an epoch's end is lost. When the next one began is known to the bar alone,
        so that between the two a row may be there or not.
        """
        if isinstance(row, ChangeRow):
            return True
        cell, hour = get_cell(row), find_last_run(row.created_at)
        if self._epochs.find_version(cell, row.close_time) is None:
            return False
        return is_stored or self._epochs.find_epoch(cell, hour) == row.epoch

    def _has_aged(self, row: FeedRow) -> bool:
        return row.created_at < self._pruned_before[type(row)]

    def _compare_row(self, stored: FeedRow, expected: FeedRow) -> None:
        has_aged = self._has_aged(stored)
        if not self._is_nominal or (has_aged and self._epochs.has_foreign):
            expected = expected._replace(created_at=stored.created_at)
        differences = [
            f"{name} is {getattr(stored, name)} where the bars give {getattr(expected, name)}"
            for name in COMPARED_FIELDS[type(stored)]
            if getattr(stored, name) != getattr(expected, name)
        ]
        if differences:
            self.findings.append(f"{TABLES[type(stored)]}: {stored.id}: {', '.join(differences)}")

    def _check_digests(
        self, commit: CommitRow, expected: Iterable[FeedRow], stored: Iterable[FeedRow]
    ) -> None:
        """Where rows have aged out, the stored digest is held against the recomputed rows."""
        (changes, alerts), (expected_changes, expected_alerts) = (
            split_by_tier(stored),
            split_by_tier(expected),
        )
        digests = digest_changes(changes), digest_changes(expected_changes)
        self._check_digest(commit, ChangeRow, commit.changes_digest, *digests)
        self._check_digest(
            commit,
            AlertRow,
            commit.alerts_digest,
            digest_alerts(alerts),
            digest_alerts(expected_alerts),
        )

    def _check_digest(
        self,
        commit: CommitRow,
        kind: type[FeedRow],
        committed: bytes | None,
        stored: bytes | None,
        recomputed: bytes | None,
    ) -> None:
        if stored == committed:
            return
        first = commit.first_created_at
        has_aged = first is not None and first < self._pruned_before[kind]
        is_unknown = not self._is_nominal or self._epochs.has_foreign
        if not (has_aged and (is_unknown or recomputed == committed)):
            self.findings.append(
                f"{TABLES[kind]}: pass {commit.number} does not hold the rows it was committed with"
            )


def split_by_tier(rows: Iterable[FeedRow]) -> tuple[list[ChangeRow], list[AlertRow]]:
    """Tell changes from alerts."""
    changes: list[ChangeRow] = []
    alerts: list[AlertRow] = []
    for row in rows:
        if isinstance(row, ChangeRow):
            changes.append(row)
        else:
            alerts.append(row)
    return changes, alerts


def get_cell(row: FeedRow) -> Cell:
    """Return the cell of a reading that changed, or of the engine that acted."""
    key = ENGINE_KEYS[row.indicator] if isinstance(row, AlertRow) else row.indicator
    return Cell(row.ticker, row.timeframe, key)


def _to_computed_cell(cell: Cell) -> Cell:
    """Return the cell whose indicator a cell's readings come from."""
    return cell._replace(key=LEGACY_INDICATOR) if cell.key == LEGACY_KEY else cell


def _to_pruning_key(row: FeedRow) -> tuple[object, ...]:
    """Return of what pruning keeps the newest old row."""
    alert_key = (row.action, row.epoch) if isinstance(row, AlertRow) else ()
    return (*get_cell(row), *alert_key)
