"""Checks that the transparency log has the stored rows, and that its tiles follow from them. Pure.

Of rows that retention deleted, only their hashes are left.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from compute.audit.feed_rows import FeedRows
from compute.audit.report import Report
from store.log_leaves import SALT_BYTES, hash_row
from store.log_tree import HASH_BYTES, TileId, extend_tiles
from store.sql.audit_reads import StoredLog


class LogCheck:
    """Compares the leaves with the rows of all commits, which come in order."""

    def __init__(self, log: StoredLog) -> None:
        self._log: Final = log
        self._has_row: Final[NDArray[np.bool_]] = np.zeros(len(log.created_at), dtype=np.bool_)
        self._hashes: Final = _join_hashes(log.tiles)
        self._unlogged: Final[list[str]] = []
        self._changed: Final[list[str]] = []

    def add_rows(self, rows: FeedRows) -> None:
        """Compare the published rows of a commit with their leaves."""
        is_shown = np.ones(len(rows), dtype=np.bool_)
        is_shown[rows.change_places] = rows.changes.published != 0
        places = np.flatnonzero(is_shown)
        times = rows.created_at[places]
        leaves = np.searchsorted(self._log.created_at, times)
        found = np.append(self._log.created_at, -1)[leaves] == times
        self._has_row[leaves[found]] = True
        for place, leaf, has_leaf in zip(
            places.tolist(), leaves.tolist(), found.tolist(), strict=True
        ):
            row = rows[place]
            if not has_leaf:
                self._unlogged.append(row.id)
                continue
            salt = self._log.salts[SALT_BYTES * leaf : SALT_BYTES * (leaf + 1)]
            if hash_row(row, salt) != self._hashes[HASH_BYTES * leaf : HASH_BYTES * (leaf + 1)]:
                self._changed.append(row.id)

    def report_to(self, report: Report, pruned_before: int) -> None:
        """Report rows and leaves that differ; rows before a time (epoch ms) may be deleted."""
        report.checked["leaves"] += len(self._log.created_at)
        if not len(self._log.created_at) and not self._log.tiles:
            if self._unlogged:
                report.not_verifiable["row that no log has yet"] += len(self._unlogged)
            return
        report.findings += [f"log: {id_} has no leaf" for id_ in self._unlogged]
        report.findings += [f"log: {id_} is not the row of its leaf" for id_ in self._changed]
        is_gone = ~self._has_row & (self._log.created_at >= pruned_before)
        report.findings += [
            f"log: leaf {leaf} has no row" for leaf in np.flatnonzero(is_gone).tolist()
        ]
        self._check_tree(report)

    def _check_tree(self, report: Report) -> None:
        size = len(self._log.created_at)
        if not np.array_equal(self._log.leaf, np.arange(size)):
            report.add_finding("log: the leaves are not numbered in the order of their rows")
        if len(self._hashes) != HASH_BYTES * size:
            count = len(self._hashes) // HASH_BYTES
            report.add_finding(f"log: has {size} leaves, but tiles of {count} hashes")
        computed = extend_tiles({}, 0, self._hashes)
        for tile in sorted(computed.keys() | self._log.tiles.keys()):
            if computed.get(tile) != self._log.tiles.get(tile):
                report.add_finding(
                    f"log: tile {tile.level}/{tile.number} does not follow from the leaves"
                )


def _join_hashes(tiles: Mapping[TileId, bytes]) -> bytes:
    """Return the joined hashes of the leaves."""
    return b"".join(tiles[tile] for tile in sorted(tiles) if tile.level == 0)
