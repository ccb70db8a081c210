"""The connections of a SQLite file."""

import os
import re
import sqlite3
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from store.errors import StoreError
from store.sql import market_reads as past
from store.sql.database import Lane, fetch_value
from store.sql.ledger_reads import LIST_ROWS
from store.sql.market_statements import LIST_BLOCKS_AT, LIST_LAST_BARS
from store.sql.market_store import MarketStore
from store.sqlite.engine import SqliteEngine, _connect, _connect_directly
from store.sqlite.schema import MARKET_MIGRATIONS
from tests.support.row_builders import NOW, list_changes, make_full_batch, run_sql
from tests.support.small_market import load_past
from tests.support.store_homes import SqliteHome, StoreHome

pytestmark = pytest.mark.clause("operation")


async def test_a_connection_whose_setup_fails_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "market.db"
    path.write_text("this is no database\n" * 100)
    # The exceptions hold their frames, and with them a connection that was not closed.
    with pytest.raises(StoreError, match="not a database") as direct_failure:
        _connect_directly(path)
    with pytest.raises(StoreError, match="not a database") as reader_failure:
        await _connect(path)
    assert direct_failure.tb is not None
    assert reader_failure.tb is not None
    assert str(path) not in list_open_files()
    with path.open():
        assert str(path) in list_open_files()


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
    """SQLite only: the tests parse its plans."""
    return SqliteHome(tmp_path)


BOARD = {"SCAN r", "SCAN a"}


def explain(connection: sqlite3.Connection, sql: str, values: Mapping[str, object]) -> list[str]:
    """Return the steps of a plan, without the numbers of its subqueries."""
    plan = connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)
    return [row[3].rstrip("0123456789").rstrip() for row in plan]


@pytest.mark.clause("feed")
@pytest.mark.usefixtures("market")
def test_closes_are_searched_by_index(path: Path) -> None:
    values = {"tickers": ",A,B,", "closed_at": NOW}
    with closing(sqlite3.connect(path)) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {LIST_BLOCKS_AT}", values).fetchall()
    tables = r"SCAN (bars|b)\b"
    assert [row[3] for row in plan if re.match(tables, row[3])] == []


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
    market: MarketStore, path: Path, recorded_statements: list[str]
) -> None:
    await market.commit(make_full_batch())
    await market.snapshot()
    await load_past(market, NOW)
    await market.progress()
    await market.commit_inputs(1)
    assert await list_changes(market)
    assert [row async for row in market.alerts()]
    of_rows = {sql for sql in recorded_statements if "changes" in sql or "alerts" in sql}
    # Those of the ledger have a connection of their own.
    of_rows.update(LIST_ROWS.values())
    assert len(of_rows) >= 6
    with closing(sqlite3.connect(path)) as connection:
        for sql in of_rows:
            steps = explain(connection, sql, {"after": 0, "until": NOW, "limit": 1})
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
async def test_the_past_is_searched_by_index_and_never_sorted(path: Path, name: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {PAST[name]}", [5]).fetchall()
    steps = [row[3] for row in plan]
    scanned = [step for step in steps if step.startswith("SCAN")]
    assert all(step.split()[1] in {"r", "a"} for step in scanned), (
        steps
    )  # as for the latest snapshot
    assert not any("TEMP B-TREE" in step for step in steps), steps
    assert any(step.startswith("SEARCH") for step in steps), steps


@pytest.mark.clause("feed")
@pytest.mark.usefixtures("market")
async def test_an_asset_is_read_by_its_key_and_a_commit_by_its_index(path: Path) -> None:
    plans = {
        "asset_id = 1 AND generation = 0 AND timeframe = 0 AND last_open > 0 ORDER BY last_open": (
            "PRIMARY KEY"
        ),
        "pass = 1": "INDEX bars_of_pass",
    }
    for condition, index in plans.items():
        plan = run_sql(path, f"EXPLAIN QUERY PLAN SELECT data FROM bars WHERE {condition}")
        assert len(plan) == 1
        assert plan[0][3].startswith(f"SEARCH bars USING {index}")


@pytest.mark.clause("feed")
async def test_the_last_bars_are_found_without_reading_the_data_of_others(
    market: MarketStore, path: Path
) -> None:
    await market.commit(make_full_batch())
    with closing(sqlite3.connect(path)) as connection:
        plan = connection.execute(f"EXPLAIN QUERY PLAN {LIST_LAST_BARS}", {"number": 1, "run_s": 0})
        searches = [row[3] for row in plan if re.match("SEARCH (b|bars) ", row[3])]
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
