"""Matches the stored rows of a block's assets with the rows that follow from their bars. Pure.

`created_at` is one sequence over all assets, so the leader compares it (`row_audit`).
"""

from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compute.alerts.alert_pipeline import Alert
from compute.audit.epochs import Epochs, get_cell
from compute.audit.feed_rows import PartRows
from compute.bars import Times
from compute.batch_rows import (
    build_alert_rows,
    build_change_rows,
    filter_shown_alerts,
    mark_published,
)
from compute.indicators.contract import NO_READING
from compute.schedule import find_last_run, to_market_ms
from compute.stepper import Cell, Changes
from schemas.vocabulary import CURRENT_ACTIONS
from store.market_rows import AlertRow, ChangeRow, FeedRow

# The columns that identify a row, after its time; those that follow are compared.
KEY_COLUMNS: dict[type[FeedRow], slice] = {ChangeRow: slice(1, 6), AlertRow: slice(1, 7)}
COMPARED_COLUMNS: dict[type[FeedRow], slice] = {ChangeRow: slice(6, None), AlertRow: slice(7, None)}

RowKey = tuple[Any, ...]
Mask = NDArray[np.bool_]


class MatchedRows(NamedTuple):
    """The expected rows of some assets in a commit, matched with the stored rows.

    `order` has shape (5, rows): the earliest `created_at` (ms), tier, close time, cell number and,
    of alerts, action; sorted by these, the rows of all blocks are in feed order. `stored` has shape
    (rows,): the index of each expected row's match, -1 if it has none. `rows` holds the expected
    rows without a match, or all of them if wanted, by index in `order`. The rest is by index in the
    stored rows: faults of matched rows (`differences`), rows that no bar gives (`surplus`), and
    rows that this code cannot recompute, with the reason (`foreign`).
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
        # Most cells have only epoch 0, of this code's version.
        is_plain = [epochs.is_plain(cell) for cell in cell_numbers]
        self._is_plain: Final = np.array(is_plain, dtype=np.bool_)
        self._plain_names: Final = {
            (cell.ticker, cell.key, cell.timeframe) for cell in compress(cell_numbers, is_plain)
        }

    def match(
        self,
        changes: Changes,
        alerts: Sequence[Alert],
        stored: PartRows,
        *,
        wants_all: bool = False,
    ) -> MatchedRows:
        """Match the changes and alerts of a commit's bars with the commit's stored rows."""
        # If the changes of plain cells are as expected, in order, no row of them is built.
        settled, own = self._is_plain[changes.cell], self._is_plain[stored.cell]
        if wants_all or not self._are_equal(changes.select(settled), stored.select(own)):
            settled, own = np.zeros_like(settled), np.zeros_like(own)
        shown = filter_shown_alerts(alerts, self._publish_from)
        alert_times = to_market_ms(np.array([alert.hour for alert in shown], dtype=np.int64))
        unsettled = changes.select(~settled)
        found = self._match_rows(
            [
                *self._build_change_rows(unsettled),
                *build_alert_rows(shown, alert_times, lambda cell: 0),
            ],
            [*stored.select(~own).build_change_rows(self._cells), *stored.alerts],
            wants_all=wants_all,
        )
        order = np.concatenate(
            [self._order_changes(changes), self._order_alerts(shown, alert_times)], axis=1
        )
        return _join_settled(found, order, settled, own, len(stored.alerts))

    def match_strays(self, stored: Sequence[FeedRow]) -> MatchedRows:
        """Match stored rows for which there are no bars: all are foreign or surplus."""
        found = self._match_rows([], stored)
        return found._replace(order=np.empty((5, 0), dtype=np.int64))

    def describe_foreign(self, row: FeedRow) -> str:
        """Return why this code cannot recompute a row, empty if it can."""
        cell = get_cell(row)
        version = self._epochs.find_foreign_version(cell, row.close_time)
        if isinstance(row, AlertRow):
            is_lost = version is not None or cell not in self._engine_numbers
            return f"alerts of {row.indicator}: another version's" if is_lost else ""
        return "" if version is None else f"{row.indicator}: version {version}"

    def _match_rows(
        self, candidates: Sequence[FeedRow], stored: Sequence[FeedRow], *, wants_all: bool = False
    ) -> MatchedRows:
        """Match rows one by one; in place of `order`, return the indexes of the expected rows."""
        # Reversed, so that of two rows with one key the first is matched.
        unmatched = {_to_key(row): place for place, row in reversed([*enumerate(stored)])}
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
        indexes, stored_places = np.array(kept, dtype=np.int64), np.array(matches, dtype=np.int64)
        return MatchedRows(indexes, stored_places, rows, differences, surplus, foreign)

    def _are_equal(self, changes: Changes, stored: PartRows) -> bool:
        """Return whether changes of plain cells are stored as expected, in the same order."""
        columns = stored.changes
        before = np.where(changes.before == NO_READING, np.nan, changes.before)
        published = mark_published(changes, self._cells, self._publish_from)
        return (
            np.array_equal(changes.cell, stored.cell)
            and np.array_equal(changes.close_time, columns.close_time)
            and not columns.epoch.any()
            and np.array_equal(before, columns.before, equal_nan=True)
            and np.array_equal(changes.after, columns.after)
            and np.array_equal(changes.price, columns.price)
            and np.array_equal(published, columns.published != 0)
        )

    def _build_change_rows(self, changes: Changes) -> list[ChangeRow]:
        """Return changes as rows of epoch 0, dated by the earliest time that each may have."""
        times = to_market_ms(changes.run)
        table = build_change_rows(changes, self._cells, times, lambda cell: 0, self._publish_from)
        return list(table)

    def _order_changes(self, changes: Changes) -> Times:
        times, numbers = to_market_ms(changes.run), self._cell_numbers[changes.cell]
        tier = action = np.zeros_like(times)
        return np.stack([times, tier, changes.close_time, numbers, action])

    def _order_alerts(self, alerts: Sequence[Alert], times: Times) -> Times:
        close_times = np.array([alert.close_time for alert in alerts], dtype=np.int64)
        numbers = [self._engine_numbers[alert.cell] for alert in alerts]
        actions = [CURRENT_ACTIONS.index(alert.action) for alert in alerts]
        engine_columns = np.array([numbers, actions], dtype=np.int64)
        return np.stack([times, np.ones_like(times), close_times, *engine_columns])

    def _build_expected(self, row: FeedRow, stored: Mapping[RowKey, int]) -> FeedRow | None:
        """Return a row with its epoch; None if it is foreign or its engine did not publish it."""
        # Those of most cells need none of the lookups below.
        if row[1:4] in self._plain_names and isinstance(row, ChangeRow):
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


def _join_settled(
    found: MatchedRows, order: Times, settled: Mask, own: Mask, alert_count: int
) -> MatchedRows:
    """Join the rows that were matched one by one with the changes that are equal to stored ones.

    `order` has a column for every expected row, changes first. `settled` marks the equal ones among
    the expected changes, `own` among the stored ones, which `alert_count` stored alerts follow.
    """
    candidates = np.append(np.flatnonzero(~settled), np.arange(len(settled), order.shape[1]))
    # The appended -1 lets the index -1, of rows without a match, give -1 again.
    stored_alerts = np.arange(len(own), len(own) + alert_count)
    places = np.concatenate([np.flatnonzero(~own), stored_alerts, [-1]])
    count = int(np.count_nonzero(settled))
    return MatchedRows(
        order[:, np.append(np.flatnonzero(settled), candidates[found.order])],
        np.append(np.flatnonzero(own), places[found.stored]),
        {count + number: row for number, row in found.rows.items()},
        {int(places[at]): different for at, different in found.differences.items()},
        places[found.surplus].tolist(),
        {int(places[at]): note for at, note in found.foreign.items()},
    )


def _to_key(row: FeedRow) -> RowKey:
    return _select(row, KEY_COLUMNS[type(row)])


def _select(values: tuple[Any, ...], columns: slice) -> tuple[Any, ...]:
    return values[columns]
