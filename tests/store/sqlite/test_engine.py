"""The connections of a SQLite file: durability, query plans, and counts beside another process."""

import os
import re
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from store.access_rows import AttemptLimit, CallGroup, CountedGroup
from store.errors import StoreError
from store.sql import market_reads as past
from store.sql.access_store import AccessStore
from store.sql.database import Lane, fetch_value
from store.sql.ledger_reads import LIST_ROWS
from store.sql.market_statements import LIST_BLOCKS_AT, LIST_LAST_BARS
from store.sql.market_store import MarketStore
from store.sqlite.engine import SqliteEngine, _connect, _connect_directly
from store.sqlite.schema import MARKET_MIGRATIONS
from tests.store.sql.test_key_store import NOON, hash_name
from tests.store.sql.test_purchase_store import CLAIM, MEMBER
from tests.support.access_store_calls import DURABLE_CALLS, FAST_CALLS, HASH, REQUEST_CALLS
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
            assert await fetch_value(db, "PRAGMA foreign_keys") == 1
    for pragma, value in (("synchronous", 1), ("foreign_keys", 1), ("wal_autocheckpoint", 0)):
        statement = f"PRAGMA {pragma}"
        assert [tuple(row) for row in await connections.count(statement)] == [(value,)]


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
