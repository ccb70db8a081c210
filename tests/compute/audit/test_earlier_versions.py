"""Commits of earlier versions: what no digest covers is recomputed, or sealed by the next one."""

from pathlib import Path

import pytest

from compute.audit.report import Report
from store.digest import GENESIS, digest_commit
from tests.compute.audit.tampered_store import audit_home, continue_store, fill_store
from tests.support.store_homes import StoreHome, open_and_close
from tests.support.tampering import open_unguarded

pytestmark = pytest.mark.clause("audit")

UNSEALED = {
    "context of a commit by an earlier version": 11,
    "coverage published by an earlier version": 1,
    "row that no log has yet": 337,
}
# What is changed, and the finding.
RECOMPUTED = {
    "when a commit was written: before its run": (
        "UPDATE passes SET written_at = written_at - 5000 WHERE number = 6",
        "commits: 6 was written at 1772618579321, which is before its run or the commit before",
    ),
    "when a commit was written: after the next one": (
        "UPDATE passes SET written_at = written_at + 7200000 WHERE number = 6",
        "commits: 7 was written at 1772622184321, which is before its run or the commit before",
    ),
    "when a commit was written: before its rows": (
        "UPDATE passes SET written_at = written_at - 1 WHERE number = 6",
        "commits: 6 was written at 1772618584320, which is before its first row",
    ),
    "when a commit was written: never": (
        "UPDATE passes SET written_at = NULL WHERE number = 6",
        "commits: 6 was written at no wall time, although the first start was over",
    ),
    "the first row of a commit": (
        "UPDATE passes SET first_created_at = first_created_at - 1 WHERE number = 6",
        "commits: 6 has rows from",
    ),
    "the last row of a commit": (
        "UPDATE passes SET last_created_at = last_created_at + 1 WHERE number = 6",
        "commits: 6 has rows from",
    ),
    "the version of a carry": (
        "UPDATE carries SET version = 99 WHERE timeframe = 0 AND asset_id = 1",
        "carries: BTC.1h.enzo is of epoch 1, version 99, but its newest epoch is 1, version 1",
    ),
    "the version of an epoch": (
        "UPDATE epochs SET version = 99 WHERE timeframe = 0 AND asset_id = 2",
        "carries: ETH.1h.enzo is of epoch 0, version 1, but its newest epoch is 0, version 99",
    ),
    "the first bar of an epoch": (
        "UPDATE epochs SET from_close_time = from_close_time - 1 WHERE asset_id = 2",
        "epochs: ETH.1h.enzo begins at 1772175599, but its first bar is at 1772175600",
    ),
    "when an asset publishes": (
        "UPDATE assets SET publish_from = publish_from + 1 WHERE ticker = 'ETH'",
        "assets: ETH publishes from 1770012180001, but its bars say 1770012180000",
    ),
}
SEALED = {
    "a wall time": "UPDATE passes SET written_at = written_at + 1000 WHERE number = 6",
    "a reason": "UPDATE epochs SET reason = 'other' WHERE asset_id = 2",
    "the source": "UPDATE facts SET value = 'live' WHERE key = 'source'",
    "the first start": "UPDATE facts SET value = '7' WHERE key = 'started_at'",
    "missing bars": "UPDATE missing_bars SET last_close = last_close + 1",
    "an early row": "UPDATE passes SET first_created_at = first_created_at - 1 WHERE number = 1",
}


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return tmp_path / "key.json"


@pytest.fixture
async def old_home(home: StoreHome, key_file: Path) -> StoreHome:
    """A store as the version before contexts wrote it, on each engine in turn."""
    await fill_store(home, key_file)
    async with open_and_close(home.open_market()) as store:
        commits = await store.commits()
    digest = GENESIS
    for commit in commits:
        parts = commit.bars_digest, commit.changes_digest, commit.alerts_digest
        digest = digest_commit(digest, commit.market_time, *parts)
        sql = "UPDATE passes SET digest = $1, context_digest = NULL WHERE number = $2"
        await run_unguarded(home, "passes", sql, digest, commit.number)
    for table in ("assets", "epochs"):
        await run_unguarded(home, table, f"UPDATE {table} SET pass = 0")
    await run_unguarded(home, "coverage", "UPDATE coverage SET digest = NULL")
    for table in ("log_leaves", "log_tiles", "log_checkpoint"):
        await run_unguarded(home, table, f"DELETE FROM {table}")
    return home


async def run_unguarded(home: StoreHome, table: str, sql: str, *values: object) -> None:
    async with open_unguarded(home, table) as session:
        assert await session.write(sql, *values)


async def change(home: StoreHome, sql: str) -> None:
    await run_unguarded(home, sql.split()[1], sql)


async def test_contexts_of_an_earlier_version_are_not_verifiable_until_the_next_commit(
    old_home: StoreHome,
) -> None:
    report = await audit_home(old_home)
    assert (report.findings, dict(report.not_verifiable)) == ([], UNSEALED)
    await continue_store(old_home)
    sealed = await audit_home(old_home)
    assert (sealed.findings, dict(sealed.not_verifiable)) == ([], {})


@pytest.mark.sampled(4)
@pytest.mark.parametrize("what", RECOMPUTED)
async def test_what_follows_from_the_rest_is_checked_without_a_context(
    old_home: StoreHome, what: str
) -> None:
    sql, finding = RECOMPUTED[what]
    await change(old_home, sql)
    findings = (await audit_home(old_home)).findings
    assert any(text.startswith(finding) for text in findings), findings


@pytest.mark.sampled(4)
@pytest.mark.parametrize("what", SEALED)
async def test_the_first_commit_with_a_context_seals_what_came_before(
    old_home: StoreHome, what: str
) -> None:
    await continue_store(old_home)
    await change(old_home, SEALED[what])
    report: Report = await audit_home(old_home)
    assert (
        "context: commit 12, which seals those before it, does not hold the times, assets, epochs, "
        "sources, facts and missing bars it was committed with"
    ) in report.findings


async def test_a_commit_without_a_context_after_one_with_it_is_a_finding(
    home: StoreHome, key_file: Path
) -> None:
    await fill_store(home, key_file)
    await change(home, "UPDATE passes SET context_digest = NULL WHERE number = 11")
    assert "context: commit 11 has no digest of it" in (await audit_home(home)).findings
