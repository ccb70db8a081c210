"""The audit finds every alteration made behind the store's back, and names its place."""

import asyncio
import sqlite3
import struct
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from compute.indicators.llnr import Llnr
from compute.indicators.registry import INDICATORS
from compute.universe import Universe
from store.sqlite.schema import ACCESS_MIGRATIONS, migrate
from tests.compute.conftest import RunSignals
from tests.support.small_market import (
    DAY_S,
    DENSE,
    HOUR_S,
    START,
    audit_store,
    list_opens,
    make_bars,
    open_store,
    replay_bars,
    write_bars,
    write_funding,
)

pytestmark = pytest.mark.clause("audit")

# So that the first stretch of changes is beyond the retention of a year, and alerts beyond theirs
# of 90 days.
LATER, ALERTED = START + 400 * DAY_S, START + 380 * DAY_S


@dataclass(frozen=True)
class Databases:
    """A replayed database, and the same one pruned."""

    fresh: Path
    pruned: Path


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory, universe: Universe) -> Databases:
    """Two stretches of an hourly asset's bars, 400 days apart, and daily bars with alerts."""
    parent = tmp_path_factory.mktemp("audit")
    folder = parent / "bars"
    folder.mkdir()
    early, late = START + 10 * DAY_S, LATER + 60 * HOUR_S
    write_bars(
        folder, "BTC", make_bars("BTC", [*list_opens(START, early), *list_opens(LATER, late)])
    )
    write_bars(folder, "IBM", make_bars("IBM", list_opens(START, ALERTED, 24)), "1d")
    write_funding(folder, "BTC", START, early)
    write_funding(folder, "BTC", LATER, late)
    fresh, pruned = parent / "fresh.db", parent / "pruned.db"
    for until in (LATER + 20 * HOUR_S, late):
        asyncio.run(replay_bars(fresh, folder, universe, until))
    copy(fresh, pruned)
    assert asyncio.run(prune(pruned)) > 10
    migrate(parent / "pruned.db-access", ACCESS_MIGRATIONS)
    return Databases(fresh, pruned)


async def prune(path: Path) -> int:
    async with open_store(path) as store:
        return await store.prune()


def copy(path: Path, to: Path) -> Path:
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)
    return to


def alter(path: Path, statement: str, *values: object) -> int:
    """Run a statement without any trigger or check; return the number of rows it touched.

    `patched(data, place, bytes, length)` puts bytes in the place of some others, `int64(number)`
    is a number as bytes.
    """
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.create_function("patched", 4, lambda d, at, new, n: d[:at] + new + d[at + n :])
        db.create_function("flipped", 2, lambda d, at: d[:at] + bytes([d[at] ^ 255]) + d[at + 1 :])
        db.create_function("int64", 1, lambda number: struct.pack("<q", number))
        db.execute("PRAGMA ignore_check_constraints = ON")
        triggers = db.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for (name,) in triggers:
            db.execute(f"DROP TRIGGER {name}")
        return db.execute(statement, values).rowcount


def one(path: Path, query: str) -> str:
    with closing(sqlite3.connect(path)) as db:
        return str(db.execute(query).fetchone()[0])


BTC = "(SELECT id FROM assets WHERE ticker = 'BTC')"
ID = (
    "(SELECT ticker FROM assets WHERE id = asset_id) || '.' || CASE indicator WHEN 0 THEN "
    "'trend_oracle' WHEN 1 THEN 'bayesian_trend' WHEN 2 THEN 'reversals' WHEN 3 THEN 'ceres' "
    "WHEN 4 THEN 'enzo' WHEN 5 THEN 'llnr' WHEN 6 THEN 'perpkit' ELSE 'dexter' END || '.' || "
    "CASE timeframe WHEN 0 THEN '1h' WHEN 1 THEN '4h' ELSE '1d' END || '.' || close_time"
)
MIDDLE = f"(SELECT max(created_at) FROM changes WHERE created_at < {(LATER + DAY_S) * 1000})"
NEWEST = "(SELECT max(created_at) FROM changes)"
BAR = f"asset_id = {BTC} AND {LATER + 30 * HOUR_S} BETWEEN first_open AND last_open"
AT = f"({LATER + 30 * HOUR_S} - first_open) / {HOUR_S} * 48"  # where its 48 bytes begin
CARRY = f"asset_id = {BTC} AND timeframe = 0 AND indicator = 5"
NEWEST_ALERT = "(SELECT max(created_at) FROM alerts)"
MIDDLE_ALERT = (
    f"(SELECT max(created_at) FROM alerts WHERE created_at < {(ALERTED - 20 * DAY_S) * 1000} "
    "AND action = 4)"
)
ALERT_ID = f"{ID} || '.' || CASE action WHEN 0 THEN 'LONG' WHEN 1 THEN 'SHORT' ELSE 'CLOSE' END"
ENGINE = "indicator = 12 AND timeframe = 2"
SIZE = "length(data)"
ADDED = (
    "INSERT INTO changes SELECT created_at + {later}, asset_id, indicator, timeframe, "
    'close_time + 1, epoch, "after", -"after", price, 1 FROM changes '
    "WHERE created_at = {newest}"
)

EXTRA = (
    f"INSERT INTO bars VALUES ({BTC}, 0, 0, {{at}}, {{at}}, 1, {{number}}, "
    f"patched(x'{struct.pack('<q5d', 0, 1, 1, 1, 1, 0).hex()}', 0, int64({{at}}), 8))"
)

# The alteration of a replayed database, and text that the finding contains.
TAMPERED: dict[str, tuple[str, str]] = {
    "a change's after": (
        f'UPDATE changes SET "after" = ("after" + 2) % 3 - 1 WHERE created_at = {MIDDLE}',
        "{middle}",
    ),
    "a change's published": (
        f"UPDATE changes SET published = 1 - published WHERE created_at = {MIDDLE}",
        "{middle}",
    ),
    "the newest change's created_at": (
        f"UPDATE changes SET created_at = created_at + 500 WHERE created_at = {NEWEST}",
        "{newest}",
    ),
    "a change's bar": (
        f"UPDATE changes SET close_time = close_time - 1800 WHERE created_at = {MIDDLE}",
        "does not follow from the bars",
    ),
    "a change's epoch": (
        f"UPDATE changes SET epoch = 7 WHERE created_at = {MIDDLE}",
        "does not follow from the bars",
    ),
    "a missing change": (f"DELETE FROM changes WHERE created_at = {MIDDLE}", "{middle}"),
    "the newest change missing": (f"DELETE FROM changes WHERE created_at = {NEWEST}", "{newest}"),
    "an extra change": (ADDED.format(later=500, newest=MIDDLE), "does not follow from the bars"),
    "an extra change after the last commit": (
        ADDED.format(later=500, newest=NEWEST),
        "belongs to no commit",
    ),
    "a bar's close": (
        f"UPDATE bars SET data = patched(data, {AT} + 32, substr(data, {AT} + 17, 8), 8) "
        f"WHERE {BAR}",
        "does not hold the bars",
    ),
    "a bar's time": (
        f"UPDATE bars SET data = patched(data, {AT}, x'ff', 1) WHERE {BAR}",
        "does not hold the bars",
    ),
    "the order of bars": (
        f"UPDATE bars SET data = patched(data, {AT}, zeroblob(8), 8) WHERE {BAR}",
        "damaged bars of BTC",
    ),
    "a bar's price to no number": (
        f"UPDATE bars SET data = patched(data, {AT} + 8, x'ffffffffffffffff', 8) WHERE {BAR}",
        "damaged bars of BTC",
    ),
    "the commit of a block": (f"UPDATE bars SET pass = pass - 1 WHERE {BAR}", "bars: commit"),
    "a missing block": (f"DELETE FROM bars WHERE {BAR}", "bars: commit"),
    "a missing bar": (
        f"UPDATE bars SET data = patched(data, {AT}, x'', 48), count = count - 1 WHERE {BAR}",
        "does not hold the bars",
    ),
    "a missing byte": (
        f"UPDATE bars SET data = patched(data, {AT}, x'', 1) WHERE {BAR}",
        "damaged bars of BTC",
    ),
    "a block's count": (f"UPDATE bars SET count = count + 1 WHERE {BAR}", "damaged bars of BTC"),
    "a block without bars": (
        f"UPDATE bars SET count = 0, data = x'' WHERE {BAR}",
        "damaged bars of BTC",
    ),
    "a block's timeframe": (
        f"UPDATE bars SET timeframe = 9 WHERE {BAR}",
        "bars of BTC with an unknown timeframe",
    ),
    "an extra bar": (EXTRA.format(at=START - HOUR_S, number=1), "bars: commit 1 does not hold"),
    "an extra bar of no commit": (
        EXTRA.format(at=LATER + 90 * DAY_S, number=999),
        "bars: 1 bars, settlements, sources, assets or epochs belong to no commit",
    ),
    "a funding rate": (
        f"UPDATE funding SET funding_rate = 0.5 WHERE settled_at > {LATER + DAY_S}",
        "bars: commit",
    ),
    "an extra settlement of no commit": (
        f"INSERT INTO funding VALUES ({BTC}, {START - 1}, 0.1, 0)",
        "belong to no commit",
    ),
    "a missing source": (
        f"DELETE FROM sources WHERE asset_id = {BTC}",
        "sources: revision 0 of BTC has no source",
    ),
    "a second source": (
        f"INSERT INTO sources VALUES ({BTC}, 0, 'simulated', 0)",
        "bars: 1 bars, settlements, sources, assets or epochs belong to no commit",
    ),
    "a source without bars": (
        f"INSERT INTO sources VALUES ({BTC}, 1, 'simulated', 0)",
        "bars: 1 bars, settlements, sources, assets or epochs belong to no commit",
    ),
    "a missing reading": (f"DELETE FROM readings WHERE {CARRY}", "readings: BTC.1h.llnr is None"),
    "an extra reading": (
        f"INSERT INTO readings VALUES ({BTC}, 2, 3, 1)",
        "readings: BTC.1d.ceres is 1, but the bars give None",
    ),
    "a carry's byte": (
        "UPDATE carries SET data = CAST(substr(data, 1, length(data) - 1) || x'5a' AS BLOB) "
        f"WHERE {CARRY}",
        "carries: BTC.1h.llnr does not follow",
    ),
    "a missing carry": (f"DELETE FROM carries WHERE {CARRY}", "carries: BTC.1h.llnr is missing"),
    "an extra carry": (
        "INSERT INTO carries SELECT asset_id, 1, indicator, version, layout, epoch, close_time, "
        "data FROM carries WHERE asset_id = (SELECT id FROM assets WHERE ticker = 'IBM') "
        "AND indicator = 0",
        "carries: IBM.4h.trend_oracle belongs to no bar",
    ),
    "a commit's digest": (
        "UPDATE passes SET digest = zeroblob(32) WHERE number = 2",
        "chain: commit 2 does not follow",
    ),
    "a commit's changes digest": (
        "UPDATE passes SET changes_digest = zeroblob(32) WHERE number = 2",
        "changes: commit 2 does not hold",
    ),
    "the last commit missing": (
        "DELETE FROM passes WHERE number = (SELECT max(number) FROM passes)",
        "belong to no commit",
    ),
    "a commit missing": (
        "DELETE FROM passes WHERE number = 2",
        "chain: commit 3 does not follow",
    ),
    "the market clock": (
        "UPDATE clock SET market_time = market_time + 86400000",
        "clock:",
    ),
    "when publishing starts": (
        f"UPDATE assets SET publish_from = {LATER * 1000} WHERE ticker = 'BTC'",
        "published is",
    ),
    "an alert's action": (
        "UPDATE alerts SET action = 1 - action WHERE created_at = "
        "(SELECT max(created_at) FROM alerts WHERE action < 2)",
        "does not follow from the bars",
    ),
    "an alert's bar": (
        f"UPDATE alerts SET close_time = close_time - 86400 WHERE created_at = {MIDDLE_ALERT}",
        "alerts: alerts.{middle_alert}.0 is missing",
    ),
    "the newest alert's created_at": (
        f"UPDATE alerts SET created_at = created_at + 500 WHERE created_at = {NEWEST_ALERT}",
        "{newest_alert}",
    ),
    "a missing alert": (
        f"DELETE FROM alerts WHERE created_at = {MIDDLE_ALERT}",
        "alerts: alerts.{middle_alert}.0 is missing",
    ),
    "the newest alert missing": (
        f"DELETE FROM alerts WHERE created_at = {NEWEST_ALERT}",
        "{newest_alert}",
    ),
    "an alert that was withheld by the cooldown": (
        "INSERT INTO alerts SELECT created_at + 86400500, asset_id, indicator, timeframe, "
        f"close_time + 86400, epoch, action, price FROM alerts WHERE created_at = {MIDDLE_ALERT}",
        "does not follow from the bars",
    ),
    "an alert after the last commit": (
        "INSERT INTO alerts SELECT created_at + 40 * 86400000, asset_id, indicator, timeframe, "
        f"close_time + 1, epoch, action, price FROM alerts WHERE created_at = {NEWEST_ALERT}",
        "belongs to no commit",
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
    "a missing engine": (
        f"DELETE FROM carries WHERE {ENGINE}",
        "carries: IBM.1d.alerts.enzo is missing",
    ),
    "an engine's first bar": (
        f"UPDATE epochs SET from_close_time = {ALERTED} WHERE {ENGINE}",
        "alerts: alerts.IBM.enzo",
    ),
}


def test_a_replayed_store_is_clean(databases: Databases, universe: Universe, signals: RunSignals):
    report = asyncio.run(audit_store(databases.fresh, universe))
    assert report.findings == []
    assert not report.not_verifiable
    assert (
        min(report.checked[what] for what in ("readings", "bars", "changes", "carries", "alerts"))
        > 20
    )
    assert report.checked["commits"] > 2
    ran = signals("audit", database=databases.fresh)
    assert (ran.returncode, ran.stdout.splitlines()[-1], ran.stderr) == (0, "clean", "")


@pytest.mark.prove
def test_a_pruned_store_is_clean_and_prunes_nothing_more(
    databases: Databases, universe: Universe, signals: RunSignals
):
    ran = signals("audit", database=databases.pruned)
    assert (ran.returncode, ran.stdout.splitlines()[-1]) == (0, "clean")
    again = signals("prune", database=databases.pruned)
    assert (again.returncode, again.stdout) == (0, "pruned 0 rows\n")


HORIZON = "(SELECT CAST(value AS INTEGER) FROM facts WHERE key = 'pruned_before')"
ALERT_HORIZON = "(SELECT CAST(value AS INTEGER) FROM facts WHERE key = 'alerts_pruned_before')"
PRUNED: dict[str, tuple[str, str]] = {
    "a base row deleted": (
        f"DELETE FROM changes WHERE created_at = (SELECT max(created_at) FROM changes "
        f"WHERE created_at < {HORIZON} AND asset_id = {BTC})",
        "is missing: pruning keeps a cell's newest old row",
    ),
    "a base row deleted of a cell with younger rows": (
        "DELETE FROM changes WHERE created_at = (SELECT max(o.created_at) FROM changes o "
        "JOIN changes y USING (asset_id, indicator, timeframe) "
        f"WHERE o.created_at < {HORIZON} AND y.created_at >= {HORIZON})",
        "is missing: pruning keeps a cell's newest old row",
    ),
    "a base row altered": (
        f"UPDATE changes SET price = 2 WHERE created_at = (SELECT max(created_at) FROM changes "
        f"WHERE created_at < {HORIZON} AND asset_id = {BTC})",
        "price is 2.0",
    ),
    "the oldest young row deleted": (
        "DELETE FROM changes WHERE created_at = (SELECT min(created_at) FROM changes "
        f"WHERE created_at >= {HORIZON})",
        "is missing",
    ),
    "a young row deleted": (f"DELETE FROM changes WHERE created_at = {MIDDLE}", "is missing"),
    "an aged commit's changes digest": (
        "UPDATE passes SET changes_digest = zeroblob(32) WHERE last_created_at = "
        f"(SELECT max(last_created_at) FROM passes WHERE last_created_at < {HORIZON})",
        "changes: commit",
    ),
    "a later horizon to hide deleted rows behind": (
        f"UPDATE facts SET value = '{(LATER + 2 * DAY_S) * 1000}' WHERE key = 'pruned_before'",
        "retention",
    ),
    "a base alert deleted": (
        "DELETE FROM alerts WHERE created_at = "
        f"(SELECT max(created_at) FROM alerts WHERE created_at < {ALERT_HORIZON})",
        "is missing: pruning keeps a cell's newest old row",
    ),
    "a young alert deleted": (
        "DELETE FROM alerts WHERE created_at = "
        f"(SELECT min(created_at) FROM alerts WHERE created_at >= {ALERT_HORIZON})",
        "is missing",
    ),
    "an aged commit's alerts digest": (
        "UPDATE passes SET alerts_digest = zeroblob(32) WHERE number = "
        "(SELECT min(number) FROM passes WHERE alerts_digest IS NOT NULL)",
        "alerts: commit",
    ),
    "a later horizon to hide deleted alerts behind": (
        f"UPDATE facts SET value = '{(LATER + DAY_S) * 1000}' WHERE key = 'alerts_pruned_before'",
        "retention",
    ),
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("what", [*TAMPERED, *PRUNED])
def test_every_alteration_is_found(
    what: str, databases: Databases, tmp_path: Path, signals: RunSignals
):
    statement, named = (TAMPERED | PRUNED)[what]
    place = {
        name: one(databases.fresh, f"SELECT {id_} FROM {table} WHERE created_at = {created_at}")
        for name, id_, table, created_at in (
            ("middle", ID, "changes", MIDDLE),
            ("newest", ID, "changes", NEWEST),
            ("middle_alert", ALERT_ID, "alerts", MIDDLE_ALERT),
            ("newest_alert", ALERT_ID, "alerts", NEWEST_ALERT),
        )
    }
    altered = databases.fresh if what in TAMPERED else databases.pruned
    path = copy(altered, tmp_path / "copy.db")
    assert alter(path, statement) > 0
    ran = signals("audit", database=path)
    assert ran.returncode == 1
    assert named.format(**place) in ran.stdout
    assert "findings" in ran.stdout.splitlines()[-1]


@pytest.mark.prove
def test_a_store_pruned_after_a_version_was_raised_is_clean(
    databases: Databases, universe: Universe, tmp_path: Path
):
    path, folder = tmp_path / "raised.db", databases.fresh.parent / "bars"
    newer = tuple(SecondLlnr() if i.id == "llnr" else i for i in INDICATORS)
    asyncio.run(replay_bars(path, folder, universe, LATER - DAY_S))
    asyncio.run(replay_bars(path, folder, universe, LATER + 60 * HOUR_S, newer))
    assert asyncio.run(prune(path)) > 10
    report = asyncio.run(audit_store(path, universe, newer))
    assert report.findings == []
    assert sum(report.not_verifiable.values()) > 0


@pytest.mark.prove
async def test_rows_of_another_version_are_never_clean(
    databases: Databases, universe: Universe, tmp_path: Path, signals: RunSignals
):
    path, folder = tmp_path / "other.db", databases.fresh.parent / "bars"
    newer = tuple(SecondLlnr() if i.id == "llnr" else i for i in INDICATORS)
    await replay_bars(path, folder, universe, START + 5 * DAY_S, newer)
    ran = await asyncio.to_thread(signals, "audit", database=path)
    assert (ran.returncode, ran.stderr) == (2, "")
    assert ran.stdout.splitlines()[1:] == [
        "not verifiable: carry of alerts.llnr: v2002 (3)",
        "not verifiable: carry of llnr: v2 (4)",
        "no findings, but 7 not verifiable",
    ]


@pytest.mark.parametrize("removed", ["BTC", "IBM"])
@pytest.mark.parametrize("store", ["fresh", "pruned"])
@pytest.mark.prove
def test_rows_of_an_asset_that_the_universe_lacks_are_not_verifiable_and_no_findings(
    databases: Databases, universe: Universe, tmp_path: Path, removed: str, store: str
):
    known = tuple(asset for asset in universe.assets if asset.ticker != removed)
    other = Universe(assets=known, renamed_on=universe.renamed_on)
    path = copy(getattr(databases, store), tmp_path / "copy.db")
    report = asyncio.run(audit_store(path, other))
    assert report.findings == []
    assert [*report.not_verifiable] == [f"{removed}: not in the universe"]
    assert report.not_verifiable.total() > report.checked["bars"] / 10
    # The digests of the commits still cover them.
    assert alter(path, f"UPDATE changes SET price = 2 WHERE created_at = {MIDDLE}") == 1
    assert asyncio.run(audit_store(path, other)).findings


class SecondLlnr(Llnr):
    version = 2


@pytest.mark.prove
def test_an_audit_reads_and_changes_nothing(databases: Databases, universe: Universe):
    before = dump(databases.fresh)
    asyncio.run(audit_store(databases.fresh, universe))
    assert dump(databases.fresh) == before


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return list(db.iterdump())


NEW, NEW_CODE = "llnr", 5
CUT = DENSE + 12 * 86_400


@pytest.mark.prove
async def test_readings_from_before_its_first_epoch_are_not_reported_as_missing(
    tmp_path: Path, bars_folder: Path, universe: Universe
):
    path = tmp_path / "signals.db"
    known = [indicator for indicator in INDICATORS if indicator.id != NEW]
    assert (await replay_bars(path, bars_folder, universe, CUT, known))["changes"]
    upgraded = await audit_store(path, universe)
    assert (upgraded.findings, upgraded.not_verifiable) == ([], {})
    content = await replay_bars(path, bars_folder, universe)
    assert {row[6] for row in content["changes"] if row[2] == NEW} > {None}
    begun = await audit_store(path, universe)
    assert (begun.findings, begun.not_verifiable) == ([], {})
    assert any(row[9] for row in content["changes"] if row[2] == NEW)
    alter(path, f"UPDATE readings SET reading = -reading WHERE indicator = {NEW_CODE}")
    assert (await audit_store(path, universe)).findings
