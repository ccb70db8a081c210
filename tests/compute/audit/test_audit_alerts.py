"""The audit finds every alteration of alerts and of their engines' carries, and names it."""

import asyncio
from pathlib import Path

import pytest

from compute.universe import Universe
from tests.compute.audit.test_audit import ID, Databases, alter, copy, one, prune
from tests.compute.conftest import RunSignals
from tests.support.small_market import (
    DAY_S,
    START,
    audit_store,
    list_opens,
    make_bars,
    replay_bars,
    write_bars,
)

pytestmark = pytest.mark.clause("audit")

END = START + 380 * DAY_S  # so that alerts reach back beyond their retention of 90 days


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory, universe: Universe) -> Databases:
    """Daily bars of IBM, which alert engines follow."""
    parent = tmp_path_factory.mktemp("audit")
    folder = parent / "bars"
    folder.mkdir()
    write_bars(folder, "IBM", make_bars("IBM", list_opens(START, END, 24)), "1d")
    fresh, pruned = parent / "fresh.db", parent / "pruned.db"
    asyncio.run(replay_bars(fresh, folder, universe, END))
    copy(fresh, pruned)
    assert asyncio.run(prune(pruned)) > 2
    return Databases(fresh, pruned)


NEWEST = "(SELECT max(created_at) FROM alerts)"
MIDDLE = (
    f"(SELECT max(created_at) FROM alerts WHERE created_at < {(END - 20 * DAY_S) * 1000} "
    "AND action = 4)"
)
ALERT_ID = f"{ID} || '.' || CASE action WHEN 0 THEN 'LONG' WHEN 1 THEN 'SHORT' ELSE 'CLOSE' END"
ENGINE = "indicator = 12 AND timeframe = 2"
SIZE = "length(data)"

# The alteration of a replayed database, and text that the finding contains.
TAMPERED: dict[str, tuple[str, str]] = {
    "an alert's price": (
        f"UPDATE alerts SET price = 2 WHERE created_at = {MIDDLE}",
        "alerts: alerts.{middle}.0: price is 2.0",
    ),
    "an alert's action": (
        "UPDATE alerts SET action = 1 - action WHERE created_at = "
        "(SELECT max(created_at) FROM alerts WHERE action < 2)",
        "does not follow from the bars",
    ),
    "an alert's bar": (
        f"UPDATE alerts SET close_time = close_time - 86400 WHERE created_at = {MIDDLE}",
        "alerts: alerts.{middle}.0 is missing",
    ),
    "an alert's epoch": (
        f"UPDATE alerts SET epoch = 7 WHERE created_at = {MIDDLE}",
        "alerts: alerts.{middle}.0 is missing",
    ),
    "an alert's timeframe": (
        f"UPDATE alerts SET timeframe = 1 WHERE created_at = {MIDDLE}",
        "alerts: alerts.{middle}.0 is missing",
    ),
    "an alert's created_at": (
        f"UPDATE alerts SET created_at = created_at + 500 WHERE created_at = {MIDDLE}",
        "alerts: alerts.{middle}.0: created_at is",
    ),
    "the newest alert's created_at": (
        f"UPDATE alerts SET created_at = created_at + 500 WHERE created_at = {NEWEST}",
        "{newest}",
    ),
    "a missing alert": (
        f"DELETE FROM alerts WHERE created_at = {MIDDLE}",
        "alerts: alerts.{middle}.0 is missing",
    ),
    "the newest alert missing": (f"DELETE FROM alerts WHERE created_at = {NEWEST}", "{newest}"),
    "an alert that was withheld by the cooldown": (
        "INSERT INTO alerts SELECT created_at + 86400500, asset_id, indicator, timeframe, "
        f"close_time + 86400, epoch, action, price FROM alerts WHERE created_at = {MIDDLE}",
        "does not follow from the bars",
    ),
    "an alert after the last commit": (
        "INSERT INTO alerts SELECT created_at + 9 * 86400000, asset_id, indicator, timeframe, "
        f"close_time + 1, epoch, action, price FROM alerts WHERE created_at = {NEWEST}",
        "belongs to no commit",
    ),
    "a commit's alerts digest": (
        "UPDATE passes SET alerts_digest = zeroblob(32) WHERE number = "
        "(SELECT max(number) FROM passes WHERE alerts_digest IS NOT NULL)",
        "alerts: commit",
    ),
    "a commit's alerts digest taken away": (
        "UPDATE passes SET alerts_digest = NULL WHERE number = "
        "(SELECT max(number) FROM passes WHERE alerts_digest IS NOT NULL)",
        "chain: commit",
    ),
    "an engine's side": (
        f"UPDATE carries SET data = flipped(data, 1) WHERE {ENGINE}",
        "carries: IBM.1d.alerts.enzo does not follow from the bars",
    ),
    "what a publisher remembers": (
        f"UPDATE carries SET data = flipped(data, {SIZE} - 60) WHERE {ENGINE}",
        "carries: IBM.1d.alerts.enzo does not follow from the bars",
    ),
    "an engine's bar": (
        f"UPDATE carries SET close_time = close_time - 86400 WHERE {ENGINE}",
        "carries: IBM.1d.alerts.enzo does not follow from the bars",
    ),
    "a missing engine": (
        f"DELETE FROM carries WHERE {ENGINE}",
        "carries: IBM.1d.alerts.enzo is missing",
    ),
    "an engine's first bar": (
        f"UPDATE epochs SET from_close_time = {END} WHERE {ENGINE}",
        "alerts: alerts.IBM.enzo",
    ),
}


def test_alerts_of_a_replayed_store_are_clean(databases: Databases, universe: Universe):
    report = asyncio.run(audit_store(databases.fresh, universe))
    assert report.findings == []
    assert not report.not_verifiable
    assert report.checked["alerts"] > 20


@pytest.mark.sampled(6)
@pytest.mark.parametrize("what", TAMPERED)
def test_every_alteration_of_alerts_is_found(
    what: str, databases: Databases, tmp_path: Path, signals: RunSignals
):
    statement, named = TAMPERED[what]
    place = {
        name: one(databases.fresh, f"SELECT {ALERT_ID} FROM alerts WHERE created_at = {created_at}")
        for name, created_at in (("middle", MIDDLE), ("newest", NEWEST))
    }
    path = copy(databases.fresh, tmp_path / "copy.db")
    assert alter(path, statement) > 0
    ran = signals("audit", database=path)
    assert ran.status == 1
    assert named.format(**place) in ran.out
    assert ran.err == ""


def test_a_store_with_pruned_alerts_is_clean(databases: Databases, signals: RunSignals):
    ran = signals("audit", database=databases.pruned)
    assert (ran.status, ran.out.splitlines()[-1]) == (0, "clean")


HORIZON = "(SELECT CAST(value AS INTEGER) FROM facts WHERE key = 'alerts_pruned_before')"
PRUNED: dict[str, tuple[str, str]] = {
    "a base row deleted": (
        "DELETE FROM alerts WHERE created_at = "
        f"(SELECT max(created_at) FROM alerts WHERE created_at < {HORIZON})",
        "is missing: pruning keeps a cell's newest old row",
    ),
    "a young row deleted": (
        "DELETE FROM alerts WHERE created_at = "
        f"(SELECT min(created_at) FROM alerts WHERE created_at >= {HORIZON})",
        "is missing",
    ),
    "an aged commit's alerts digest": (
        "UPDATE passes SET alerts_digest = zeroblob(32) WHERE number = "
        "(SELECT min(number) FROM passes WHERE alerts_digest IS NOT NULL)",
        "alerts: commit",
    ),
    "a later horizon to hide deleted rows behind": (
        f"UPDATE facts SET value = '{(END - DAY_S) * 1000}' WHERE key = 'alerts_pruned_before'",
        "retention",
    ),
}


@pytest.mark.parametrize("what", PRUNED)
@pytest.mark.sampled(2)
def test_every_alteration_of_alerts_after_pruning_is_found(
    what: str, databases: Databases, tmp_path: Path, signals: RunSignals
):
    statement, named = PRUNED[what]
    path = copy(databases.pruned, tmp_path / "copy.db")
    assert alter(path, statement) == 1
    ran = signals("audit", database=path)
    assert ran.status == 1
    assert named in ran.out
