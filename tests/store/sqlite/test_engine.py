"""The connections of a SQLite file: durability, query plans, and counts beside another process.

Opening and migrating a file, and the errors if that is impossible.
"""

import asyncio
import os
import re
import shutil
import signal
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from store.access_rows import AttemptLimit, CallGroup, CountedGroup
from store.opening import open_sqlite_market
from store.sql import market_reads as past
from store.sql.access_store import AccessStore
from store.sql.database import Lane, fetch_value
from store.sql.ledger_reads import LIST_ROWS
from store.sql.market_statements import LIST_BLOCKS_AT, LIST_LAST_BARS
from store.sql.market_store import MarketStore
from store.sqlite import engine, schema as sqlite_migrations
from store.sqlite.engine import SqliteEngine, _connect, _connect_directly
from store.sqlite.schema import MARKET_MIGRATIONS
from store.store_errors import StoreError
from tests.store.sql.test_key_store import NOON, hash_name
from tests.store.sql.test_purchase_store import CLAIM, MEMBER
from tests.support.access_store_calls import CALL, DURABLE_CALLS, FAST_CALLS, HASH, REQUEST_CALLS
from tests.support.row_builders import (
    NOW,
    list_changes,
    make_call_group,
    make_full_batch,
    run_sql,
)
from tests.support.small_market import load_past
from tests.support.store_homes import SqliteHome, StoreHome, read_tables

pytestmark = pytest.mark.clause("operation", "store")


async def test_a_connection_whose_setup_fails_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "market.db"
    path.write_text("this is no database\n" * 100)
    # The exceptions hold their frames, and with them a connection that was not closed.
    with pytest.raises(StoreError, match="not a database") as direct_failure:
        _connect_directly(path)
    with pytest.raises(StoreError, match="not a database") as reader_failure:
        await _connect(path)
    assert None not in (direct_failure.tb, reader_failure.tb)
    assert str(path) not in list_open_files()
    with path.open():
        assert str(path) in list_open_files()
    # Python 3.13 warns of one whose caller gave up while its thread opened the file.
    opening = asyncio.create_task(_connect(tmp_path / "new.db"))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert str(tmp_path / "new.db") not in list_open_files()


@pytest.mark.clause("proof")
async def test_commits_reach_the_disk_from_the_compute_lock_on(tmp_path: Path) -> None:
    # The key file of the log is on the disk, and must never be ahead of the rows.
    engine = await SqliteEngine.open(tmp_path / "market.db", MARKET_MIGRATIONS)
    try:
        async with engine.begin_compute_write() as db:
            assert await fetch_value(db, "PRAGMA synchronous") == 1
        await engine.lock()
        async with engine.begin_compute_write() as db:
            assert await fetch_value(db, "PRAGMA synchronous") == 2
    finally:
        await engine.close()


def list_open_files() -> list[str]:
    return [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.exists()]


@pytest.fixture
def home(tmp_path: Path) -> StoreHome:
    """SQLite only: the tests parse its plans and inspect its files."""
    return SqliteHome(tmp_path)


BOARD = {"SCAN r", "SCAN a"}


def explain(path: Path, sql: str, values: Any = ()) -> list[str]:
    """Return the steps of a plan, without the numbers of its subqueries."""
    plan = run_sql(path, f"EXPLAIN QUERY PLAN {sql}", values)
    return [row[3].rstrip("0123456789").rstrip() for row in plan]


@pytest.mark.clause("feed")
@pytest.mark.usefixtures("market")
def test_closes_are_searched_by_index(path: Path) -> None:
    steps = explain(path, LIST_BLOCKS_AT, {"tickers": ",A,B,", "closed_at": NOW})
    assert [step for step in steps if re.match(r"SCAN (bars|b)\b", step)] == []


@pytest.fixture
async def recorded_statements(market: MarketStore) -> AsyncIterator[list[str]]:
    """Return a list that receives every statement of the store's readers."""
    ran: list[str] = []
    for lane in Lane:
        async with market._engine.begin_read(lane) as db:
            await db.connection.set_trace_callback(ran.append)
    yield ran
    for lane in Lane:
        async with market._engine.begin_read(lane) as db:
            await db.connection.set_trace_callback(None)


@pytest.mark.clause("feed")
async def test_every_other_read_neither_scans_nor_sorts(
    filled: MarketStore, path: Path, recorded_statements: list[str]
) -> None:
    await filled.snapshot()
    await load_past(filled, NOW)
    await filled.progress()
    await filled.commit_inputs(1)
    assert await list_changes(filled)
    assert [row async for row in filled.alerts()]
    of_rows = {sql for sql in recorded_statements if "changes" in sql or "alerts" in sql}
    # Those of the ledger have a connection of their own.
    of_rows.update(LIST_ROWS.values())
    assert len(of_rows) >= 6
    for sql in of_rows:
        steps = explain(path, sql, {"after": 0, "until": NOW, "limit": 1})
        assert not [step for step in steps if "TEMP B-TREE" in step], sql
        scanned = {step for step in steps if step.startswith("SCAN")}
        assert scanned <= (BOARD if "FROM readings r" in sql else {"SCAN CONSTANT ROW"}), sql


PAST = {
    "the pass of a time": past.LATEST_COMMIT_AT,
    "whether the next is nominal": past.IS_NOMINAL,
    "its last row": past.LAST_CREATED_AT,
}


@pytest.mark.clause("feed")
@pytest.mark.usefixtures("market")
@pytest.mark.parametrize("name", PAST)
def test_the_past_is_searched_by_index_and_never_sorted(path: Path, name: str) -> None:
    steps = explain(path, PAST[name], [5])
    assert {step.split()[0] for step in steps} == {"SEARCH"}, steps


@pytest.mark.clause("feed")
@pytest.mark.usefixtures("market")
@pytest.mark.parametrize(
    ("condition", "index"),
    [
        (
            "asset_id = 1 AND generation = 0 AND timeframe = 0 AND last_open > 0 "
            "ORDER BY last_open",
            "PRIMARY KEY",
        ),
        ("pass = 1", "INDEX bars_of_pass"),
    ],
)
def test_an_asset_is_read_by_its_key_and_a_commit_by_its_index(
    path: Path, condition: str, index: str
) -> None:
    (step,) = explain(path, f"SELECT data FROM bars WHERE {condition}")
    assert step.startswith(f"SEARCH bars USING {index}")


@pytest.mark.clause("feed")
async def test_the_last_bars_are_found_without_reading_the_data_of_others(
    filled: MarketStore, path: Path
) -> None:
    steps = explain(path, LIST_LAST_BARS, {"number": 1, "run_s": 0})
    searches = [step for step in steps if re.match("SEARCH (b|bars) ", step)]
    # The last one returns data, of the blocks in which a run ends.
    assert all("USING COVERING INDEX bar_ends" in step for step in searches[:-1])
    assert len(searches) == 4


async def test_the_log_is_short_again_once_a_reader_that_stayed_open_has_gone(
    path: Path, market: MarketStore
) -> None:
    log_path = path.with_name(f"{path.name}-wal")
    await market.commit(make_full_batch())
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM changes").fetchone()
        with closing(sqlite3.connect(path)) as writer:
            writer.execute("CREATE TABLE filler (data BLOB)")
            for _ in range(5):
                writer.execute("INSERT INTO filler VALUES (zeroblob(5000000))")
                writer.commit()
    assert log_path.stat().st_size > 25_000_000
    # The writer checkpoints after its commits; the next one begins the log again.
    for step in range(1, 4):
        await market.commit(make_full_batch(NOW + step, step=step))
    assert log_path.stat().st_size <= 16 * 2**20


@pytest.mark.clause("access")
async def test_the_log_of_counted_calls_stays_short_as_they_are_logged(access: AccessStore) -> None:
    path = access._engine.path
    await access.create_key(HASH, "agent", NOW)
    for number in range(2000):
        await access.count_calls([make_call_group(HASH, NOW)], None, 10**6)
        if number % 100 == 0:
            await access.add_calls({1: [CALL]}, 100)
    # Without the second write it takes 8 MB.
    assert path.with_name(f"{path.name}-wal").stat().st_size < 6_000_000


@pytest.mark.clause("access")
async def test_a_long_log_is_begun_again_unless_a_reader_still_needs_it(
    access: AccessStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside calls that never pause, it grew to 600 MB."""
    # Less than makes SQLite shorten it by itself.
    monkeypatch.setattr(engine, "LONG_LOG_BYTES", 100_000)
    path = access._engine.path
    await access.create_key(HASH, "agent", NOW)

    async def write() -> int:
        for _ in range(50):
            await access.count_calls([make_call_group(HASH, NOW)], None, 10**6)
        await access.add_calls({1: [CALL]}, 100)
        return path.with_name(f"{path.name}-wal").stat().st_size

    before = await write()
    assert 100_000 < before == await write() == await write()
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM calls").fetchall()
        assert await write() <= before < await write()
    await write()
    assert await write() == await write()


@asynccontextmanager
async def trace_statements(access: AccessStore) -> AsyncIterator[list[str]]:
    """Yield the list of statements that a store's connections execute."""
    executed: list[str] = []
    held = access._engine
    await set_trace(held, executed.append)
    yield executed
    await set_trace(held, None)


async def set_trace(held: SqliteEngine, listener: Callable[[str], None] | None) -> None:
    held._direct.set_trace_callback(listener)
    for connection in (held._writer, held._reader):
        await connection.connection.set_trace_callback(listener)


@pytest.mark.clause("access")
@pytest.mark.parametrize("verb", [*DURABLE_CALLS, *FAST_CALLS])
async def test_keys_and_purchases_commit_to_the_disk_and_counts_do_not_wait_for_it(
    access: AccessStore, verb: str
) -> None:
    writer = access._engine._writer
    async with trace_statements(access) as executed:
        await (DURABLE_CALLS | FAST_CALLS)[verb](access)
    start = executed.index(next(line for line in executed if not line.startswith("PRAGMA")))
    assert ("PRAGMA synchronous = FULL" in executed[:start]) is (verb in DURABLE_CALLS), executed
    assert await fetch_value(writer, "PRAGMA synchronous") == 1


@pytest.mark.clause("access")
async def test_durability_settings_apply_inside_the_transaction(access: AccessStore) -> None:
    connections = access._engine
    for opened, synchronous in (
        (connections.begin_write(is_durable=True), 2),
        (connections.begin_write(), 1),
    ):
        async with opened as db:
            assert await fetch_value(db, "PRAGMA synchronous") == synchronous
            for name in ("foreign_keys", "recursive_triggers"):
                assert await fetch_value(db, f"PRAGMA {name}") == 1
    for pragma, value in (("synchronous", 1), ("foreign_keys", 1), ("wal_autocheckpoint", 0)):
        assert [tuple(row) for row in await connections.count(f"PRAGMA {pragma}")] == [(value,)]


@pytest.mark.clause("access")
async def test_a_transaction_that_fails_leaves_counts_fast_again(access: AccessStore) -> None:
    await access.create_key(HASH, "agent", NOW)
    with pytest.raises(StoreError):
        await access.create_key(HASH, "again", NOW)
    async with access._engine.begin_write() as db:
        assert await fetch_value(db, "PRAGMA synchronous") == 1


@pytest.mark.clause("access")
async def test_no_statement_of_a_request_scans_or_sorts_a_table(
    access: AccessStore,
) -> None:
    await access.create_claim(CLAIM)
    await access.redeem_claim(CLAIM, MEMBER, HASH, NOW)
    await access.record_attempt("checkout", [AttemptLimit("192.0.2.1", 20)], NOW, 600)
    async with trace_statements(access) as executed:
        for name, verb in REQUEST_CALLS.items():
            with suppress(StoreError):
                await verb(access)
            assert executed, name
            for step in list_steps(access._engine.path, executed):
                assert not step.startswith(("SCAN", "USE TEMP B-TREE")), (name, step)
            executed.clear()


def list_steps(path: Path, statements: Sequence[str]) -> Iterator[str]:
    """Yield the plan steps of statements, except for those of constant rows."""
    for sql in statements:
        if sql.strip().startswith(("SELECT", "INSERT", "UPDATE", "DELETE")):
            yield from (step for step in explain(path, sql) if not BROUGHT.fullmatch(step))


BROUGHT = re.compile(r"SCAN (\d+-ROW VALUES CLAUSE|(\d+ )?CONSTANT ROWS?)")


@pytest.mark.clause("access")
async def test_calls_interrupted_by_another_process_are_counted_once(access: AccessStore) -> None:
    await access.create_key(hash_name("member"), "member", 1)
    rival = sqlite3.connect(access._engine.path, timeout=0, check_same_thread=False)
    interrupted: list[str] = []

    def interrupt(statement: str) -> None:
        """Write before every second statement."""
        rival.rollback()
        if len(interrupted) % 2 == 0:
            with suppress(sqlite3.OperationalError):
                rival.execute("BEGIN IMMEDIATE")
        interrupted.append(statement)

    access._engine._direct.set_trace_callback(interrupt)
    with closing(rival):
        (decided,) = await access.count_calls(
            [CallGroup(hash_name("member"), 20_000, 5, NOON)], None, 3
        )
    assert decided == CountedGroup(3, "exhausted", 3, "member")


ROOT = Path(__file__).parents[3]
OPEN = "import sys; from pathlib import Path; from store.sqlite import schema as m; "
APPLIED = [(name,) for name in sqlite_migrations.MARKET_MIGRATIONS]
MIGRATE = OPEN + "m.migrate(Path(sys.argv[1]), m.MARKET_MIGRATIONS)"


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
    assert not any(part in message for part in ("secret", "\n"))
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


async def test_a_reader_writes_nothing_and_has_room_for_the_inner_pages(
    market: MarketStore, path: Path
) -> None:
    assert run_sql(path, "PRAGMA journal_mode") == [("wal",)]
    async with market._engine.begin_read() as reader:
        assert await fetch_value(reader, "PRAGMA cache_size") == -8000
        with pytest.raises(sqlite3.OperationalError):
            await reader.execute("DELETE FROM readings")
