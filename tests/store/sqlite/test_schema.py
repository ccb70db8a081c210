"""Opening and migrating a file, and the errors if that is impossible."""

import asyncio
import os
import shutil
import sqlite3
import sys
import threading
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

from store.bar_blocks import pack_block
from store.digest import digest_commit
from store.errors import StoreError
from store.sql.database import fetch_value
from store.sql.market_store import MarketStore
from store.sqlite import schema as sqlite_migrations
from store.sqlite.access_store import open_sqlite_access
from store.sqlite.market_store import open_sqlite_market
from tests.store.conftest import OpenMarket
from tests.support.row_builders import (
    NOW,
    make_alert,
    make_bar,
    make_batch,
    make_blocks,
    make_change,
    make_full_batch,
    make_query,
    read_tables,
    run_sql,
)
from tests.support.store_homes import SqliteHome, StoreHome

pytestmark = pytest.mark.clause("store")

ROOT = Path(__file__).parents[3]
OPEN = "import sys; from pathlib import Path; from store.sqlite import schema as m; "
APPLIED = [(name,) for name in sqlite_migrations.MARKET_MIGRATIONS]
INDEXES = """
SELECT name FROM sqlite_schema
WHERE type = 'index' AND tbl_name IN ('changes', 'alerts') AND sql IS NOT NULL
"""
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
    for name in sqlite_migrations.MARKET_MIGRATIONS:
        shutil.copy(ROOT / "store" / "sqlite" / "migrations" / f"{name}.sql", migrations)
    added = "CREATE TABLE added (id INTEGER PRIMARY KEY) STRICT;"
    (migrations / "market_9999.sql").write_text(added)
    monkeypatch.setattr(sqlite_migrations, "files", lambda _: package)
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


async def test_a_database_of_a_newer_version_is_refused(market: MarketStore, path: Path) -> None:
    run_sql(path, "INSERT INTO migrations VALUES ('market_9999')")
    await assert_refused(path, "newer.*market_9999")


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


async def test_a_database_from_before_the_alerts_tier_keeps_its_rows_and_its_chain(
    open_market: OpenMarket, path: Path
) -> None:
    sqlite_migrations.migrate(path, ["market_0001"])
    nothing, link = sha256(b"").digest(), NOW.to_bytes(8, "big")
    head = sha256(bytes(32) + link + nothing + nothing).digest()
    run_sql(path, "INSERT INTO clock (id, market_time) VALUES (1, ?)", [NOW])
    run_sql(
        path,
        "INSERT INTO passes VALUES (1, ?, NULL, NULL, NULL, ?, ?, ?)",
        [NOW, nothing, nothing, head],
    )
    store = await open_market()
    (old,) = await store.commits()
    assert (old.digest, old.alerts_digest) == (head, None)
    await store.commit(make_full_batch(NOW + 1))
    _, new = await store.commits()
    digests = new.bars_digest, new.changes_digest, new.alerts_digest
    assert new.digest == digest_commit(head, NOW + 1, *digests)


async def test_a_database_with_the_former_indexes_of_the_feed_shows_the_same_feed(
    open_market: OpenMarket, path: Path
) -> None:
    sqlite_migrations.migrate(path, sqlite_migrations.MARKET_MIGRATIONS[:3])
    run_sql(path, "INSERT INTO assets VALUES (1, 'BTC', 0)")
    run_sql(path, f"INSERT INTO changes VALUES ({NOW}, 1, 4, 0, {NOW}, 0, NULL, 1, 0.3, 1)")
    run_sql(path, f"INSERT INTO alerts VALUES ({NOW + 1}, 1, 6, 1, {NOW + 1}, 0, 0, 0.3)")
    store = await open_market()
    assert await store.merged_feed(make_query(ticker="BTC", direction=1), 0) == [
        make_alert(NOW + 1),
        make_change(NOW),
    ]
    assert set(run_sql(path, INDEXES)) == {
        (name,) for name in ("feed_all", "feed_kind", "cell", "alerts_kind", "alerts_cell")
    }


@pytest.mark.clause("live")
async def test_bars_of_an_old_database_are_of_revision_0(
    open_market: OpenMarket, path: Path
) -> None:
    sqlite_migrations.migrate(path, sqlite_migrations.MARKET_MIGRATIONS[:4])
    (given,) = make_blocks(make_bar(), make_bar(open_time=3600))
    run_sql(path, "INSERT INTO assets VALUES (1, 'BTC', 0)")
    first, last, count, data = pack_block(given)
    row = [last, first, count, 7, data]
    run_sql(path, "INSERT INTO bars VALUES (1, 0, ?, ?, ?, ?, ?)", row)
    store = await open_market()
    (held,) = await store.bars()
    assert (held.revision, list(held.iter_rows())) == (0, list(given.iter_rows()))
    assert await store.revisions() == {}
    assert run_sql(path, "SELECT * FROM bars") == [(1, 0, 0, *row)]
    with pytest.raises(sqlite3.IntegrityError):
        run_sql(path, "UPDATE bars SET pass = 8")
    await store.commit(make_batch(bars=make_blocks(make_bar(open_time=7200))))
    assert len(await store.bars()) == 1


def test_a_new_database_takes_all_migrations_without_a_copy(
    path: Path, added_migration: tuple[str, ...]
) -> None:
    sqlite_migrations.migrate(path, added_migration)
    sqlite_migrations.migrate(path, added_migration)
    assert run_sql(path, "SELECT name FROM migrations") == [*APPLIED, ("market_9999",)]
    assert not list(path.parent.glob("*.before-*"))


def test_a_migration_that_fails_midway_leaves_the_file_as_it_was(
    path: Path, added_migration: tuple[str, ...], tmp_path: Path
) -> None:
    sqlite_migrations.migrate(path, sqlite_migrations.MARKET_MIGRATIONS)
    broken = "CREATE TABLE added (id INTEGER);\nINSERT INTO missing VALUES (1);\n"
    (tmp_path / "package" / "migrations" / "market_9999.sql").write_text(broken)
    with pytest.raises(StoreError, match="no such table"):
        sqlite_migrations.migrate(path, added_migration)
    assert run_sql(path, "SELECT name FROM migrations") == APPLIED
    assert not run_sql(path, "SELECT name FROM sqlite_schema WHERE name = 'added'")


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
        assert await fetch_value(reader, "PRAGMA cache_size") == -32000
        with pytest.raises(sqlite3.OperationalError):
            await reader.execute("DELETE FROM readings")
