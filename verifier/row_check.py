"""Checks rows against the leaves of a signed tree, each leaf against its row."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise

from verifier.canonical import Row, hash_row
from verifier.client import Leaf
from verifier.comparison import SHORTEST_RETENTION, is_kept
from verifier.feed import Feed
from verifier.leaf_search import LeafSearch
from verifier.record import RecordedRow
from verifier.report import Report
from verifier.tiles import TileTree
from verifier.times import parse_served_time

# A run signs the rows of the one before it at the latest.
SIGNED_WITHIN = timedelta(hours=2)


@dataclass
class RowCheck:
    """Checks rows of one tree. `verified` collects the rows whose leaf is in the tree.

    `explained` holds the ids of rows and the indexes of leaves that already have a finding.
    """

    tree: TileTree
    leaves: LeafSearch
    report: Report
    explained_rows: set[str] = field(default_factory=set)
    explained_leaves: set[int] = field(default_factory=set)
    verified: list[RecordedRow] = field(default_factory=list)

    async def check_given(self, rows: Iterable[Row]) -> None:
        """Check the inclusion of single rows."""
        for row in sorted(rows, key=lambda row: str(row["created_at"])):
            leaf = await self.leaves.find(row["created_at"])
            if leaf is None:
                self._report_row(row, "is in no leaf of the log")
            else:
                hashes = await self.tree.read_leaf_hashes(leaf.index, leaf.index + 1)
                self._check_pair(row, leaf, hashes[0])

    async def check_feed(self, feed: Feed, now: datetime) -> None:
        """Check every served row against its leaf, and that every leaf has its row."""
        leaves = [leaf async for leaf in self.leaves.iterate_after(feed.since)]
        self._check_order(leaves)
        hashes = await self._read_hashes(leaves)
        unmatched = feed.index_by_time()
        aged = 0
        for leaf, leaf_hash in zip(leaves, hashes, strict=True):
            row = unmatched.pop(leaf.created_at, None)
            if row is not None:
                self._check_pair(row, leaf, leaf_hash)
            elif is_kept(leaf.created_at, None, now):
                self._report_leaf(leaf)
            else:
                aged += 1
        if aged:
            self.report.notes.append(
                f"{aged} leaves without a row are older than {SHORTEST_RETENTION.days} days: "
                "alerts are not served longer"
            )
        last = leaves[-1].created_at if leaves else ""
        self._report_unmatched(list(unmatched.values()), last, feed)

    def _check_order(self, leaves: list[Leaf]) -> None:
        """Report leaves out of order: a wrong time could let a missing row pass as aged."""
        self.report.findings += (
            f"leaf {later.index} is listed at {later.created_at}, but the one before it at "
            f"{earlier.created_at}"
            for earlier, later in pairwise(leaves)
            if later.created_at <= earlier.created_at
        )

    async def _read_hashes(self, leaves: list[Leaf]) -> list[bytes]:
        if not leaves:
            return []
        return await self.tree.read_leaf_hashes(leaves[0].index, leaves[-1].index + 1)

    def _check_pair(self, row: Row, leaf: Leaf, leaf_hash: bytes) -> None:
        if hash_row(row, leaf.salt) == leaf_hash:
            self.verified.append(RecordedRow(leaf.index, leaf.salt, row))
            self.report.checked["rows in the log"] += 1
        else:
            self._report_row(row, f"differs from what leaf {leaf.index} of the log commits to")

    def _report_row(self, row: Row, fault: str) -> None:
        if row["id"] not in self.explained_rows:
            self.report.findings.append(f"{row['id']} of {row['created_at']} {fault}")

    def _report_leaf(self, leaf: Leaf) -> None:
        if leaf.index not in self.explained_leaves:
            self.report.findings.append(
                f"leaf {leaf.index} of {leaf.created_at} has no row in the feed: it was deleted, "
                "or moved to another time"
            )

    def _report_unmatched(self, rows: list[Row], last: str, feed: Feed) -> None:
        """Report rows without a leaf: those after the last leaf may only be too new."""
        for row in rows:
            if row["created_at"] <= last:
                self._report_row(row, "is in no leaf of the log: it was added or moved later")
        pending = [row for row in rows if row["created_at"] > last]
        if pending:
            first = pending[0]["created_at"]
            text = f"{len(pending)} rows since {first} are in no signed checkpoint yet"
            is_overdue = parse_served_time(first) < feed.as_of - SIGNED_WITHIN
            (self.report.obstacles if is_overdue else self.report.notes).append(text)
