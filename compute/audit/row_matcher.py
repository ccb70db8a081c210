"""Matches the stored rows of a block's assets with the rows that follow from their bars. Pure.

`created_at` is one sequence over all assets, so the leader compares it (`row_audit`).
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from compute.alerts.alert_pipeline import Alert
from compute.audit.epochs import Epochs, get_cell
from compute.bars import Times
from compute.batch_rows import build_alert_rows, build_change_rows, filter_shown_alerts
from compute.schedule import find_last_run, to_market_ms
from compute.stepper import Cell, Changes
from store.market_rows import AlertRow, ChangeRow, FeedRow

# The columns that identify a row, after its time; those that follow are compared.
KEY_COLUMNS: dict[type[FeedRow], slice] = {ChangeRow: slice(1, 6), AlertRow: slice(1, 7)}
COMPARED_COLUMNS: dict[type[FeedRow], slice] = {ChangeRow: slice(6, None), AlertRow: slice(7, None)}

RowKey = tuple[Any, ...]


class MatchedRows(NamedTuple):
    """The expected rows of some assets in a commit, matched with the stored rows.

    `order` has shape (4, rows): the earliest `created_at` (ms), tier, close time and cell number;
    sorted by these, the rows of all blocks are in feed order. `stored` has shape (rows,): the index
    of each expected row's match, -1 if it has none. `rows` holds the expected rows without a match,
    or all of them if wanted, by index in `order`. The rest is by index in the stored rows: faults
    of matched rows (`differences`), rows that no bar gives (`surplus`), and rows that this code
    cannot recompute, with the reason (`foreign`).
    """

    order: Times
    stored: Times
    rows: dict[int, FeedRow]
    differences: dict[int, list[str]]
    surplus: list[int]
    foreign: dict[int, str]


class RowMatcher:
    """Builds the rows that follow from bars and finds each of them among the stored rows."""

    def __init__(
        self,
        cell_numbers: Mapping[Cell, int],
        engine_numbers: Mapping[Cell, int],
        epochs: Epochs,
        publish_from: Mapping[str, int],
    ) -> None:
        """Take the block's cells, in order, and its engines, with their numbers among all."""
        self._cells: Final = tuple(cell_numbers)
        self._cell_numbers: Final = np.array([*cell_numbers.values()], dtype=np.int64)
        self._engine_numbers: Final = engine_numbers
        self._epochs: Final = epochs
        self._publish_from: Final = publish_from
        self._is_plain: Final = {
            (cell.ticker, cell.key, cell.timeframe)
            for cell in cell_numbers
            if epochs.is_plain(cell)
        }

    def match(
        self,
        changes: Changes,
        alerts: Sequence[Alert],
        stored: Sequence[FeedRow],
        *,
        wants_all: bool = False,
    ) -> MatchedRows:
        """Match the changes and alerts of a commit's bars with the commit's stored rows."""
        # Reversed, so that of two rows with one key the first is matched.
        unmatched = {_to_key(row): place for place, row in reversed([*enumerate(stored)])}
        candidates, order = self._build_candidates(changes, alerts)
        kept: list[int] = []
        matches: list[int] = []
        rows: dict[int, FeedRow] = {}
        differences: dict[int, list[str]] = {}
        for number, candidate in enumerate(candidates):
            row = self._build_expected(candidate, unmatched)
            if row is None:
                continue
            place = unmatched.pop(_to_key(row), -1)
            if place < 0 or wants_all:
                rows[len(kept)] = row
            if place >= 0 and (different := find_differences(stored[place], row)):
                differences[place] = different
            kept.append(number)
            matches.append(place)
        leftovers = sorted(set(range(len(stored))).difference(matches))
        foreign = {
            place: note for place in leftovers if (note := self.describe_foreign(stored[place]))
        }
        surplus = [place for place in leftovers if place not in foreign]
        stored_places = np.array(matches, dtype=np.int64)
        return MatchedRows(order[:, kept], stored_places, rows, differences, surplus, foreign)

    def match_strays(self, stored: Sequence[FeedRow]) -> MatchedRows:
        """Match stored rows for which there are no bars: all are foreign or surplus."""
        nothing = np.empty(0, dtype=np.int64)
        readings = np.empty(0, dtype=np.int8)
        changes = Changes(nothing, nothing, nothing, readings, readings, np.empty(0))
        return self.match(changes, (), stored)

    def describe_foreign(self, row: FeedRow) -> str:
        """Return why this code cannot recompute a row, empty if it can."""
        cell = get_cell(row)
        version = self._epochs.find_foreign_version(cell, row.close_time)
        if isinstance(row, AlertRow):
            is_lost = version is not None or cell not in self._engine_numbers
            return f"alerts of {row.indicator}: another version's" if is_lost else ""
        return "" if version is None else f"{row.indicator}: version {version}"

    def _build_candidates(
        self, changes: Changes, alerts: Sequence[Alert]
    ) -> tuple[list[FeedRow], Times]:
        """Return all rows, dated by the earliest time that each may have, and their `order`."""
        shown = filter_shown_alerts(alerts, self._publish_from)
        change_times = to_market_ms(changes.run)
        alert_times = to_market_ms(np.array([alert.hour for alert in shown], dtype=np.int64))
        rows: list[FeedRow] = [
            *build_change_rows(
                changes, self._cells, change_times, lambda cell: 0, self._publish_from
            ),
            *build_alert_rows(shown, alert_times, lambda cell: 0),
        ]
        close_times = np.array([alert.close_time for alert in shown], dtype=np.int64)
        numbers = [self._engine_numbers[alert.cell] for alert in shown]
        order = (
            (change_times, alert_times),
            (np.zeros_like(change_times), np.ones_like(alert_times)),
            (changes.close_time, close_times),
            (self._cell_numbers[changes.cell], np.array(numbers, dtype=np.int64)),
        )
        return rows, np.stack([np.concatenate(columns) for columns in order])

    def _build_expected(self, row: FeedRow, stored: Mapping[RowKey, int]) -> FeedRow | None:
        """Return a row with its epoch; None if it is foreign or its engine did not publish it."""
        # Most cells have only epoch 0, of this code's version, and need none of the lookups below.
        if row[1:4] in self._is_plain and isinstance(row, ChangeRow):
            return row
        if self.describe_foreign(row):
            return None
        epoch = self._epochs.find_epoch(get_cell(row), row.close_time)
        numbered = row._replace(epoch=epoch)
        return numbered if self._is_published(numbered, stored) else None

    def _is_published(self, row: FeedRow, stored: Mapping[RowKey, int]) -> bool:
        """Return whether a row was published: an engine publishes once its epoch has begun."""
        # An alert held at the end of an epoch is lost. The store has only the bar with which the
        # next epoch began, not the moment, so an alert due between the two may be stored or not.
        if isinstance(row, ChangeRow):
            return True
        cell, hour = get_cell(row), find_last_run(row.created_at)
        if self._epochs.find_version(cell, row.close_time) is None:
            return False
        return _to_key(row) in stored or self._epochs.find_epoch(cell, hour) == row.epoch


def find_differences(stored: FeedRow, expected: FeedRow) -> list[str]:
    """Describe how a stored row differs from the one that the bars give, except for its time."""
    compared = COMPARED_COLUMNS[type(stored)]
    values = _select(stored, compared), _select(expected, compared)
    if values[0] == values[1]:
        return []
    columns = zip(_select(stored._fields, compared), *values, strict=True)
    return [describe_difference(*column) for column in columns if column[1] != column[2]]


def describe_difference(column: str, stored: object, expected: object) -> str:
    """Describe a column whose stored value is not the one that the bars give."""
    return f"{column} is {stored}, but the bars give {expected}"


def _to_key(row: FeedRow) -> RowKey:
    return _select(row, KEY_COLUMNS[type(row)])


def _select(values: tuple[Any, ...], columns: slice) -> tuple[Any, ...]:
    return values[columns]
