"""Opening and migrating a file, and the errors if that is impossible."""

import asyncio
import os
import resource
import shutil
import signal
import sqlite3
import stat
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from access.maintenance import compute_cutoffs
from store.errors import StoreError
from store.sql.database import fetch_value
from store.sql.market_store import MarketStore
from store.sqlite import access_store as sqlite_access_store
from store.sqlite import schema as sqlite_migrations
from store.sqlite.access_store import open_sqlite_access
from store.sqlite.copies import check_integrity
from store.sqlite.market_store import open_sqlite_market
from tests.store.conftest import OpenMarket
from tests.support.row_builders import (
    NOW,
    make_batch,
    make_full_batch,
    read_tables,
    run_sql,
)
from tests.support.store_homes import SqliteHome, StoreHome, open_and_close

pytestmark = pytest.mark.clause("store")

ROOT = Path(__file__).parents[3]
OPEN = "import sys; from pathlib import Path; from store.sqlite import schema as m; "
APPLIED = [(name,) for name in sqlite_migrations.MARKET_MIGRATIONS]
MIGRATE = OPEN + "m.migrate(Path(sys.argv[1]), m.MARKET_MIGRATIONS)"


@pytest.fixture
def home(tmp_path: Path) -> StoreHome:
    """SQLite only: the tests inspect its files."""
    return SqliteHome(tmp_path)


@pytest.fixture
def added_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Replace the package data by that of a version with one more migration."""
    package = tmp_path / "package"
    migrations = package / "migrations"
    migrations.mkdir(parents=True)
    for name in (*sqlite_migrations.MARKET_MIGRATIONS, *sqlite_migrations.ACCESS_MIGRATIONS):
        shutil.copy(ROOT / "store" / "sqlite" / "migrations" / f"{name}.sql", migrations)
    added = "CREATE TABLE added (id INTEGER PRIMARY KEY) STRICT;"
    (migrations / "market_9999.sql").write_text(added)
    monkeypatch.setattr("store.migrations.files", lambda _: package)
    return (*sqlite_migrations.MARKET_MIGRATIONS, "market_9999")


async def assert_refused(path: Path, match: str) -> None:
    with pytest.raises(StoreError, match=match) as refusal:
        await open_sqlite_market(path)
    assert "\n" not in str(refusal.value)
    assert str(path) in str(refusal.value)


@pytest.fixture
def text(path: Path) -> Path:
    path.write_text("ts,open,high,low,close,volume\n" * 100)
    return path


@pytest.fixture
def empty(path: Path) -> Path:
    path.touch()
    return path


async def test_a_file_that_is_no_database_is_refused(text: Path) -> None:
    await assert_refused(text, "not a database")


async def test_a_missing_folder_and_a_folder_are_refused(tmp_path: Path) -> None:
    await assert_refused(tmp_path / "missing" / "market.db", "cannot open")
    await assert_refused(tmp_path, "cannot open")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
async def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    await assert_refused(folder / "market.db", "cannot open")


async def test_another_programs_database_is_refused_and_not_changed(path: Path) -> None:
    run_sql(path, "CREATE TABLE other (id INTEGER)")
    await assert_refused(path, "not a signals database")
    assert run_sql(path, "SELECT name FROM sqlite_schema") == [("other",)]


async def test_a_database_of_another_version_is_refused(market: MarketStore, path: Path) -> None:
    run_sql(path, "INSERT INTO migrations VALUES ('market_9999')")
    await assert_refused(path, "another version.*market_9999.*name a new database")


async def test_an_access_database_is_no_market_database(tmp_path: Path) -> None:
    store = await open_sqlite_access(tmp_path / "access.db")
    await store.close()
    await assert_refused(tmp_path / "access.db", "access_0001")


async def test_an_empty_file_counts_as_new(open_market: OpenMarket, empty: Path) -> None:
    await (await open_market()).commit(make_batch())
    assert run_sql(empty, "SELECT name FROM migrations") == APPLIED
    assert not list(empty.parent.glob("*.before-*"))


async def test_a_database_with_content_is_copied_before_it_is_migrated(
    market: MarketStore, path: Path, added_migration: tuple[str, ...]
) -> None:
    await market.commit(make_full_batch())
    before = read_tables(path)
    sqlite_migrations.migrate(path, added_migration)
    copy = path.with_name("market.db.before-market_9999")
    assert read_tables(path) == read_tables(copy) == before
    assert run_sql(copy, "SELECT name FROM migrations") == APPLIED
    assert run_sql(path, "SELECT name FROM migrations") == [*APPLIED, ("market_9999",)]
    assert not list(path.parent.glob("*.unfinished*"))


def test_a_new_database_takes_all_migrations_without_a_copy(
    path: Path, added_migration: tuple[str, ...]
) -> None:
    sqlite_migrations.migrate(path, added_migration)
    sqlite_migrations.migrate(path, added_migration)
    assert run_sql(path, "SELECT name FROM migrations") == [*APPLIED, ("market_9999",)]
    assert not list(path.parent.glob("*.before-*"))


def write_migration(folder: Path, script: str) -> None:
    (folder / "package" / "migrations" / "market_9999.sql").write_text(script)


@pytest.mark.parametrize(
    ("script", "named", "reason"),
    [
        (
            "CREATE TABLE added (id INTEGER);\n-- Why.\nINSERT INTO missing VALUES ('secret');\n",
            "statement 2 (INSERT INTO missing)",
            "no such table: missing",
        ),
        (
            "CREATE TABLE added (id INTEGER);\nUPDATE assets\nSET ticker = NULL;\n",
            "statement 2 (UPDATE assets SET)",
            "append-only",
        ),
        (
            "CREATE TABLE added (id INTEGER);\nPRAGMA max_page_count = 1;\n"
            "CREATE TABLE big AS SELECT hex(zeroblob(99999)) AS data;\n",
            "statement 3 (CREATE TABLE big)",
            "database or disk is full",
        ),
        ("CREATE TABLE added (id INTEGER);\nDROP TABLE", "statement 2 (DROP TABLE)", "incomplete"),
        (
            "CREATE TABLE added (id INTEGER);\nDROP TABLE migrations;\n",
            "its end",
            "no such table: migrations",
        ),
    ],
)
async def test_a_migration_that_fails_midway_names_its_step_and_leaves_the_file_as_it_was(
    market: MarketStore,
    path: Path,
    added_migration: tuple[str, ...],
    tmp_path: Path,
    script: str,
    named: str,
    reason: str,
) -> None:
    await market.commit(make_full_batch())
    before = read_tables(path)
    write_migration(tmp_path, script)
    with pytest.raises(StoreError) as failure:
        sqlite_migrations.migrate(path, added_migration)
    copy = path.with_name("market.db.before-market_9999")
    message = str(failure.value)
    for part in (f"{path}: ", "migration market_9999", f"failed at {named}: ", reason, str(copy)):
        assert part in message
    assert "unchanged" in message
    assert "secret" not in message
    assert "\n" not in message
    assert run_sql(path, "SELECT name FROM migrations") == APPLIED
    assert not run_sql(path, "SELECT name FROM sqlite_schema WHERE name = 'added'")
    assert read_tables(path) == read_tables(copy) == before
    write_migration(tmp_path, "CREATE TABLE added (id INTEGER);")
    sqlite_migrations.migrate(path, added_migration)
    assert run_sql(path, "SELECT name FROM migrations") == [*APPLIED, ("market_9999",)]


async def test_a_copy_that_does_not_fit_on_the_disk_stops_the_migration(
    market: MarketStore, path: Path, added_migration: tuple[str, ...]
) -> None:
    await market.commit(make_full_batch())
    before, (soft, hard) = read_tables(path), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(StoreError) as failure:
            sqlite_migrations.migrate(path, added_migration)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    copy = f"{path}.before-market_9999"
    assert f"migration market_9999 failed at its copy {copy}: " in str(failure.value)
    assert "unchanged" in str(failure.value)
    assert "No copy was made: free disk space" in str(failure.value)
    assert not list(path.parent.glob("*.before-*"))
    assert read_tables(path) == before
    assert run_sql(path, "SELECT name FROM migrations") == APPLIED


KILL = "os.kill(os.getpid(), signal.SIGKILL)"
KILLED = f"""
import os, signal, sys
from pathlib import Path
from store import migrations
from store.sqlite import schema as m
def split(script):
    yield "CREATE TABLE half (id INTEGER)"
    yield "INSERT INTO assets SELECT max(id) + 1, 'HALF', 0, 1 FROM assets"
    {KILL}
def replace(*names):
    {KILL}
if sys.argv[2] == "copy":
    m.os.replace = replace
else:
    m.split_statements = split
migrations.files = lambda _: Path(sys.argv[3])
m.migrate(Path(sys.argv[1]), (*m.MARKET_MIGRATIONS, "market_9999"))
"""


@pytest.mark.parametrize("moment", ["copy", "statement"])
@pytest.mark.prove
async def test_a_migration_that_is_killed_leaves_nothing_half_done(
    market: MarketStore,
    path: Path,
    added_migration: tuple[str, ...],
    tmp_path: Path,
    moment: str,
) -> None:
    await market.commit(make_full_batch())
    await market.close()
    before, package = read_tables(path), str(tmp_path / "package")
    command = (sys.executable, "-c", KILLED, str(path), moment, package)
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
    assert await process.wait() == -signal.SIGKILL
    copy = path.with_name("market.db.before-market_9999")
    assert copy.exists() is (moment == "statement")
    assert read_tables(path) == before
    assert run_sql(path, "SELECT name FROM migrations") == APPLIED
    sqlite_migrations.migrate(path, added_migration)
    assert read_tables(path) == read_tables(copy) == before
    assert run_sql(path, "SELECT name FROM migrations") == [*APPLIED, ("market_9999",)]
    assert not list(path.parent.glob("*.unfinished*"))


def test_an_unfinished_copy_that_was_left_behind_is_replaced(
    path: Path, added_migration: tuple[str, ...]
) -> None:
    sqlite_migrations.migrate(path, sqlite_migrations.MARKET_MIGRATIONS)
    for end in ("", "-journal"):
        path.with_name(f"market.db.before-market_9999.unfinished{end}").write_bytes(b"half" * 5000)
    sqlite_migrations.migrate(path, added_migration)
    copy = path.with_name("market.db.before-market_9999")
    check_integrity(copy)
    assert run_sql(copy, "SELECT name FROM migrations") == APPLIED
    assert not list(path.parent.glob("*.unfinished*"))


def test_each_migration_of_an_existing_file_is_logged_with_its_copy(
    path: Path, added_migration: tuple[str, ...]
) -> None:
    with capture_logs() as logs:
        sqlite_migrations.migrate(path, added_migration[:-1])
        assert logs == []
        sqlite_migrations.migrate(path, added_migration)
        sqlite_migrations.migrate(path, added_migration)
    assert [(entry["event"], entry["migration"], entry["copy"]) for entry in logs] == [
        ("migrated", "market_9999", f"{path}.before-market_9999")
    ]
    assert all(entry["database"] == str(path) and entry["seconds"] >= 0 for entry in logs)


DAY_S = 86_400
ENDS = ("", ".unfinished")


def list_modes(folder: Path) -> dict[str, str]:
    """Return the type and permissions of each file in a folder."""
    return {file.name: stat.filemode(file.stat().st_mode) for file in folder.iterdir()}


def age(file: Path, days: float) -> None:
    at = time.time() - days * DAY_S
    os.utime(file, (at, at))


async def test_prune_deletes_the_old_copies_of_migrations_and_no_other_file(
    tmp_path: Path,
) -> None:
    path = tmp_path / "market.db"
    copies = [f"market.db.before-{sqlite_migrations.MARKET_MIGRATIONS[0]}{end}" for end in ENDS]
    foreign = [
        *("market.db.before-market_9999", "market.db.before-access_0001", f"{copies[0]}.mine"),
        *("other.db.before-market_0001", "market.db.before-", "market.db.backup-20200101T000000Z"),
    ]
    async with open_and_close(open_sqlite_market(path)) as store:

        async def prune(days: float) -> set[str]:
            """Return the files that are left when the copies are so old."""
            for name in (*copies, *foreign):
                (tmp_path / name).touch()
                age(tmp_path / name, 31 if name in foreign else days)
            await store.prune()
            return {name for name in list_modes(tmp_path) if ".b" in name}

        assert await prune(29.9) == {*copies, *foreign}
        with capture_logs() as logs:
            assert await prune(31) == {*foreign}
            await store.prune()
        (tmp_path / copies[0]).mkdir()
        age(tmp_path / copies[0], 31)
        await store.prune()
    assert (tmp_path / copies[0]).is_dir()
    assert [(entry["event"], entry["copy"], entry["age_days"]) for entry in logs] == [
        ("copy_deleted", str(tmp_path / name), 31) for name in copies
    ]


async def test_a_copy_of_the_keys_is_private_and_deleted_by_the_daily_maintenance(
    tmp_path: Path, added_migration: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "market.db-access"
    sqlite_migrations.migrate(path, sqlite_migrations.ACCESS_MIGRATIONS)
    path.chmod(0o644)
    names = (*sqlite_migrations.ACCESS_MIGRATIONS, added_migration[-1])
    for module in (sqlite_migrations, sqlite_access_store):
        monkeypatch.setattr(module, "ACCESS_MIGRATIONS", names)
    async with open_and_close(open_sqlite_access(path)) as store:
        copy = path.with_name(f"{path.name}.before-{names[-1]}")
        await store.prune(compute_cutoffs(NOW))
        assert list_modes(tmp_path)[copy.name] == "-rw-------"
        age(copy, 30.1)
        await store.prune(compute_cutoffs(NOW))
        assert copy.name not in list_modes(tmp_path)


@pytest.mark.prove
async def test_processes_that_start_together_all_find_a_migrated_file(path: Path) -> None:
    starting = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", MIGRATE, str(path), cwd=ROOT)
        for _ in range(4)
    ]
    assert [await process.wait() for process in starting] == [0] * 4
    assert run_sql(path, "SELECT name FROM migrations") == APPLIED


def test_opening_waits_for_a_process_that_reads_the_file_before_wal(path: Path) -> None:
    sqlite_migrations.migrate(path, sqlite_migrations.MARKET_MIGRATIONS)
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("PRAGMA journal_mode = DELETE")
        other.execute("BEGIN")
        other.execute("SELECT * FROM migrations").fetchall()
        ending = threading.Timer(0.05, other.rollback)
        ending.start()
        sqlite_migrations.migrate(path, sqlite_migrations.MARKET_MIGRATIONS)
        ending.join()
    assert run_sql(path, "PRAGMA journal_mode") == [("wal",)]


async def test_the_file_is_opened_with_its_pragmas(market: MarketStore, path: Path) -> None:
    assert run_sql(path, "PRAGMA journal_mode") == [("wal",)]
    async with market._engine.begin_write() as writer:
        for name, value in (("synchronous", 1), ("foreign_keys", 1), ("recursive_triggers", 1)):
            assert await fetch_value(writer, f"PRAGMA {name}") == value
    async with market._engine.begin_read() as reader:
        assert await fetch_value(reader, "PRAGMA cache_size") == -8000
        with pytest.raises(sqlite3.OperationalError):
            await reader.execute("DELETE FROM readings")
