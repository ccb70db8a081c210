"""A process that lost the compute lock commits nothing more; its successor continues.

Features of PostgreSQL only: polled versions, and errors for wrong URLs and versions.
"""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from store.access_rows import SignInRow
from store.digest import GENESIS, digest_commit
from store.opening import open_postgres_access, open_postgres_market
from store.sql.access_store import AccessStore
from store.sql.market_store import MarketStore
from store.store_errors import LockTakenError, StoreError
from tests.conftest import MAJORS
from tests.store.conftest import OpenMarket
from tests.store.sql.test_purchase_store import CLAIM
from tests.support.postgres.server import cut_sessions
from tests.support.row_builders import (
    NOW,
    list_changes,
    list_commits,
    make_batch,
    make_full_batch,
)
from tests.support.store_homes import (
    DEADLINE_S,
    PostgresHome,
    run_sql,
    take_lock_when_free,
    wait_for_version,
)

pytestmark = [
    pytest.mark.clause("store"),
    pytest.mark.parametrize("new_home", MAJORS, indirect=True),
]

ROOT = Path(__file__).parents[3]
# More rows than the driver buffers before it sends the first part of a COPY.
AT_ONCE = 600_000
HALTED_MIDWAY = """
import asyncio, sys
from dataclasses import replace
from store.store_errors import StoreError
from tests.support.store_homes import open_home
from tests.support.row_builders import NOW, make_carry, make_full_batch

class Halting(list):
    reads = 0
    def __iter__(self):
        self.reads += 1
        if self.reads == 2:
            print("midway", flush=True)
            sys.stdin.readline()
        return super().__iter__()

async def tell(verb):
    try:
        await verb
        print("done", flush=True)
    except StoreError as error:
        print(type(error).__name__, flush=True)

async def main():
    store = await open_home(sys.argv[1]).open_market()
    await store.lock()
    await store.commit(make_full_batch())
    halting = replace(make_full_batch(NOW + 1, step=1), carries=Halting([make_carry()]))
    await tell(store.commit(halting))
    await tell(store.commit(make_full_batch(NOW + 1, step=1)))
    try:
        store.check_lock()
        print("holds", flush=True)
    except StoreError as error:
        print(type(error).__name__, flush=True)
    await tell(store.lock())

asyncio.run(main())
"""


async def assert_whole(store: MarketStore, passes: int) -> None:
    """Assert that the digest chain and the order of rows are intact."""
    digest = GENESIS
    chain = await list_commits(store)
    for row in chain:
        parts = row.bars_digest, row.changes_digest, row.alerts_digest, row.context_digest
        digest = digest_commit(digest, row.market_time, *parts)
        assert digest == row.digest
    assert [row.number for row in chain] == list(range(1, passes + 1))
    created = [row.created_at for row in await list_changes(store)]
    created += [row.created_at async for row in store.alerts()]
    assert sorted(created) == [NOW + 10 * step + n for step in range(passes) for n in range(4)]
    assert (await store.audit_reads.load_market()).unreferenced == 0


@pytest.mark.prove
async def test_a_holder_stopped_during_a_commit_loses_the_lock_and_the_commit(
    market: MarketStore, home: PostgresHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.postgres.market_engine.LEASE_S", 0.1)
    holder = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", HALTED_MIDWAY, home.address),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert await holder.stdout.readline() == b"midway\n"
        holder.send_signal(signal.SIGSTOP)
        await take_lock_when_free(market)
        await market.commit(make_full_batch(NOW + 1, step=1))
        holder.send_signal(signal.SIGCONT)
        output, _ = await asyncio.wait_for(holder.communicate(b"\n"), DEADLINE_S)
    finally:
        if holder.returncode is None:
            holder.kill()
            await holder.communicate()
    assert output.split() == [b"LockTakenError"] * 4
    await market.commit(make_full_batch(NOW + 2, step=2))
    await assert_whole(market, passes=3)


async def contend(store: MarketStore, over_s: float) -> None:
    """Try to acquire a lock for `over_s` seconds and fail each time."""
    began = asyncio.get_running_loop().time()
    while asyncio.get_running_loop().time() < began + over_s:
        with pytest.raises(LockTakenError):
            await store.lock()
        await asyncio.sleep(over_s / 20)


@pytest.mark.parametrize(
    ("lease_s", "beat_s"), [(1.5, 0.02), pytest.param(6.0, 1.5, marks=pytest.mark.prove)]
)
async def test_a_live_holder_keeps_the_lock_for_many_leases(
    market: MarketStore,
    open_market: OpenMarket,
    monkeypatch: pytest.MonkeyPatch,
    lease_s: float,
    beat_s: float,
) -> None:
    monkeypatch.setattr("store.postgres.market_engine.LEASE_S", lease_s)
    monkeypatch.setattr("store.postgres.market_engine.HEARTBEAT_S", beat_s)
    await market.lock()
    await contend(await open_market(), 2.2 * lease_s)
    await market.commit(make_full_batch())


async def test_a_holder_that_sends_rows_for_longer_than_a_lease_keeps_the_lock(
    market: MarketStore, open_market: OpenMarket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.postgres.market_engine.LEASE_S", 0.5)
    await market.lock()
    contending = asyncio.create_task(contend(await open_market(), 1.1))

    async def rows() -> AsyncIterator[tuple[str, str]]:
        number = 0
        while not contending.done():
            yield f"row {number}", "x" * AT_ONCE
            number += 1
            await asyncio.sleep(0.02)

    async with market._engine.begin_compute_write() as db:
        await db.connection.copy_records_to_table("facts", records=rows())
    await contending


async def test_a_holder_that_lost_its_session_commits_only_after_locking_again(
    market: MarketStore, home: PostgresHome
) -> None:
    await market.lock()
    await market.commit(make_full_batch())
    await cut_sessions(home.url)
    for _ in range(2):
        with pytest.raises(StoreError):
            await market.commit(make_full_batch(NOW + 1, step=1))
    await market.lock()
    await market.commit(make_full_batch(NOW + 1, step=1))
    await assert_whole(market, passes=2)


async def poll_lock(store: MarketStore) -> None:
    while True:
        store.check_lock()
        await asyncio.sleep(0.005)


async def test_a_process_notices_between_commits_that_it_lost_the_lock(
    market: MarketStore, home: PostgresHome
) -> None:
    market.check_lock()  # it never locked
    await market.lock()
    market.check_lock()
    await cut_sessions(home.url)
    with pytest.raises(LockTakenError, match="its session has ended"):
        await asyncio.wait_for(poll_lock(market), DEADLINE_S)
    await market.lock()
    market.check_lock()


async def write_until(store: MarketStore, fault: Awaitable[None]) -> None:
    """Start a commit as the compute process and await `fault` before it ends."""
    async with store._engine.begin_compute_write() as db:
        await db.insert("facts", "key, value", [("half", "written")])
        await fault


async def test_a_session_lost_during_a_commit_leaves_no_rows(
    market: MarketStore, open_market: OpenMarket, home: PostgresHome
) -> None:
    await market.lock()
    await market.commit(make_full_batch())
    with pytest.raises(StoreError):
        await write_until(market, cut_sessions(home.url))
    second = await open_market()
    await take_lock_when_free(second)
    with pytest.raises(StoreError):
        await market.commit(make_full_batch(NOW + 1, step=1))
    await second.commit(make_full_batch(NOW + 1, step=1))
    with pytest.raises(LockTakenError):
        await market.lock()
    async with second._engine.begin_read() as db:
        assert await db.execute("SELECT key FROM facts") == []
    await assert_whole(second, passes=2)


@pytest.mark.prove
async def test_a_process_without_the_lock_commits_only_while_no_process_holds_it(
    market: MarketStore, open_market: OpenMarket
) -> None:
    second = await open_market()
    await second.commit(make_full_batch())
    await market.lock()
    verbs = (
        second.commit(make_full_batch(NOW + 1, step=1)),
        second.adopt_source("simulated", NOW),
    )
    for verb in verbs:
        with pytest.raises(LockTakenError):
            await verb
    assert await second.prune() == 0
    await market.commit(make_full_batch(NOW + 1, step=1))
    await market.unlock()
    await take_lock_when_free(second)
    await second.commit(make_full_batch(NOW + 2, step=2))
    await assert_whole(second, passes=3)


STORES = {"market": open_postgres_market, "access": open_postgres_access}


async def test_a_new_version_is_found_by_polling_also_after_a_lost_session(
    market: MarketStore, home: PostgresHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.postgres.market_engine.POLL_S", 0.01)
    await market.commit(make_batch())
    seen = await wait_for_version(market, market.version())
    await run_sql(home, "UPDATE version SET number = number + 1")
    seen = await wait_for_version(market, seen)
    await cut_sessions(home.url)
    await run_sql(home, "UPDATE version SET number = number + 1")
    await wait_for_version(market, seen)


async def test_a_store_recovers_from_lost_sessions_without_reopening(
    filled: MarketStore, access: AccessStore, home: PostgresHome
) -> None:
    await access.create_claim(CLAIM)
    await cut_sessions(home.url)
    async with asyncio.timeout(DEADLINE_S):
        for verb in (filled.progress, access.list_keys):
            while True:
                with suppress(StoreError):
                    await verb()
                    break
    assert (await filled.snapshot()).last_created_at == NOW + 3
    assert await access.find_claim(CLAIM.token_hash) == CLAIM


async def test_an_error_quotes_no_values_of_rows(
    access: AccessStore,
) -> None:
    link = SignInRow(bytes(32), "buyer@example.com", 9)
    await access.create_sign_in_link(link)
    with pytest.raises(StoreError) as refused:
        await access.create_sign_in_link(link)
    message = str(refused.value)
    assert "unique" in message
    assert bytes(32).hex() not in message
    assert "\n" not in message


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("another version", "another version of signals.*{store}_9999"),
        ("no database", "does not exist"),
        ("no server", "postgresql://127.0.0.1:1/"),
    ],
)
async def test_a_store_that_cannot_be_opened_is_named_without_user_and_password(
    home: PostgresHome, store: str, fault: str, reason: str
) -> None:
    await run_sql(home, f"INSERT INTO signals_{store}.migrations VALUES ('{store}_9999')")
    parts = urlsplit(home.url)
    url = {
        "another version": home.url,
        "no database": f"{home.url}_missing",
        "no server": home.url.replace(str(parts.port), "1"),
    }[fault]
    with pytest.raises(StoreError, match=reason.format(store=store)) as refused:
        await STORES[store](url)
    message = str(refused.value)
    assert "\n" not in message
    assert "postgres@" not in message
    assert parts.path in message
