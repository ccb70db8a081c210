"""Checks the numbers and times of commits. Pure."""

from collections.abc import Sequence
from itertools import pairwise

from compute.alerts.engines import MAX_AHEAD_MS
from compute.audit.report import Report
from compute.bars import Times
from store.market_rows import CommitRow


def check_order(commits: Sequence[CommitRow], report: Report) -> None:
    """Check that the numbers of commits follow each other and the market time never decreases."""
    for place, commit in enumerate(commits, 1):
        if commit.number != place:
            report.add_finding(f"commits: the number {commit.number} is not {place}")
            break
    for before, commit in pairwise(commits):
        if commit.market_time < before.market_time:
            report.add_finding(
                f"commits: {commit.number} is at an earlier time than the one before"
            )


def check_wall_times(commits: Sequence[CommitRow], first_run: int | None, report: Report) -> None:
    """Check when commits were written, unless their digest covers that.

    `first_run` is the nominal time (epoch ms) of the last run of the first start, up to which rows
    have nominal times; None if the bars are recorded, all of whose rows may have them.
    """
    # A clock that was set back breaks these rules too, so a digest is believed rather than they.
    written_at, created_at = 0, 0
    for commit in commits:
        if commit.context_digest is None:
            fault = _find_fault(commit, written_at, created_at, first_run)
            if fault:
                report.add_finding(f"commits: {commit.number} was written at {fault}")
        written_at = max(written_at, commit.written_at or 0)
        created_at = max(created_at, commit.last_created_at or 0)


def describe_ends(commit: CommitRow, times: Times, *, is_whole: bool) -> str:
    """Describe how a commit's first and last `created_at` differ from its rows, '' if they don't.

    If rows have been pruned (not `is_whole`), the others must lie between the two.
    """
    first, last = commit.first_created_at, commit.last_created_at
    found = (int(times[0]), int(times[-1])) if len(times) else (None, None)
    if is_whole and (first, last) != found:
        return f"has rows from {found[0]} to {found[1]}, but says from {first} to {last}"
    if len(times) and (first is None or first > times[0] or last is None or last < times[-1]):
        return f"has rows outside of {first} to {last}"
    return ""


def _find_fault(commit: CommitRow, written_at: int, created_at: int, first_run: int | None) -> str:
    """Return what is wrong with the wall time of a commit, '' if nothing is.

    `written_at` and `created_at` are the newest of the commits before.
    """
    at = commit.written_at
    if at is None:
        is_late = first_run is not None and commit.market_time > first_run
        return "no wall time, although the first start was over" if is_late else ""
    if first_run is not None and commit.market_time < first_run:
        return f"{at}, although its rows have nominal times"
    if at < max(written_at, commit.market_time):
        return f"{at}, which is before its run or the commit before"
    latest = max(at + MAX_AHEAD_MS, created_at + 1)
    if commit.first_created_at is not None and commit.first_created_at > latest:
        return f"{at}, which is before its first row"
    return ""
