"""The audit finds revisions whose bars do not come from one recorded source."""

from collections.abc import Sequence

import pytest

from compute.audit.report import Report
from compute.audit.source_check import SourceCheck
from store.market_rows import SourceRow
from tests.support.row_builders import make_bar, make_blocks

pytestmark = pytest.mark.clause("audit")

A, B = "binance BTC/USDT", "okx BTC/USDT"
OLD = "source of a history stored by an earlier version"


def check(revisions: Sequence[int | None], *sources: SourceRow) -> Report:
    """Audit commits that hold a bar of BTC of these revisions, from number 1 on."""
    checked, report = SourceCheck(sources), Report()
    for number, revision in enumerate(revisions, 1):
        bars = [] if revision is None else make_blocks(make_bar(), revision=revision)
        checked.add_commit(number, bars)
    checked.report_to(report)
    return report


@pytest.mark.parametrize(
    ("revisions", "sources", "fault"),
    [
        ([0, 0], [(0, A, 1), (0, B, 2)], f"has bars of two sources: {A}, {B}"),
        ([0, 1], [(0, A, 0), (1, A, 2), (1, B, 0)], f"has bars of two sources: {A}, {B}"),
        ([0, 1], [(0, A, 1)], "revision 1 of BTC has no source"),
        ([0, 0], [(0, A, 2)], "begins in commit 1, but its source in 2"),
        ([0, None], [(0, A, 1), (1, B, 2)], "revision 1 of BTC has a source but no bars"),
        ([0, 1], [(0, A, 1), (1, B, 0)], "has a source that no commit recorded"),
    ],
)
def test_a_revision_without_exactly_one_source_is_a_finding(
    revisions: list[int], sources: list[tuple[int, str, int]], fault: str
) -> None:
    (finding,) = check(revisions, *(SourceRow("BTC", *row) for row in sources)).findings
    assert finding.startswith("sources: revision ")
    assert fault in finding


def test_one_source_for_each_revision_is_clean() -> None:
    report = check(
        [0, 0, 1, 2], *(SourceRow("BTC", n, s, c) for n, s, c in [(0, A, 1), (1, B, 3), (2, B, 4)])
    )
    assert (report.findings, dict(report.not_verifiable)) == ([], {})


def test_sources_of_an_earlier_versions_bars_are_not_verifiable() -> None:
    report = check([0, 1, 1, 2], SourceRow("BTC", 1, A, 0), SourceRow("BTC", 2, B, 4))
    assert (report.findings, dict(report.not_verifiable)) == ([], {OLD: 2})
    recorded = check([0], SourceRow("BTC", 0, "recorded", 0))
    assert (recorded.findings, dict(recorded.not_verifiable)) == ([], {})
