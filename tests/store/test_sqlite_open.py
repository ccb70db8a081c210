"""Opening, migrating and locking a file; what the operator is told when it can't be done."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import date
from hashlib import sha256
from pathlib import Path

import pytest

from schemas.coverage import Coverage, CoveredAsset, CoveredIndicator
from store import migrations
from store.digest import chain_digest
from store.protocol import StoreError
from store.sqlite import SqliteMarketStore
from store.sqlite_access import SqliteAccessStore
from store.sqlite_bars import packed
from tests.store.rows import NOW, alert, bar, blocks, change, content, full, plainly, query, work

pytestmark = pytest.mark.clause("store")

OpenMarket = Callable[[Path], Awaitable[SqliteMarketStore]]

ROOT = Path(__file__).parents[2]
OPEN = "import sys; from pathlib import Path; from store import migrations as m; "
APPLIED = [(name,) for name in migrations.MARKET_MIGRATIONS]
INDEXES = """
SELECT name FROM sqlite_schema
WHERE type = 'index' AND tbl_name IN ('changes', 'alerts') AND sql IS NOT NULL
"""
MIGRATE = OPEN + "m.migrate(Path(sys.argv[1]), m.MARKET_MIGRATIONS)"


@pytest.fixture
def next_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Package data as the next version of the code would have it."""
    package = tmp_path / "package"
    package.mkdir()
    for name in migrations.MARKET_MIGRATIONS:
        shutil.copy(ROOT / "store" / f"{name}.sql", package)
    (package / "market_9999.sql").write_text("CREATE TABLE added (id INTEGER PRIMARY KEY) STRICT;")
    monkeypatch.setattr(migrations, "files", lambda _: package)
    return (*migrations.MARKET_MIGRATIONS, "market_9999")


async def assert_refused(path: Path, match: str) -> None:
    with pytest.raises(StoreError, match=match) as refusal:
        await SqliteMarketStore.open(path)
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


async def test_another_programs_database_is_refused_and_left_alone(path: Path) -> None:
    plainly(path, "CREATE TABLE other (id INTEGER)")
    await assert_refused(path, "not a database of signals")
    assert plainly(path, "SELECT name FROM sqlite_schema") == [("other",)]


async def test_a_database_of_a_newer_version_is_refused(
    market: SqliteMarketStore, path: Path
) -> None:
    plainly(path, "INSERT INTO migrations VALUES ('market_9999')")
    await assert_refused(path, "newer.*market_9999")


async def test_an_access_database_is_no_market_database(tmp_path: Path) -> None:
    store = await SqliteAccessStore.open(tmp_path / "access.db")
    await store.close()
    await assert_refused(tmp_path / "access.db", "access_0001")


async def test_an_empty_file_counts_as_new(open_market: OpenMarket, empty: Path) -> None:
    await (await open_market(empty)).commit(work())
    assert plainly(empty, "SELECT name FROM migrations") == APPLIED
    assert not list(empty.parent.glob("*.before-*"))


async def test_a_database_with_content_is_copied_before_it_is_migrated(
    market: SqliteMarketStore, path: Path, next_migration: tuple[str, ...]
) -> None:
    await market.commit(full())
    before = content(path)
    migrations.migrate(path, next_migration)
    copy = path.with_name("market.db.before-market_9999")
    assert content(path) == content(copy) == before
    assert plainly(copy, "SELECT name FROM migrations") == APPLIED
    assert plainly(path, "SELECT name FROM migrations") == [*APPLIED, ("market_9999",)]
    assert not list(path.parent.glob("*.unfinished*"))


async def test_a_database_from_before_the_alerts_tier_keeps_its_rows_and_its_chain(
    open_market: OpenMarket, path: Path
) -> None:
    migrations.migrate(path, ["market_0001"])
    nothing, link = sha256(b"").digest(), NOW.to_bytes(8, "big")
    head = sha256(bytes(32) + link + nothing + nothing).digest()
    plainly(path, "INSERT INTO clock (id, market_time) VALUES (1, ?)", [NOW])
    plainly(
        path,
        "INSERT INTO passes VALUES (1, ?, NULL, NULL, NULL, ?, ?, ?)",
        [NOW, nothing, nothing, head],
    )
    store = await open_market(path)
    (old,) = await store.passes()
    assert (old.digest, old.alerts_digest) == (head, None)
    await store.commit(full(NOW + 1))
    _, new = await store.passes()
    digests = new.bars_digest, new.changes_digest, new.alerts_digest
    assert new.digest == chain_digest(head, NOW + 1, *digests)


async def test_a_database_with_the_former_indexes_of_the_feed_shows_the_same_feed(
    open_market: OpenMarket, path: Path
) -> None:
    migrations.migrate(path, migrations.MARKET_MIGRATIONS[:3])
    plainly(path, "INSERT INTO assets VALUES (1, 'BTC', 0)")
    plainly(path, f"INSERT INTO changes VALUES ({NOW}, 1, 4, 0, {NOW}, 0, NULL, 1, 0.3, 1)")
    plainly(path, f"INSERT INTO alerts VALUES ({NOW + 1}, 1, 6, 1, {NOW + 1}, 0, 0, 0.3)")
    store = await open_market(path)
    assert await store.merged_feed(query(ticker="BTC", direction=1), 0) == [
        alert(NOW + 1),
        change(NOW),
    ]
    assert set(plainly(path, INDEXES)) == {
        (name,) for name in ("feed_all", "feed_kind", "cell", "alerts_kind", "alerts_cell")
    }


@pytest.mark.clause("live")
async def test_the_bars_of_a_database_from_before_are_of_generation_0(
    open_market: OpenMarket, path: Path
) -> None:
    migrations.migrate(path, migrations.MARKET_MIGRATIONS[:4])
    (given,) = blocks(bar(), bar(open_time=3600))
    plainly(path, "INSERT INTO assets VALUES (1, 'BTC', 0)")
    first, last, count, data = packed(given)
    row = [last, first, count, 7, data]
    plainly(path, "INSERT INTO bars VALUES (1, 0, ?, ?, ?, ?, ?)", row)
    store = await open_market(path)
    (held,) = await store.bars()
    assert (held.generation, list(held.rows())) == (0, list(given.rows()))
    assert await store.generations() == {}
    assert plainly(path, "SELECT * FROM bars") == [(1, 0, 0, *row)]
    with pytest.raises(sqlite3.IntegrityError):
        plainly(path, "UPDATE bars SET pass = 8")
    await store.commit(work(bars=blocks(bar(open_time=7200))))
    assert len(await store.bars()) == 1


def test_a_new_database_takes_all_migrations_without_a_copy(
    path: Path, next_migration: tuple[str, ...]
) -> None:
    migrations.migrate(path, next_migration)
    migrations.migrate(path, next_migration)
    assert plainly(path, "SELECT name FROM migrations") == [*APPLIED, ("market_9999",)]
    assert not list(path.parent.glob("*.before-*"))


def test_a_migration_that_fails_midway_leaves_the_file_as_it_was(
    path: Path, next_migration: tuple[str, ...], tmp_path: Path
) -> None:
    migrations.migrate(path, migrations.MARKET_MIGRATIONS)
    broken = "CREATE TABLE added (id INTEGER);\nINSERT INTO missing VALUES (1);\n"
    (tmp_path / "package" / "market_9999.sql").write_text(broken)
    with pytest.raises(StoreError, match="no such table"):
        migrations.migrate(path, next_migration)
    assert plainly(path, "SELECT name FROM migrations") == APPLIED
    assert not plainly(path, "SELECT name FROM sqlite_schema WHERE name = 'added'")


async def test_processes_that_start_together_all_find_a_migrated_file(path: Path) -> None:
    starting = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", MIGRATE, str(path), cwd=ROOT)
        for _ in range(4)
    ]
    assert [await process.wait() for process in starting] == [0] * 4
    assert plainly(path, "SELECT name FROM migrations") == APPLIED


async def test_the_file_is_opened_with_its_pragmas(market: SqliteMarketStore, path: Path) -> None:
    assert plainly(path, "PRAGMA journal_mode") == [("wal",)]
    async with market._connections.writing() as writer:
        for name, value in (("synchronous", 1), ("foreign_keys", 1), ("recursive_triggers", 1)):
            assert list(await writer.execute_fetchall(f"PRAGMA {name}")) == [(value,)]
    async with market._connections.reading() as reader:
        assert list(await reader.execute_fetchall("PRAGMA cache_size")) == [(-32000,)]
        with pytest.raises(sqlite3.OperationalError):
            await reader.execute_fetchall("DELETE FROM readings")


@pytest.fixture
def stale_lock(path: Path) -> None:
    path.with_name(f"{path.name}.lock").write_text("1234567890123\n")


@pytest.mark.usefixtures("stale_lock")
async def test_the_lock_refuses_a_second_holder_and_names_the_first(
    market: SqliteMarketStore, open_market: OpenMarket, path: Path
) -> None:
    market.lock()
    market.lock()
    second = await open_market(path)
    expected = f"another signals process (pid {os.getpid()}) is computing on {path}"
    with pytest.raises(StoreError) as refusal:
        second.lock()
    assert str(refusal.value) == expected
    await market.close()
    second.lock()


async def test_the_lock_dies_with_its_process(market: SqliteMarketStore, path: Path) -> None:
    hold = OPEN + "from store.sqlite import _lock; _lock(Path(sys.argv[1])); print(); input()"
    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", hold, str(path)),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    await holder.stdout.readline()
    with pytest.raises(StoreError, match=f"pid {holder.pid}"):
        market.lock()
    holder.kill()
    await holder.communicate()
    market.lock()


async def test_a_store_knows_one_source_for_good(market: SqliteMarketStore) -> None:
    assert (await market.progress()).source is None
    assert await market.adopt_source("files:/bars", NOW) == NOW
    assert await market.adopt_source("files:/bars", NOW + 1) == NOW
    with pytest.raises(StoreError, match="holds the bars of files:/bars"):
        await market.adopt_source("simulated", NOW)
    assert (await market.progress()).source == "files:/bars"


def covering(recorded_until: int | None) -> Coverage:
    return Coverage(
        published_at=NOW,
        source="recorded",
        recorded_until=recorded_until,
        assets=(CoveredAsset(ticker="BTC", name="B", asset_class="crypto", timeframes=("1h",)),),
        indicators=(CoveredIndicator(id="enzo", name="Enzo", logged=True),),
        renamed_on=date(2026, 7, 1),
    )


async def test_published_coverage_is_in_the_next_snapshot(market: SqliteMarketStore) -> None:
    assert (await market.snapshot()).coverage is None
    for recorded_until in (None, NOW):
        await market.publish_coverage(covering(recorded_until))
        assert (await market.snapshot()).coverage == covering(recorded_until)


async def test_what_is_covered_and_never_came_is_late_where_more_may_come(
    market: SqliteMarketStore,
) -> None:
    await market.publish_coverage(covering(recorded_until=NOW))
    assert (await market.snapshot()).late == ()
    await market.publish_coverage(covering(recorded_until=None))
    assert (await market.snapshot()).late == ("BTC",)
    await market.commit(work(bars=blocks(bar("BTC"))))
    assert (await market.snapshot()).late == ()
