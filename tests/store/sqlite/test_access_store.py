"""Durability of writes on SQLite, query plans, and counts beside another process."""

import re
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import pytest

from store.access_rows import AttemptLimit, CallGroup, CountedGroup
from store.errors import StoreError
from store.sql.access_store import AccessStore
from store.sql.database import fetch_value
from store.sqlite.engine import SqliteEngine
from tests.store.sql.test_key_store import NOON, hash_name
from tests.store.sql.test_purchase_store import CLAIM, MEMBER, NOW
from tests.support.access_store_calls import DURABLE_CALLS, FAST_CALLS, HASH, REQUEST_CALLS
from tests.support.store_homes import SqliteHome, StoreHome

pytestmark = pytest.mark.clause("access")


@pytest.fixture
def home(tmp_path: Path) -> StoreHome:
    """SQLite only: the tests inspect its file."""
    return SqliteHome(tmp_path)


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


async def test_durability_settings_apply_inside_the_transaction(access: AccessStore) -> None:
    connections = access._engine
    for opened, synchronous in (
        (connections.begin_durable_write(), 2),
        (connections.begin_write(), 1),
    ):
        async with opened as db:
            assert await fetch_value(db, "PRAGMA synchronous") == synchronous
            assert await fetch_value(db, "PRAGMA foreign_keys") == 1
    for pragma, value in (("synchronous", 1), ("foreign_keys", 1), ("wal_autocheckpoint", 0)):
        statement = f"PRAGMA {pragma}"
        assert [tuple(row) for row in await connections.count(statement)] == [(value,)]


async def test_a_transaction_that_fails_leaves_counts_fast_again(access: AccessStore) -> None:
    await access.create_key(HASH, "agent", NOW)
    with pytest.raises(StoreError):
        await access.create_key(HASH, "again", NOW)
    async with access._engine.begin_write() as db:
        assert await fetch_value(db, "PRAGMA synchronous") == 1


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
            for step in explain(access._engine.path, executed):
                assert not step.startswith(("SCAN", "USE TEMP B-TREE")), (name, step)
            executed.clear()


def explain(path: Path, statements: Sequence[str]) -> Iterator[str]:
    """Yield the plan steps of statements, except for those of constant rows."""
    with closing(sqlite3.connect(path)) as db:
        for sql in statements:
            if sql.strip().startswith(("SELECT", "INSERT", "UPDATE", "DELETE")):
                steps = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}")]
                yield from (step for step in steps if not BROUGHT.fullmatch(step))


BROUGHT = re.compile(r"SCAN (\d+-ROW VALUES CLAUSE|(\d+ )?CONSTANT ROWS?)")


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
