"""Checks that each revision of an asset's bars comes from one recorded source. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final, get_args

from compute.audit.report import Report
from schemas.vocabulary import SourceKind
from store.market_rows import BarBlock, SourceRow

Revision = tuple[str, int]


class SourceCheck:
    """Compares the recorded sources with the bars of all commits."""

    def __init__(self, sources: Iterable[SourceRow]) -> None:
        self._sources: Final[dict[Revision, list[SourceRow]]] = {}
        for row in sources:
            self._sources.setdefault((row.ticker, row.revision), []).append(row)
        # The first and the last commit that holds bars of a revision.
        self._commits: Final[dict[Revision, tuple[int, int]]] = {}

    def add_commit(self, number: int, blocks: Iterable[BarBlock]) -> None:
        """Take note of the bars of a commit; commits come in order."""
        for block in blocks:
            revision = block.ticker, block.revision
            first, _ = self._commits.get(revision, (number, number))
            self._commits[revision] = first, number

    def report_to(self, report: Report) -> None:
        """Report each revision that lacks a source, or has two, or one that came too late."""
        # Earlier versions recorded no source: their time ends with the first commit that did.
        numbers = [row.number for rows in self._sources.values() for row in rows if row.number]
        recorded_from = min(numbers, default=None)
        for revision in sorted(self._sources.keys() | self._commits.keys()):
            rows = self._sources.get(revision, [])
            fault = _find_fault(rows, self._commits.get(revision), recorded_from)
            if fault:
                report.add_finding(f"sources: revision {revision[1]} of {revision[0]} {fault}")
            elif not rows or _is_adopted(rows[0]):
                report.not_verifiable["source of a history stored by an earlier version"] += 1


def _find_fault(
    rows: Sequence[SourceRow], commits: tuple[int, int] | None, recorded_from: int | None
) -> str:
    if commits is None:
        return "has a source but no bars"
    if len(rows) > 1:
        return f"has bars of two sources: {', '.join(row.listing for row in rows)}"
    first, last = commits
    if not rows:
        return "has no source" if recorded_from is not None and last >= recorded_from else ""
    number = rows[0].number
    if number == 0:
        is_late = recorded_from is not None and first >= recorded_from
        return "has a source that no commit recorded" if is_late else ""
    return "" if number == first else f"begins in commit {first}, but its source in {number}"


def _is_adopted(row: SourceRow) -> bool:
    """Return whether an upgrade took a venue from the coverage, which no digest covers."""
    return row.number == 0 and row.listing not in get_args(SourceKind)
