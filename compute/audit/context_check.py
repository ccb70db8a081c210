"""Checks what commits wrote beside their rows: times, assets, epochs, facts, coverage. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import ValidationError

from compute.audit.report import Report
from schemas.coverage import Coverage
from schemas.vocabulary import ALERTS_RETENTION_MS, UNIVERSE_RETENTION_MS
from store.digest import GENESIS, ContextRow, digest_context, digest_coverage
from store.market_rows import Progress
from store.sql.audit_reads import CoverageRow, StoredContext

# Those that are not hashed: each has a check of its own, or says nothing about the market data.
KNOWN_FACTS: Final = {
    "source",
    "started_at",
    "pruned_before",
    "alerts_pruned_before",
    "access_store_id",
    "moving_from",
}


def check_context(context: StoredContext, report: Report) -> None:
    """Compare the context of each commit with its digest, and report what no digest covers yet."""
    commits = context.commits
    first = next((c.number for c in commits if c.context_digest is not None), None)
    covered, facts = _group_rows(context.rows, first)
    for commit in commits:
        if commit.context_digest is None:
            if first is not None and commit.number > first:
                report.add_finding(f"context: commit {commit.number} has no digest of it")
            continue
        rows = covered[commit.number] + (facts if commit.number == first else [])
        if digest_context(rows) != commit.context_digest:
            before = ", which seals those before it," if commit.number == first != 1 else ""
            facts_too = ", facts" if commit.number == first else ""
            report.add_finding(
                f"context: commit {commit.number}{before} does not hold the times, assets, epochs, "
                f"sources{facts_too} and missing bars it was committed with"
            )
    if first is None and commits:
        report.not_verifiable["context of a commit by an earlier version"] += len(commits)


def parse_coverage(context: StoredContext, report: Report) -> Coverage | None:
    """Return the published coverage, None if there is no valid one; report its faults."""
    if not context.coverage:
        if context.commits and "source" in context.facts:
            report.add_finding("coverage: is missing")
        return None
    row = context.coverage[0]
    if len(context.coverage) > 1 or row.id != 1:
        report.add_finding("coverage: has another row than 1")
    _check_coverage_digest(context, row, report)
    try:
        return Coverage.model_validate_json(row.document)
    except ValidationError as error:
        report.add_finding(f"coverage: is not valid ({error.error_count()} faults)")
        return None


def check_clock(context: StoredContext, report: Report) -> None:
    """Check the stored market time, by which rows age."""
    last = [(1, commit.market_time) for commit in context.commits[-1:]]
    if [*context.clock] != last:
        report.add_finding(
            f"clock: is {_format(context.clock)}, but the last commit says {_format(last)}"
        )


def check_facts(context: StoredContext, progress: Progress, report: Report) -> None:
    """Check the facts that no digest covers: the times of pruning, and that there are no others."""
    for key in sorted(context.facts.keys() - KNOWN_FACTS):
        report.add_finding(f"facts: {key!r} is unknown")
    times = {0, *(commit.market_time for commit in context.commits)}
    cutoffs = {
        "changes": (progress.pruned_before, UNIVERSE_RETENTION_MS),
        "alerts": (progress.alerts_pruned_before, ALERTS_RETENTION_MS),
    }
    for table, (before, retention) in cutoffs.items():
        if before > max(max(times) - retention, 0):
            report.add_finding(f"facts: {table} were pruned before {before}, within the retention")
    # Both are written at once, by the market time of the last commit.
    pruned_at = {before + retention for before, retention in cutoffs.values()}
    is_pruned = progress.pruned_before or progress.alerts_pruned_before
    if is_pruned and (len(pruned_at) > 1 or pruned_at - times):
        report.add_finding(f"facts: no commit has the time of pruning {sorted(pruned_at)}")


def _check_coverage_digest(context: StoredContext, row: CoverageRow, report: Report) -> None:
    commits = context.commits
    if row.digest is not None:
        ends = (*(commit.digest for commit in reversed(commits)), GENESIS)
        if row.digest not in digest_coverage(row.document, ends):
            report.add_finding("coverage: is not the document that was published")
    elif any(commit.context_digest is not None for commit in commits):
        report.add_finding("coverage: has no digest, although the last commit has one")
    else:
        report.not_verifiable["coverage published by an earlier version"] += 1


def _group_rows(
    rows: Sequence[ContextRow], first: int | None
) -> tuple[Mapping[int, list[ContextRow]], list[ContextRow]]:
    """Return the rows by commit, and the facts; commits before `first` are part of it."""
    grouped: defaultdict[int, list[ContextRow]] = defaultdict(list)
    facts: list[ContextRow] = []
    for row in rows:
        if row[0] == "fact":
            facts.append(row)
        else:
            grouped[max(int(row[1] or 0), first or 0)].append(row)
    return grouped, facts


def _format(clock: Sequence[tuple[int, int]]) -> str:
    return ", ".join(f"{market_time} in row {id_}" for id_, market_time in clock) or "missing"
