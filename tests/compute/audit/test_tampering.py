"""Every column of the market store, and the schema itself: a change behind its back is found.

tampers.toml lists the columns, and the ways by which a change of each is found.
"""

import asyncio
import re
import shutil
import tomllib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from compute.audit.audit import Report, audit_market
from store.sql.audit_reads import StoredMarket
from store.store_errors import StoreError
from tests.conftest import MAJORS
from tests.doubles.scripted_source import ALTERNATING
from tests.support.postgres.server import SharedServer, copy_database, create_database
from tests.support.row_builders import list_commits
from tests.support.store_homes import (
    PostgresHome,
    SqliteHome,
    StoreHome,
    make_postgres_home,
    open_and_close,
)
from tests.support.tampering import (
    Column,
    Market,
    audit_home,
    continue_store,
    delete_row,
    fill_store,
    list_columns,
    list_other_values,
    open_unguarded,
    read_rows,
    replace_value,
)

pytestmark = pytest.mark.clause("audit")

LIST: dict[str, Any] = tomllib.loads(
    (Path(__file__).parent / "tampers.toml").read_text(encoding="utf-8")
)
PATTERNS = {name: re.compile(way["finding"]) for name, way in LIST["ways"].items()}
POSTGRES_TABLES = {"version"}


@dataclass(frozen=True)
class Expected:
    """The ways by which a change of a column is found, and why some are not."""

    ways: Sequence[str]
    unless: str = ""


EXPECTED: Mapping[Column, Expected] = {
    Column(table, name): Expected(**value) if isinstance(value, dict) else Expected(value)
    for table, columns in LIST["columns"].items()
    for name, value in columns.items()
}


@dataclass(frozen=True)
class Filled:
    """A filled store, which tests copy, and the key of its log."""

    copy: Callable[[], AbstractAsyncContextManager[StoreHome]]
    key_file: Path

    async def audit(self, home: StoreHome) -> Report:
        return await audit_home(home, self.key_file)

    async def list_findings(self, home: StoreHome) -> list[str]:
        """Return the findings of an audit; that of a store that does not open is its error."""
        try:
            return (await self.audit(home)).findings
        except StoreError as error:
            return [str(error)]


@pytest.fixture(scope="module", params=["sqlite", *MAJORS])
def filled(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    get_postgres_server: Callable[[str], SharedServer],
) -> Filled:
    """The filled store of each engine in turn."""
    key_file = tmp_path_factory.mktemp("key") / "key.json"
    if request.param == "sqlite":
        home = SqliteHome(tmp_path_factory.mktemp("filled"))
        asyncio.run(fill_store(home, key_file))
        return Filled(lambda: copy_files(home, tmp_path_factory.mktemp("copy")), key_file)
    server = get_postgres_server(request.param).url
    name = asyncio.run(fill_database(server, key_file))
    return Filled(lambda: copy_filled_database(server, name), key_file)


@asynccontextmanager
async def copy_files(home: SqliteHome, folder: Path) -> AsyncIterator[StoreHome]:
    shutil.copytree(home.folder, folder, dirs_exist_ok=True)
    yield SqliteHome(folder)
    shutil.rmtree(folder)


async def fill_database(server: str, key_file: Path) -> str:
    async with make_postgres_home(server) as home:
        await fill_store(home, key_file)
        url = await create_database(server, home.address.rpartition("/")[2])
    return url.rpartition("/")[2]


@asynccontextmanager
async def copy_filled_database(server: str, name: str) -> AsyncIterator[StoreHome]:
    async with copy_database(server, name) as url:
        yield PostgresHome(url)


def list_ways(findings: Sequence[str]) -> set[str]:
    return {name for name, pattern in PATTERNS.items() if any(map(pattern.search, findings))}


async def read_table(home: StoreHome, table: str) -> list[tuple[Any, ...]]:
    async with open_unguarded(home, table) as session:
        return (await read_rows(session, table))[1]


async def test_the_store_is_clean_and_has_rows_in_every_table(filled: Filled) -> None:
    async with filled.copy() as home:
        report = await filled.audit(home)
        assert (report.findings, dict(report.not_verifiable)) == ([], {})
        for table in {column.table for column in await list_columns(home)}:
            assert await read_table(home, table), table


@pytest.mark.prove
async def test_an_audit_beside_a_writer_reads_one_version(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with filled.copy() as home, open_and_close(home.open_market()) as store:
        load_market, before = store.audit_reads.load_market, await list_commits(store)

        async def load_before_a_commit() -> StoredMarket:
            market = await load_market()
            await continue_store(home)
            return market

        monkeypatch.setattr(store.audit_reads, "load_market", load_before_a_commit)
        report = await audit_market(store, Market().universe, ALTERNATING)
        assert (report.findings, dict(report.not_verifiable)) == ([], {})
        assert report.checked["commits"] == len(before) == len(await list_commits(store)) - 1


async def test_the_list_names_every_column_of_the_store(filled: Filled) -> None:
    async with filled.copy() as home:
        columns = set(await list_columns(home))
    assert columns <= EXPECTED.keys()
    assert {column.table for column in EXPECTED.keys() - columns} <= POSTGRES_TABLES
    assert {way for one in EXPECTED.values() for way in one.ways} <= PATTERNS.keys()


@pytest.mark.sampled(20)
@pytest.mark.parametrize("column", EXPECTED, ids=".".join)
async def test_a_changed_value_is_found(filled: Filled, column: Column) -> None:
    expected, is_found = EXPECTED[column], []
    for place in ("first", "middle"):
        async with filled.copy() as home:
            if column.table in POSTGRES_TABLES and isinstance(home, SqliteHome):
                return
            findings = await change_and_audit(filled, home, column, place)
        is_found.append(bool(list_ways(findings) & set(expected.ways)))
    enough = any if expected.unless else all
    assert enough(is_found) or not expected.ways, findings


async def change_and_audit(
    filled: Filled, home: StoreHome, column: Column, place: str
) -> list[str]:
    """Change a value and audit; return the findings, or that the constraints refuse it."""
    for unchecked in (False, True):
        if await change_value(home, column, place, unchecked=unchecked):
            return await filled.list_findings(home)
    return ["refused"]


async def change_value(home: StoreHome, column: Column, place: str, *, unchecked: bool) -> bool:
    """Change a column of the first or the middle row; False if the constraints refuse it."""
    async with open_unguarded(home, column.table, unchecked=unchecked) as session:
        names, rows = await read_rows(session, column.table)
        row = len(rows) // 2 if place == "middle" else 0
        value = rows[row][names.index(f'"{column.name}"')]
        return await replace_value(session, column, row, list_other_values(value))


# Values that a CHECK constraint refuses, and that a reader could take for one that it allows.
ODD = [
    (Column("changes", "published"), 2),
    (Column("changes", "before"), 5),
    (Column("changes", "after"), -200),
    (Column("alerts", "action"), 9),
    (Column("watermarks", "late"), 8),
    (Column("watermarks", "history"), 9),
    (Column("readings", "reading"), 9),
    (Column("missing_bars", "count"), 0),
    (Column("log_leaves", "salt"), b"x" * 17),
]


# Values that mean nothing, or that no code can compute with; constraints refuse the first ones.
MEANINGLESS = [
    *ODD,
    (Column("alerts", "indicator"), 7),
    *(
        (Column(table, name), 99)
        for table in ("alerts", "changes", "carries", "readings", "epochs")
        for name in ("indicator", "timeframe")
    ),
    *((Column(table, "asset_id"), 999) for table in ("alerts", "changes", "carries", "readings")),
    *((Column(table, "created_at"), -(2**62)) for table in ("alerts", "changes")),
    *((Column(table, "close_time"), 2**62) for table in ("alerts", "changes")),
    *((Column(table, "price"), float("inf")) for table in ("alerts", "changes")),
    (Column("alerts", "epoch"), -(2**62)),
    (Column("passes", "market_time"), 2**62),
    (Column("watermarks", "watermark"), 2**62),
    (Column("funding", "settled_at"), 2**62),
    (Column("bars", "first_open"), 2**62),
    (Column("bars", "data"), b"x"),
]


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("column", "value"), MEANINGLESS)
async def test_a_value_without_a_meaning_is_a_finding(
    filled: Filled, column: Column, value: object
) -> None:
    async with filled.copy() as home:
        for unchecked in (False, True):
            async with open_unguarded(home, column.table, unchecked=unchecked) as session:
                if await replace_value(session, column, 0, [value]):
                    assert unchecked or (column, value) not in ODD
                    assert await filled.list_findings(home)
                    return
    # Only SQLite can ignore its constraints.
    assert not isinstance(home, SqliteHome)


async def test_the_rest_is_checked_beside_a_value_without_a_meaning(filled: Filled) -> None:
    async with filled.copy() as home:
        for column, value in (
            (Column("alerts", "indicator"), 7),
            (Column("readings", "reading"), 0),
        ):
            async with open_unguarded(home, column.table) as session:
                _, rows = await read_rows(session, column.table)
                assert await replace_value(session, column, len(rows) - 1, [value, 1])
        findings = await filled.list_findings(home)
        assert {"alerts", "readings"} <= {finding.partition(":")[0] for finding in findings}


TABLES = sorted({column.table for column in EXPECTED} - POSTGRES_TABLES)


@pytest.mark.sampled(20)
@pytest.mark.parametrize("table", TABLES)
async def test_a_deleted_row_is_found(filled: Filled, table: str) -> None:
    for place in (0, -1):
        async with filled.copy() as home:
            async with open_unguarded(home, table) as session:
                deleted = await delete_row(session, table, place)
            # As for its columns: the store of keys that belongs to the data.
            if deleted[0] != "access_store_id":
                assert await filled.list_findings(home), (table, deleted)


ADDED = {
    "alerts": {"created_at": 5, "close_time": 7},
    "assets": {"id": 9, "ticker": "XAU"},
    "bars": {"last_open": 9, "first_open": 9, "generation": 3},
    "carries": {"indicator": 2},
    "changes": {"created_at": 5, "close_time": 7},
    "epochs": {"id": 999, "epoch": 7},
    "facts": {"key": "other"},
    "funding": {"settled_at": 7},
    "log_leaves": {"created_at": 5, "leaf": 999},
    "log_tiles": {"level": 3},
    "migrations": {"name": "market_9999"},
    "missing_bars": {"asset_id": 1},
    "passes": {"number": 12},
    "readings": {"indicator": 2},
    "sources": {"generation": 5},
    "watermarks": {"asset_id": 1},
}


@pytest.mark.sampled(20)
@pytest.mark.parametrize("table", ADDED)
async def test_an_added_row_is_found(filled: Filled, table: str) -> None:
    async with filled.copy() as home:
        async with open_unguarded(home, table) as session:
            names, rows = await read_rows(session, table)
            values = dict(zip(names, rows[0], strict=True))
            values |= {f'"{name}"': value for name, value in ADDED[table].items()}
            places = ", ".join("?" * len(names))
            assert await session.write(f"INSERT INTO {table} VALUES ({places})", *values.values())
        assert await filled.list_findings(home)


def test_tables_of_one_row_need_no_added_row() -> None:
    assert set(TABLES) - ADDED.keys() == {"clock", "coverage", "log_checkpoint"}


@pytest.mark.prove
async def test_an_older_copy_of_the_store_is_found_by_the_key_file(
    filled: Filled, tmp_path: Path
) -> None:
    newer_key = shutil.copy(filled.key_file, tmp_path / "key.json")
    async with filled.copy() as home:
        await continue_store(home, newer_key)
        assert (await audit_home(home, newer_key)).findings == []
    async with filled.copy() as home:
        found = (await audit_home(home, newer_key)).findings
        # Leaf 0 is the start. The hour ends a bar of 1h and one of 4h of each asset.
        assert found == ["log: has 338 leaves, but 342 were signed"]
        assert (await audit_home(home)).findings == []


SQLITE_DROPS = """
SELECT type || ' ' || name, 'DROP ' || type || ' ' || name
FROM main.sqlite_schema WHERE type IN ('trigger', 'index') AND sql IS NOT NULL
"""
POSTGRES_DROPS = """
WITH tables AS (
  SELECT oid, relname AS name FROM pg_class
  WHERE relkind = 'r' AND relnamespace = 'signals_market'::regnamespace
)
SELECT 'trigger ' || t.name || '.' || g.tgname, 'DROP TRIGGER ' || g.tgname || ' ON ' || t.name
FROM tables t JOIN pg_trigger g ON g.tgrelid = t.oid WHERE NOT g.tgisinternal
UNION ALL
SELECT 'constraint ' || t.name || '.' || k.conname,
  'ALTER TABLE ' || t.name || ' DROP CONSTRAINT ' || k.conname
FROM tables t JOIN pg_constraint k ON k.conrelid = t.oid WHERE k.contype = 'c'
UNION ALL
SELECT 'index ' || i.relname, 'DROP INDEX ' || i.relname
FROM tables t JOIN pg_index x ON x.indrelid = t.oid JOIN pg_class i ON i.oid = x.indexrelid
WHERE x.indexrelid NOT IN (SELECT conindid FROM pg_constraint)
"""


async def list_drops(home: StoreHome) -> dict[str, str]:
    """Return the statement that drops each trigger, index or CHECK constraint, by its name."""
    async with home.open_plain() as run:
        return dict(await run(SQLITE_DROPS if isinstance(home, SqliteHome) else POSTGRES_DROPS))


async def test_every_dropped_trigger_index_and_constraint_is_found(filled: Filled) -> None:
    async with filled.copy() as home:
        drops = await list_drops(home)
        assert len(drops) > 40
        async with home.open_plain() as run:
            for statement in drops.values():
                await run(statement)
        report = await filled.audit(home)
        assert report.findings == sorted(f"schema: {name} is missing" for name in drops)


ALTERED = {
    "sqlite": [
        "DROP TRIGGER passes_update",
        "CREATE TRIGGER passes_update BEFORE UPDATE ON passes WHEN false "
        "BEGIN SELECT RAISE(ABORT, 'passes are append-only'); END",
        "CREATE TRIGGER quiet AFTER INSERT ON changes BEGIN DELETE FROM facts WHERE false; END",
        "DROP INDEX bars_of_pass",
        "CREATE INDEX bars_of_pass ON bars (asset_id)",
        "ALTER TABLE facts ADD COLUMN note TEXT",
    ],
    "postgres": [
        "ALTER TABLE passes DISABLE TRIGGER same",
        "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN RETURN NULL; END'",
        "CREATE RULE quiet AS ON DELETE TO changes DO INSTEAD NOTHING",
        "ALTER TABLE changes DROP CONSTRAINT changes_asset_id_fkey",
        "ALTER TABLE facts ADD COLUMN note TEXT",
        "ALTER TABLE changes ALTER price DROP NOT NULL",
    ],
}
ALTERED_FAULTS = {
    "sqlite": [
        "schema: index bars_of_pass is not as the migrations create it",
        "schema: table facts is not as the migrations create it",
        "schema: table of_another_program does not belong there",
        "schema: trigger passes_update is not as the migrations create it",
        "schema: trigger quiet does not belong there",
        "schema: view newest does not belong there",
    ],
    "postgres": [
        "schema: column changes.price is not as the migrations create it",
        "schema: column facts.note does not belong there",
        "schema: constraint changes.changes_asset_id_fkey is missing",
        "schema: foreign keys assets is not as the migrations create it",
        "schema: foreign keys changes is missing",
        "schema: function refuse is not as the migrations create it",
        "schema: rule changes.quiet does not belong there",
        "schema: table newest does not belong there",
        "schema: table of_another_program does not belong there",
        "schema: trigger passes.same is not as the migrations create it",
    ],
}


async def test_an_altered_schema_is_found(filled: Filled) -> None:
    async with filled.copy() as home:
        engine = "sqlite" if isinstance(home, SqliteHome) else "postgres"
        async with home.open_plain() as run:
            await run("CREATE TABLE of_another_program (id INTEGER PRIMARY KEY)")
            await run("CREATE VIEW newest AS SELECT max(created_at) AS created_at FROM changes")
            for statement in ALTERED[engine]:
                await run(statement)
        found = (await filled.audit(home)).findings
        # PostgreSQL 18 lists NOT NULL among the constraints.
        assert [text for text in found if "not_null" not in text] == ALTERED_FAULTS[engine]
