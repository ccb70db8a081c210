"""The database itself refuses to rewrite history, since any program can open it.

Adding an indicator does not change the stored readings and rows of the others: tests of a store
without it run in a copy of the repository to which an indicator was added.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from store.sql.market_store import MarketStore
from store.store_errors import LockTakenError
from tests.store.conftest import OpenMarket
from tests.support.row_builders import (
    DAY_MS,
    NOW,
    make_alert,
    make_batch,
    make_change,
    make_full_batch,
)
from tests.support.signals_command import ROOT
from tests.support.store_homes import (
    REFUSED,
    RunSql,
    SqliteHome,
    StoreHome,
    read_tables,
    run_sql,
    take_lock_when_free,
)

pytestmark = pytest.mark.clause("store")

# By column: the change, and the condition that selects one row if it is needed.
MOVED = {
    "alerts": "price = {of}price + 1",
    "assets": "publish_from = {of}publish_from + 1",
    "bars": "pass = {of}pass + 1",
    "changes": "price = {of}price + 1",
    "clock": "market_time = {of}market_time - 1",
    "epochs": "reason = 'other'",
    "funding": "funding_rate = {of}funding_rate + 1",
    "log_leaves": "leaf = {of}leaf + 1",
    "log_tiles": "hashes = substr({of}hashes, 33)",
    "missing_bars": "count = {of}count + 1",
    "passes": "digest = {of}bars_digest",
    "sources": "listing = 'other'",
    "watermarks": "late = 0",
}
ATTACKS = (
    "UPDATE {table} SET {moved}",
    "DELETE FROM {table}",
    "INSERT INTO {table} SELECT * FROM {table} LIMIT 1",
)
SQLITE_ATTACKS = (
    *ATTACKS,
    "UPDATE OR REPLACE {table} SET {moved}",
    "REPLACE INTO {table} SELECT * FROM {table} LIMIT 1",
    "INSERT OR REPLACE INTO {table} SELECT * FROM {table} LIMIT 1",
    "INSERT INTO {table} SELECT * FROM {table} WHERE true LIMIT 1 "
    "ON CONFLICT DO UPDATE SET {moved}",
)
POSTGRES_ATTACKS = (
    *ATTACKS,
    "UPDATE ONLY {table} SET {moved}",
    "DELETE FROM {table} USING clock c",
    "WITH gone AS (DELETE FROM {table} RETURNING *) SELECT * FROM gone",
    "TRUNCATE {table} CASCADE",
    "TRUNCATE ONLY {table} RESTART IDENTITY CASCADE",
    "MERGE INTO {table} USING clock c ON true WHEN MATCHED THEN DELETE",
    "MERGE INTO {table} t USING clock c ON true WHEN MATCHED THEN UPDATE SET {moved_t}",
    "INSERT INTO {table} SELECT * FROM {table} LIMIT 1 "
    "ON CONFLICT ON CONSTRAINT {table}_pkey DO UPDATE SET {moved_own}",
)


def build_attacks(home: StoreHome, table: str) -> Iterator[str]:
    """Return statements for every way of an engine to rewrite a table."""
    moved = MOVED[table].format
    words = {"moved": moved(of=""), "moved_t": moved(of="t."), "moved_own": moved(of=f"{table}.")}
    for attack in SQLITE_ATTACKS if isinstance(home, SqliteHome) else POSTGRES_ATTACKS:
        yield attack.format(table=table, **words)


async def refuse(run: RunSql, sql: str) -> None:
    with pytest.raises(REFUSED):
        await run(sql)


async def assert_refused(home: StoreHome, *statements: str) -> None:
    """Assert that statements fail, also after settings that relax the session's checks."""
    before = await read_tables(home)
    for first in ((), home.relaxing_sql):
        async with home.open_plain(*first) as run:
            for sql in statements:
                await refuse(run, sql)
    assert await read_tables(home) == before


@pytest.mark.clause("1.31", "1.32")
@pytest.mark.parametrize("table", MOVED)
@pytest.mark.sampled(3)
async def test_a_stored_row_withstands_every_way_to_rewrite_it(
    filled: MarketStore, home: StoreHome, table: str
) -> None:
    await assert_refused(home, *build_attacks(home, table))


def build_insert(home: StoreHome, table: str, created_at: object, close_time: object) -> str:
    """Return an INSERT of a copy of the oldest row of a tier with some changed values."""
    rest = "NULL, -1, 1.0, 1" if table == "changes" else "action, 1.0"
    return (
        f"{home.insert_sql} {table} SELECT {created_at}, asset_id, indicator, timeframe, "
        f"{close_time}, epoch, {rest} FROM {table} ORDER BY created_at LIMIT 1"
    )


@pytest.mark.clause("1.31", "2.1.1")
@pytest.mark.parametrize("table", ["changes", "alerts"])
async def test_a_row_cannot_replace_one_of_its_id_or_precede_the_newest_of_either_tier(
    filled: MarketStore, home: StoreHome, table: str
) -> None:
    times = ["NULL", NOW + 3, NOW, 1, -5]
    replacing = build_insert(home, table, NOW + 99, "close_time")
    await assert_refused(home, replacing, *(build_insert(home, table, at, 1) for at in times))
    newer = {
        "changes": {"alerts": [make_alert(NOW + 9)]},
        "alerts": {"changes": [make_change(NOW + 9)]},
    }
    await filled.commit(make_batch(NOW + 9, **newer[table]))
    await assert_refused(home, build_insert(home, table, NOW + 9, 1))


async def test_a_new_key_cannot_replace_a_stored_epoch_or_asset(
    filled: MarketStore, home: StoreHome
) -> None:
    columns = "asset_id, timeframe, indicator, epoch, 9, 9, 9, 'other', 1"
    await assert_refused(
        home,
        f"{home.insert_sql} assets SELECT 99, ticker, 0, 1 FROM assets LIMIT 1",
        f"{home.insert_sql} assets SELECT id, 'NEW', 0, 1 FROM assets LIMIT 1",
        f"{home.insert_sql} epochs SELECT 99, {columns} FROM epochs LIMIT 1",
    )


async def test_a_commit_number_cannot_be_skipped(filled: MarketStore, home: StoreHome) -> None:
    names = "market_time, bars_digest, changes_digest, context_digest, digest"
    insert = f"INSERT INTO passes (number, {names}) SELECT"
    await assert_refused(home, f"{insert} 3, {names} FROM passes")
    await run_sql(home, f"{insert} 2, {names} FROM passes")


@pytest.mark.clause("1.32", "1.33", "1.34")
@pytest.mark.parametrize(("table", "days"), [("changes", 365), ("alerts", 90)])
async def test_a_row_may_be_deleted_from_the_age_of_retention_on(
    market: MarketStore, home: StoreHome, table: str, days: int
) -> None:
    edge, make_row = NOW - days * DAY_MS, {"changes": make_change, "alerts": make_alert}[table]
    await market.commit(make_batch(NOW, **{table: [make_row(edge - 1), make_row(edge)]}))
    await assert_refused(home, f"DELETE FROM {table} WHERE created_at = {edge}")
    await run_sql(home, f"DELETE FROM {table} WHERE created_at = {edge - 1}")
    assert await run_sql(home, f"SELECT created_at FROM {table}") == [(edge,)]


@pytest.mark.usefixtures("market")
async def test_without_a_clock_no_change_is_old(home: StoreHome) -> None:
    async with home.open_plain() as run:
        await run("INSERT INTO assets VALUES (1, 'BTC', 0, 1)")
        await run("INSERT INTO changes VALUES (1, 1, 0, 0, 0, 0, NULL, 1, 1.0, 1)")
    await assert_refused(home, "DELETE FROM changes")


HOLD = """
import asyncio, sys
from tests.support.store_homes import open_home

async def main():
    store = await open_home(sys.argv[1]).open_market()
    await store.lock()
    print(flush=True)
    await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""


@asynccontextmanager
async def hold_lock_elsewhere(home: StoreHome) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run another process that holds the lock until the block ends or it is killed."""
    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HOLD, home.address),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        await holder.stdout.readline()
        yield holder
    finally:
        if holder.returncode is None:
            holder.kill()
        await holder.communicate()


async def test_the_lock_refuses_a_second_holder_and_names_the_first(
    market: MarketStore, open_market: OpenMarket, home: StoreHome
) -> None:
    if isinstance(home, SqliteHome):
        # Of a process that no longer exists.
        (home.folder / "market.db.lock").write_text("1234567890123\n")
    await market.lock()
    await market.lock()
    second = await open_market()
    with pytest.raises(LockTakenError) as refusal:
        await second.lock()
    assert f"pid {os.getpid()}" in str(refusal.value)
    assert f"is computing on {second._engine.name}" in str(refusal.value)
    assert "\n" not in str(refusal.value)
    await market.close()
    await take_lock_when_free(second)


async def test_a_released_lock_can_be_acquired_again(
    market: MarketStore, open_market: OpenMarket
) -> None:
    for one in (market, await open_market(), market):
        await take_lock_when_free(one)
        await one.commit(make_full_batch(NOW, step=(await one.progress()).commit_count))
        await one.unlock()
        await one.unlock()


@pytest.mark.sampled(2)
@pytest.mark.prove
async def test_the_lock_dies_with_its_process(market: MarketStore, home: StoreHome) -> None:
    async with hold_lock_elsewhere(home) as holder:
        with pytest.raises(LockTakenError, match=f"pid {holder.pid}"):
            await market.lock()
        holder.send_signal(signal.SIGKILL)
        await holder.wait()
        await take_lock_when_free(market)
        await market.commit(make_full_batch())


FOLDERS = (
    *("schemas", "store", "access", "serving", "mcp_server", "rest_shim", "web", "compute"),
    *("service", "tests", "tools"),
)
NEW_FILES = {
    "momentum.py": "compute/indicators/momentum.py",
    "in_an_older_store.py": "tests/store/test_momentum.py",
}
# By file: an existing text, and the line to insert before it.
NEW_LINES = {
    "schemas/vocabulary.py": {
        "}\n# These have no rows": '    "momentum": (15, 16),\n',
    },
}


def copy_tree(parent: Path) -> Path:
    """Copy the repository, add an indicator to the copy and return its path."""
    tree = parent / "tree"
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tree)
    for name, path in NEW_FILES.items():
        shutil.copy(ROOT / "tests" / "doubles" / "momentum" / name, tree / path)
    for name, lines in NEW_LINES.items():
        text = (tree / name).read_text(encoding="utf-8")
        for place, line in lines.items():
            assert text.count(place) == 1
            text = text.replace(place, line + place)
        (tree / name).write_text(text, encoding="utf-8")
    return tree


@pytest.mark.prove
def test_an_indicator_is_added_by_a_file_and_one_line(tmp_path: Path):
    tree = copy_tree(tmp_path)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-k",
            "postgres",
            NEW_FILES["in_an_older_store.py"],
        ],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
