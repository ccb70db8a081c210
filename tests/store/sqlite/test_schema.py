"""Opening and migrating a file, and the errors if that is impossible."""

import asyncio
import os
import shutil
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from store.errors import StoreError
from store.opening import open_sqlite_market
from store.sql.database import fetch_value
from store.sql.market_store import MarketStore
from store.sqlite import schema as sqlite_migrations
from tests.support.row_builders import (
    run_sql,
)
from tests.support.store_homes import SqliteHome, StoreHome, read_tables

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


def make_next_version(path: Path) -> None:
    sqlite_migrations.migrate(path, sqlite_migrations.MARKET_MIGRATIONS)
    run_sql(path, "INSERT INTO migrations VALUES ('market_9999')")


@pytest.mark.parametrize(
    ("prepare", "reason"),
    [
        (lambda path: path.write_text("ts,open,high,low,close,volume\n" * 100), "not a database"),
        (lambda path: run_sql(path, "CREATE TABLE other (id INTEGER)"), "not a signals database"),
        (make_next_version, "another version.*market_9999.*name a new database"),
        (
            lambda path: sqlite_migrations.migrate(path, sqlite_migrations.ACCESS_MIGRATIONS),
            "access_0001",
        ),
        (lambda path: path.mkdir(), "cannot open"),
        (lambda path: path.symlink_to(path.parent / "missing" / "market.db"), "cannot open"),
        pytest.param(
            lambda path: path.parent.chmod(0o500),
            "cannot open",
            marks=pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root"),
        ),
    ],
    ids=[
        *("text", "another program's", "of another version", "of keys"),
        *("a folder", "in a missing folder", "in a closed folder"),
    ],
)
def test_a_path_without_a_market_database_is_refused_and_left_as_it_is(
    path: Path, prepare: Callable[[Path], object], reason: str
) -> None:
    prepare(path)
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(StoreError, match=reason) as refusal:
        asyncio.run(open_sqlite_market(path))
    assert "\n" not in str(refusal.value)
    assert str(path) in str(refusal.value)
    assert (path.read_bytes() if path.is_file() else b"") == before


def test_an_empty_file_counts_as_new(path: Path) -> None:
    path.touch()
    sqlite_migrations.migrate(path, sqlite_migrations.MARKET_MIGRATIONS)
    assert run_sql(path, "SELECT name FROM migrations") == APPLIED


def test_a_database_takes_all_migrations_once_and_logs_them_unless_it_is_new(
    path: Path, added_migration: tuple[str, ...]
) -> None:
    with capture_logs() as logs:
        for names in (added_migration[:-1], added_migration, added_migration):
            sqlite_migrations.migrate(path, names)
    assert run_sql(path, "SELECT name FROM migrations") == [*APPLIED, ("market_9999",)]
    assert [(entry["event"], entry["database"], entry["migration"]) for entry in logs] == [
        ("migrated", str(path), "market_9999")
    ]


def write_migration(folder: Path, script: str) -> None:
    (folder / "package" / "migrations" / "market_9999.sql").write_text(script)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("INSERT INTO missing VALUES ('secret');\n", "no such table: missing"),
        ("UPDATE assets\nSET ticker = NULL;\n", "append-only"),
        (
            "PRAGMA max_page_count = 1;\nCREATE TABLE big AS SELECT hex(zeroblob(9999)) AS data;\n",
            "database or disk is full",
        ),
        ("DROP TABLE", "incomplete"),
        ("DROP TABLE migrations;\n", "no such table: migrations"),
    ],
)
async def test_a_migration_that_fails_midway_leaves_the_file_as_it_was(
    filled: MarketStore,
    home: StoreHome,
    path: Path,
    added_migration: tuple[str, ...],
    tmp_path: Path,
    script: str,
    reason: str,
) -> None:
    before = await read_tables(home)
    write_migration(tmp_path, f"CREATE TABLE added (id INTEGER);\n{script}")
    with pytest.raises(StoreError) as failure:
        sqlite_migrations.migrate(path, added_migration)
    message = str(failure.value)
    for part in (f"{path}: ", "migration market_9999 failed: ", reason, "unchanged"):
        assert part in message
    assert "secret" not in message
    assert "\n" not in message
    assert run_sql(path, "SELECT name FROM migrations") == APPLIED
    assert not run_sql(path, "SELECT name FROM sqlite_schema WHERE name = 'added'")
    assert await read_tables(home) == before
    write_migration(tmp_path, "CREATE TABLE added (id INTEGER);")
    sqlite_migrations.migrate(path, added_migration)
    assert run_sql(path, "SELECT name FROM migrations") == [*APPLIED, ("market_9999",)]


KILLED = """
import os, signal, sys
from pathlib import Path
from store import migrations
from store.sqlite import schema as m
def split(script):
    yield "CREATE TABLE half (id INTEGER)"
    yield "INSERT INTO assets SELECT max(id) + 1, 'HALF', 0, 1 FROM assets"
    os.kill(os.getpid(), signal.SIGKILL)
m.split_statements = split
migrations.files = lambda _: Path(sys.argv[2])
m.migrate(Path(sys.argv[1]), (*m.MARKET_MIGRATIONS, "market_9999"))
"""


@pytest.mark.prove
async def test_a_migration_that_is_killed_leaves_nothing_half_done(
    filled: MarketStore,
    home: StoreHome,
    path: Path,
    added_migration: tuple[str, ...],
    tmp_path: Path,
) -> None:
    await filled.close()
    before = await read_tables(home)
    command = (sys.executable, "-c", KILLED, str(path), str(tmp_path / "package"))
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
    assert await process.wait() == -signal.SIGKILL
    assert await read_tables(home) == before
    assert run_sql(path, "SELECT name FROM migrations") == APPLIED
    sqlite_migrations.migrate(path, added_migration)
    assert await read_tables(home) == before
    assert run_sql(path, "SELECT name FROM migrations") == [*APPLIED, ("market_9999",)]


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
