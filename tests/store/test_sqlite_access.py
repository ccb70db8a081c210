"""Keys on disk: hashes alone, revoked for good; how surely each verb commits, and how it reads."""

import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import pytest

from store import migrations
from store.access_rows import AccessRequestRow, Horizons, KeyRow, Notice
from store.protocol import StoreError
from store.sqlite_access import SqliteAccessStore
from store.sqlite_connections import Connections
from tests.store.rows import one_call, plainly
from tests.store.test_sqlite_purchases import CLAIM, MEMBER, NOW, SESSION

pytestmark = pytest.mark.clause("access")

HASH = bytes(range(32))
DAY_MS = 86_400_000
Verb = Callable[[SqliteAccessStore], Awaitable[object]]

REQUEST = AccessRequestRow("a@example.com", "Agent", None, "use", None, NOW, NOW)


async def test_keys_are_listed_oldest_first_without_a_mode_and_never_used(
    access: SqliteAccessStore,
) -> None:
    ids = [await access.create_key(bytes([number] * 32), "same", 9 - number) for number in (3, 1)]
    assert await access.list_keys() == [
        KeyRow(ids[0], "same", 6, None),
        KeyRow(ids[1], "same", 8, None),
    ]


async def test_a_key_is_revoked_once_and_for_good(access: SqliteAccessStore) -> None:
    key_id = await access.create_key(HASH, "agent", 5)
    assert await access.revoke_key(key_id, 7)
    assert await access.revoke_key(key_id, 9)
    assert await access.list_keys() == [KeyRow(key_id, "agent", 5, 7)]
    assert not await access.revoke_key(key_id + 1, 7)


async def test_a_key_knows_when_it_was_last_used(access: SqliteAccessStore) -> None:
    await access.create_key(HASH, "agent", 5)
    for at in (2 * DAY_MS + 7, DAY_MS, 2 * DAY_MS + 3):
        await access.count([one_call(HASH, at)], None, 10)
    (key,) = await access.list_keys()
    assert key.last_used_at == 2 * DAY_MS + 7


async def test_one_hash_belongs_to_one_key(access: SqliteAccessStore) -> None:
    await access.create_key(HASH, "agent", 5)
    with pytest.raises(StoreError):
        await access.create_key(HASH, "other", 6)
    assert len(await access.list_keys()) == 1


async def test_a_clear_key_cannot_be_stored_by_mistake(access: SqliteAccessStore) -> None:
    with pytest.raises(StoreError):
        await access.create_key(b"ek_clear", "agent", 5)


async def test_an_access_request_is_new_once_and_updated_after(access: SqliteAccessStore) -> None:
    assert await access.put_access_request(REQUEST)
    other = AccessRequestRow("b@example.com", None, None, None, None, NOW - 5, NOW - 5)
    assert await access.put_access_request(other)
    changed = AccessRequestRow("a@example.com", None, "Op", None, "9", NOW + 1, NOW + 1)
    assert not await access.put_access_request(changed)
    assert await access.list_access_requests() == [
        other,
        AccessRequestRow("a@example.com", None, "Op", None, "9", NOW, NOW + 1),
    ]


async def test_a_notice_replaces_the_last_of_its_name(access: SqliteAccessStore) -> None:
    for notice in (Notice("b", "1", 1), Notice("a", "2", 2), Notice("b", "3", 3)):
        await access.notice(notice)
    assert await access.notices() == [Notice("a", "2", 2), Notice("b", "3", 3)]


async def test_an_address_has_so_many_attempts_of_a_kind_in_any_window(
    access: SqliteAccessStore,
) -> None:
    async def at(time: int, kind: str = "checkout", address: str = "192.0.2.1") -> int | None:
        return await access.attempt(kind, address, time, 2, 100)

    assert [await at(0), await at(60), await at(99)] == [None, None, 100]
    assert await at(99, kind="access-request") is None
    assert await at(99, address="192.0.2.2") is None
    assert [await at(100), await at(101), await at(159)] == [None, 160, 160]
    assert [await at(160), await at(161)] == [None, 200]
    assert len(plainly_attempts(access)) == 6


def plainly_attempts(access: SqliteAccessStore) -> list[tuple[object, ...]]:
    return plainly(access._connections.path, "SELECT * FROM attempts")


async def test_pruning_keeps_each_keys_last_day_of_use_and_what_is_needed(
    access: SqliteAccessStore, tmp_path: Path
) -> None:
    rare, busy = bytes(32), HASH
    for key_hash in (rare, busy):
        await access.create_key(key_hash, "agent", 5)
    for day in (1, 2):
        await access.count([one_call(rare, day * DAY_MS)], None, 10)
    for day in (2, 9):
        await access.count([one_call(busy, day * DAY_MS)], None, 10)
    await access.mark_handled("evt_old", 10)
    await access.mark_handled("evt_new", 20)
    for at in (10, 20):
        await access.attempt("checkout", "192.0.2.1", at, 5, 100)
    pruned = await access.prune(Horizons(usage=8 * DAY_MS, unredeemed=0, events=20, attempts=20))
    assert pruned == 4
    path = tmp_path / "access.db"
    assert plainly(path, "SELECT key_id, day FROM usage ORDER BY key_id") == [(1, 2), (2, 9)]
    assert plainly(path, "SELECT id FROM events") == [("evt_new",)]
    assert plainly(path, "SELECT at FROM attempts") == [(20,)]


FOR_GOOD: dict[str, Verb] = {
    "create_key": lambda store: store.create_key(HASH, "agent", NOW),
    "revoke_key": lambda store: store.revoke_key(1, NOW),
    "create_claim": lambda store: store.create_claim(CLAIM),
    "redeem": lambda store: store.redeem(CLAIM, MEMBER, HASH, NOW),
    "end_membership": lambda store: store.end_membership(MEMBER, NOW, "deleted"),
    "mark_handled": lambda store: store.mark_handled("evt_1", NOW),
    "create_sandbox_session": lambda store: store.create_sandbox_session(SESSION),
    "settle_sandbox_session": lambda store: store.settle_sandbox_session(SESSION.id, "paid"),
    "put_access_request": lambda store: store.put_access_request(REQUEST),
}
FOR_NOW: dict[str, Verb] = {
    "count": lambda store: store.count([one_call(HASH, NOW)], None, 10),
    "attempt": lambda store: store.attempt("checkout", "192.0.2.1", NOW, 20, 600),
    "notice": lambda store: store.notice(Notice("seen", "", NOW)),
    "prune": lambda store: store.prune(Horizons(NOW, NOW, NOW, NOW)),
}


@asynccontextmanager
async def traced(access: SqliteAccessStore) -> AsyncIterator[list[str]]:
    """Yield what the connections of a store are asked meanwhile."""
    said: list[str] = []
    held = access._connections
    await tracing(held, said.append)
    yield said
    await tracing(held, None)


async def tracing(held: Connections, listener: Callable[[str], None] | None) -> None:
    held._direct.set_trace_callback(listener)
    for connection in (held._writer, held._reader):
        await connection.set_trace_callback(listener)


@pytest.mark.parametrize("verb", [*FOR_GOOD, *FOR_NOW])
async def test_keys_and_purchases_commit_to_the_disk_and_counts_do_not_wait_for_it(
    access: SqliteAccessStore, verb: str
) -> None:
    writer = access._connections._writer
    async with traced(access) as said:
        await (FOR_GOOD | FOR_NOW)[verb](access)
    begun = said.index(next(line for line in said if not line.startswith("PRAGMA")))
    assert ("PRAGMA synchronous = FULL" in said[:begun]) is (verb in FOR_GOOD), said
    assert list(await writer.execute_fetchall("PRAGMA synchronous")) == [(1,)]


async def test_what_is_asked_for_holds_inside_the_transaction(access: SqliteAccessStore) -> None:
    connections = access._connections
    for opened, synchronous in (
        (connections.writing_for_good(), 2),
        (connections.writing(), 1),
    ):
        async with opened as db:
            assert list(await db.execute_fetchall("PRAGMA synchronous")) == [(synchronous,)]
            assert list(await db.execute_fetchall("PRAGMA foreign_keys")) == [(1,)]
    for pragma, value in (("synchronous", 1), ("foreign_keys", 1), ("wal_autocheckpoint", 0)):
        asked = f"PRAGMA {pragma}"
        assert await connections.decided(lambda db, sql=asked: list(db.execute(sql))) == [(value,)]


async def test_a_transaction_that_fails_leaves_counts_fast_again(access: SqliteAccessStore) -> None:
    await access.create_key(HASH, "agent", NOW)
    with pytest.raises(StoreError):
        await access.create_key(HASH, "again", NOW)
    async with access._connections.writing() as db:
        assert list(await db.execute_fetchall("PRAGMA synchronous")) == [(1,)]


WAITED_FOR: dict[str, Verb] = {
    **{name: verb for name, verb in (FOR_GOOD | FOR_NOW).items() if name != "prune"},
    "count, refused": lambda store: store.count(
        [one_call(bytes(32), NOW)._replace(calls=3)], "live", 10
    ),
    "attempt, refused": lambda store: store.attempt("checkout", "192.0.2.1", NOW, 1, 600),
    "find_claim": lambda store: store.find_claim(CLAIM.token_hash),
    "find_sandbox_session": lambda store: store.find_sandbox_session(SESSION.id),
    "is_handled": lambda store: store.is_handled("evt_1"),
    "memberships of a customer": lambda store: store.memberships("stripe", "cus_1"),
}


async def test_nothing_that_a_request_waits_for_scans_or_sorts_a_table(
    access: SqliteAccessStore,
) -> None:
    await access.create_claim(CLAIM)
    await access.redeem(CLAIM, MEMBER, HASH, NOW)
    await access.attempt("checkout", "192.0.2.1", NOW, 20, 600)
    async with traced(access) as said:
        for name, verb in WAITED_FOR.items():
            with suppress(StoreError):
                await verb(access)
            assert said, name
            for step in plan(access._connections.path, said):
                assert not step.startswith(("SCAN", "USE TEMP B-TREE")), (name, step)
            said.clear()


def plan(path: Path, statements: Sequence[str]) -> Iterator[str]:
    """Yield the steps by which statements are run, but for the rows that they bring along."""
    with closing(sqlite3.connect(path)) as db:
        for sql in statements:
            if sql.strip().startswith(("SELECT", "INSERT", "UPDATE", "DELETE")):
                steps = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {sql}")]
                yield from (step for step in steps if not BROUGHT.fullmatch(step))


BROUGHT = re.compile(r"SCAN (arrived|\d+-ROW VALUES CLAUSE|(\d+ )?CONSTANT ROWS?)")


async def test_keys_of_the_first_schema_live_on_with_their_ids_and_a_copy_is_made(
    tmp_path: Path,
) -> None:
    path = tmp_path / "access.db"
    migrations.migrate(path, migrations.ACCESS_MIGRATIONS[:1])
    with closing(sqlite3.connect(path)) as db:
        for key in ((3, HASH, "old", 5, None), (7, bytes(32), "gone", 6, 9)):
            db.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?)", key)
        db.commit()
    store = await SqliteAccessStore.open(path)
    try:
        assert await store.list_keys() == [KeyRow(3, "old", 5, None), KeyRow(7, "gone", 6, 9)]
        (counted, refused) = await store.count(
            [one_call(HASH, NOW), one_call(bytes(32), NOW)], "live", 10
        )
        assert (counted.verdict, refused.verdict) == ("counted", "revoked")
        assert await store.create_key(bytes([1] * 32), "new", 9) == 8
    finally:
        await store.close()
    copy = tmp_path / "access.db.before-access_0002"
    assert plainly(copy, "SELECT id, key_hash, label FROM keys") == [
        (3, HASH, "old"),
        (7, bytes(32), "gone"),
    ]
    assert plainly(copy, "SELECT name FROM migrations") == [("access_0001",)]
    assert plainly(path, "PRAGMA foreign_key_check") == []


async def test_keys_survive_reopening(access: SqliteAccessStore, tmp_path: Path) -> None:
    await access.create_key(HASH, "agent", 5)
    await access.close()
    reopened = await SqliteAccessStore.open(tmp_path / "access.db")
    assert len(await reopened.list_keys()) == 1
    await reopened.close()
    assert plainly(tmp_path / "access.db", "SELECT key_hash FROM keys") == [(HASH,)]
