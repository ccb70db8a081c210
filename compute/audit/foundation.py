"""Loads what an audit starts from, and checks what can be checked without stepping any bar."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from compute.audit.commit_times import check_order, check_wall_times
from compute.audit.context_check import check_clock, check_context, check_facts, parse_coverage
from compute.audit.report import Report
from schemas.coverage import Coverage
from schemas.vocabulary import find_latest_run
from store.digest import ContextRow
from store.market_rows import CommitRow, Progress
from store.sql.audit_reads import StoredContext, StoredLog
from store.sql.market_store import MarketStore

STARTED_AT: Final = "started_at"
# A first start creates this index at its end, and can have been killed before.
CREATED_LAST: Final = "index cell is missing"


class Foundation(NamedTuple):
    """The commits of a store, its progress and coverage, the rows of its assets, and its log."""

    commits: Sequence[CommitRow]
    progress: Progress
    coverage: Coverage | None
    assets: Sequence[ContextRow]
    log: StoredLog

    @property
    def is_recorded(self) -> bool:
        """Whether the bars are recorded ones, so that `created_at` follows from them."""
        return self.coverage is not None and self.coverage.source == "recorded"


async def load_foundation(store: MarketStore, report: Report) -> Foundation:
    """Load and check schema, order and context of the commits, facts, clock and coverage."""
    context, progress = await store.audit_reads.load_context(), await store.progress()
    for fault in await store.audit_reads.find_schema_faults():
        if fault != CREATED_LAST or not _is_being_built(context):
            report.add_finding(f"schema: {fault}")
    coverage = parse_coverage(context, report)
    assets = [row for row in context.rows if row[0] == "asset"]
    log = await store.audit_reads.load_log()
    found = Foundation(context.commits, progress, coverage, assets, log)
    check_order(context.commits, report)
    check_context(context, report)
    check_clock(context, report)
    check_facts(context, progress, report)
    check_wall_times(context.commits, _find_first_run(context, found), report)
    return found


def _is_being_built(context: StoredContext) -> bool:
    """Return whether the first start has not committed its last run."""
    started_at = context.facts.get(STARTED_AT, "")
    last = context.commits[-1].market_time if context.commits else 0
    return started_at.isdecimal() and last < find_latest_run(int(started_at))


def _find_first_run(context: StoredContext, found: Foundation) -> int | None:
    """Return the nominal time of the last run of the first start, None if nothing depends on it."""
    started_at = context.facts.get(STARTED_AT, "")
    is_known = started_at.isdecimal() and not found.is_recorded
    return find_latest_run(int(started_at)) if is_known else None
