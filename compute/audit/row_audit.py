"""Audits the digests and the one sequence of `created_at` over the rows of all assets. Pure.

It takes commits in order, with the rows that the blocks matched (`row_matcher`).
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from compute.alerts.engines import compute_cooldown_ms
from compute.audit.commit_times import describe_ends
from compute.audit.epochs import Epochs, get_cell
from compute.audit.feed_rows import FeedRows
from compute.audit.row_matcher import MatchedRows, describe_difference, find_differences
from compute.bars import Times
from compute.batch_rows import NEVER, assign_times, keep_cooldowns
from compute.stepper import Cell
from schemas.vocabulary import CURRENT_ACTIONS, Action
from store.digest import digest_alerts, digest_changes
from store.market_rows import AlertRow, ChangeRow, CommitRow, FeedRow, Progress

TABLES: dict[type[FeedRow], str] = {ChangeRow: "changes", AlertRow: "alerts"}


class StoredRows(NamedTuple):
    """The stored rows of a commit, both tiers, with their digests."""

    commit: CommitRow
    rows: FeedRows
    changes_digest: bytes
    alerts_digest: bytes | None


class BlockMatch(NamedTuple):
    """The matched rows of a block; `places` maps its stored rows to those of the whole commit."""

    places: Times
    matched: MatchedRows


class RowAudit:
    """Compares commits in order; `findings` has one line for every wrong row."""

    def __init__(
        self, epochs: Epochs, engines: Sequence[Cell], progress: Progress, *, is_nominal: bool
    ) -> None:
        """`engines` are in the order of their numbers.

        If `is_nominal`, `created_at` follows from the bars and is compared too.
        """
        self.findings: Final[list[str]] = []
        self._has_foreign: Final = epochs.has_foreign
        self._pruned_before: Final[dict[type[FeedRow], int]] = {
            ChangeRow: progress.pruned_before,
            AlertRow: progress.alerts_pruned_before,
        }
        self._is_nominal: Final = is_nominal
        self._engines: Final = engines
        self._expected_at: Final[dict[Cell, dict[Action, int]]] = {}
        self._stored_at: Final[dict[Cell, dict[Action, int]]] = {}
        self._last_created_at = 0
        self._missing: Final[dict[str, FeedRow]] = {}
        self._surplus: Final[dict[str, FeedRow]] = {}
        self._pruned: Final[dict[tuple[object, ...], FeedRow]] = {}

    def wants_all_rows(self, stored: StoredRows) -> bool:
        """Return whether every row is needed, because a digest covers rows that were pruned."""
        return (
            self._is_nominal
            and not self._has_foreign
            and any(
                digest != committed and self._has_pruned(stored.commit, tier)
                for tier, committed, digest in _list_digests(stored)
            )
        )

    def compare(self, stored: StoredRows, matches: Sequence[BlockMatch]) -> None:
        """Compare the rows that follow from a commit's bars with the stored ones."""
        rows = stored.rows
        order = np.concatenate([match.matched.order for match in matches], axis=1)
        sequence = np.lexsort(order[::-1])
        # The appended -1 lets the index -1, of rows without a match, give -1 again.
        stored_places = np.concatenate(
            [np.append(m.places, -1)[m.matched.stored] for m in matches]
        )[sequence]
        foreign = [rows[m.places[place]] for m in matches for place in m.matched.foreign]
        self._check_cooldowns(rows.alerts, foreign)
        times = self._assign_times(order[:, sequence], foreign)
        expected = _collect_rows(matches, sequence, times)
        if self.wants_all_rows(stored):
            self._check_digests(stored, _digest_rows(expected.values()))
        else:
            self._check_digests(stored, None)
        # A foreign alert may have moved the rows after it, which this code cannot recompute.
        is_known = self._is_nominal and not any(isinstance(row, AlertRow) for row in foreign)
        self._compare_matches(rows, matches, stored_places, times, is_known=is_known)
        self._check_ends(stored, times)
        unmatched = np.flatnonzero(stored_places < 0).tolist()
        for expected_row in [expected[place] for place in unmatched]:
            self._add_unmatched(expected_row)
        self._drop_superseded(rows)
        self._last_created_at = stored.commit.last_created_at or self._last_created_at

    def finish(self, unreferenced: Iterable[FeedRow]) -> None:
        """Report the remaining rows: unreferenced, missing and surplus ones."""
        leftovers = [
            ("belongs to no commit", unreferenced),
            ("is missing", self._missing.values()),
            ("does not follow from the bars", self._surplus.values()),
            ("is missing: pruning keeps a cell's newest old row", self._pruned.values()),
        ]
        for fault, rows in leftovers:
            self.findings.extend(f"{TABLES[type(row)]}: {row.id} {fault}" for row in rows)

    def _check_cooldowns(self, alerts: Sequence[AlertRow], foreign: Sequence[FeedRow]) -> None:
        """Report the stored alerts that repeat an action within its cooldown."""
        # Earlier versions measured it in nominal hours.
        foreign_ids = {row.id for row in foreign}
        for row in alerts:
            last_times = self._stored_at.setdefault(get_cell(row), {})
            ended_at = last_times.get(row.action, -NEVER) + compute_cooldown_ms(row.timeframe)
            if row.created_at < ended_at and row.id not in foreign_ids:
                early = f"was published {ended_at - row.created_at} ms before its cooldown ended"
                self.findings.append(f"alerts: {row.id} {early}")
            last_times[row.action] = row.created_at

    def _assign_times(self, order: Times, foreign: Sequence[FeedRow]) -> Times:
        """Return `created_at` of rows in order, skipping the times of foreign rows."""
        earliest, tier, _, numbers, actions = order
        foreign_times = {row.created_at for row in foreign}
        if foreign_times:
            assigned, last = [], self._last_created_at
            for time in earliest.tolist():
                last = max(time, last + 1)
                while last in foreign_times:
                    last += 1
                assigned.append(last)
            times = np.array(assigned, dtype=np.int64)
        else:
            times = assign_times(earliest, self._last_created_at)
        for row in foreign:
            if isinstance(row, AlertRow):
                self._expected_at.setdefault(get_cell(row), {})[row.action] = row.created_at
        alerts = [
            (place, self._engines[numbers[place]], CURRENT_ACTIONS[actions[place]])
            for place in np.flatnonzero(tier).tolist()
        ]
        keep_cooldowns(times, alerts, self._expected_at)
        return times

    def _compare_matches(
        self,
        rows: FeedRows,
        matches: Sequence[BlockMatch],
        stored_places: Times,
        times: Times,
        *,
        is_known: bool,
    ) -> None:
        """Report the stored rows, in their order, that differ from what the bars give.

        Their `times` are compared if they are known.
        """
        differences = {
            int(m.places[place]): different
            for m in matches
            for place, different in m.matched.differences.items()
        }
        is_matched = stored_places >= 0
        matched_places, expected_times = stored_places[is_matched], times[is_matched]
        # Only the rows of recorded bars have times that follow from the bars.
        moved = (rows.created_at[matched_places] != expected_times) & is_known
        for place, time in zip(
            matched_places[moved].tolist(), expected_times[moved].tolist(), strict=True
        ):
            if self._is_time_known(rows[place]):
                difference = describe_difference("created_at", rows[place].created_at, time)
                differences[place] = [difference, *differences.get(place, ())]
        surplus = {int(m.places[place]) for m in matches for place in m.matched.surplus}
        for place in sorted(differences.keys() | surplus):
            if place in surplus:
                self._add_surplus(rows[place])
            else:
                self._report_row(rows[place], differences[place])

    def _add_surplus(self, stored: FeedRow) -> None:
        """Keep a surplus row, or compare it with the row that an earlier commit lacks."""
        expected = self._missing.pop(stored.id, None)
        if expected is None:
            self._surplus[stored.id] = stored
        else:
            self._compare_row(stored, expected)

    def _add_unmatched(self, expected: FeedRow) -> None:
        if expected.id in self._surplus:
            self._compare_row(self._surplus.pop(expected.id), expected)
        elif self._has_aged(expected):
            self._pruned[_to_pruning_key(expected)] = expected
        else:
            self._missing[expected.id] = expected

    def _drop_superseded(self, rows: FeedRows) -> None:
        """Forget pruned rows that a newer old row of the same cell supersedes."""
        # Pruning keeps each cell's newest old row, so only that one has to be stored.
        if not self._pruned:
            return
        may_have_aged = rows.created_at < max(self._pruned_before.values())
        aged: list[int] = np.flatnonzero(may_have_aged).tolist()
        for row in filter(self._has_aged, [rows[place] for place in aged]):
            pruned = self._pruned.get(_to_pruning_key(row))
            if pruned is not None and pruned.created_at < row.created_at:
                del self._pruned[_to_pruning_key(row)]

    def _has_aged(self, row: FeedRow) -> bool:
        return row.created_at < self._pruned_before[type(row)]

    def _has_pruned(self, commit: CommitRow, tier: type[FeedRow]) -> bool:
        first = commit.first_created_at
        return first is not None and first < self._pruned_before[tier]

    def _is_time_known(self, stored: FeedRow) -> bool:
        return self._is_nominal and not (self._has_foreign and self._has_aged(stored))

    def _compare_row(self, stored: FeedRow, expected: FeedRow) -> None:
        differences = find_differences(stored, expected)
        if self._is_time_known(stored) and stored.created_at != expected.created_at:
            times = stored.created_at, expected.created_at
            differences.insert(0, describe_difference("created_at", *times))
        if differences:
            self._report_row(stored, differences)

    def _report_row(self, row: FeedRow, differences: Sequence[str]) -> None:
        self.findings.append(f"{TABLES[type(row)]}: {row.id}: {', '.join(differences)}")

    def _check_ends(self, stored: StoredRows, expected_times: Times) -> None:
        """Check the first and the last `created_at` that a commit names."""
        is_recomputed = self.wants_all_rows(stored)
        is_whole = all(digest == committed for _, committed, digest in _list_digests(stored))
        times = expected_times if is_recomputed else stored.rows.created_at
        if fault := describe_ends(stored.commit, times, is_whole=is_whole or is_recomputed):
            self.findings.append(f"commits: {stored.commit.number} {fault}")

    def _check_digests(
        self, stored: StoredRows, recomputed: dict[type[FeedRow], bytes | None] | None
    ) -> None:
        """Check the digests; a tier with pruned rows may also match the recomputed digest."""
        is_unknown = not self._is_nominal or self._has_foreign
        for tier, committed, digest in _list_digests(stored):
            is_pruned = self._has_pruned(stored.commit, tier)
            is_recomputed = recomputed is not None and recomputed[tier] == committed
            if digest != committed and not (is_pruned and (is_unknown or is_recomputed)):
                number = stored.commit.number
                self.findings.append(
                    f"{TABLES[tier]}: commit {number} does not hold the rows it was committed with"
                )


def split_by_tier(rows: Iterable[FeedRow]) -> tuple[list[ChangeRow], list[AlertRow]]:
    """Split rows into changes and alerts."""
    changes: list[ChangeRow] = []
    alerts: list[AlertRow] = []
    for row in rows:
        if isinstance(row, ChangeRow):
            changes.append(row)
        else:
            alerts.append(row)
    return changes, alerts


def _digest_rows(rows: Iterable[FeedRow]) -> dict[type[FeedRow], bytes | None]:
    changes, alerts = split_by_tier(rows)
    return {ChangeRow: digest_changes(changes), AlertRow: digest_alerts(alerts)}


def _list_digests(
    stored: StoredRows,
) -> list[tuple[type[FeedRow], bytes | None, bytes | None]]:
    """Return each tier with its committed digest and the digest of its stored rows."""
    commit = stored.commit
    return [
        (ChangeRow, commit.changes_digest, stored.changes_digest),
        (AlertRow, commit.alerts_digest, stored.alerts_digest),
    ]


def _collect_rows(
    matches: Sequence[BlockMatch], sequence: Times, times: Times
) -> dict[int, FeedRow]:
    """Return the blocks' rows, dated by `times` and keyed by their index in `sequence`."""
    starts = np.cumsum([0, *(len(match.matched.stored) for match in matches)])
    given = {
        start + number: row
        for start, match in zip(starts.tolist(), matches, strict=False)
        for number, row in match.matched.rows.items()
    }
    if not given:
        return {}
    return {
        place: given[number]._replace(created_at=time)
        for place, (number, time) in enumerate(zip(sequence.tolist(), times.tolist(), strict=True))
        if number in given
    }


def _to_pruning_key(row: FeedRow) -> tuple[object, ...]:
    """Return the key for which pruning keeps the newest old row."""
    alert_key = (row.action, row.epoch) if isinstance(row, AlertRow) else ()
    return (*get_cell(row), *alert_key)
