"""Only one process holds the compute lock, until it releases the lock or dies."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from store.errors import LockTakenError
from store.sql.market_store import MarketStore
from tests.store.conftest import OpenMarket
from tests.support.row_builders import NOW, make_full_batch
from tests.support.store_homes import SqliteHome, StoreHome, take_lock_when_free

pytestmark = pytest.mark.clause("store")

ROOT = Path(__file__).parents[3]
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
        assert holder.stdout is not None
        await holder.stdout.readline()
        yield holder
    finally:
        if holder.returncode is None:
            holder.kill()
        await holder.communicate()


@pytest.fixture
def leave_stale_lock(home: StoreHome) -> None:
    """Leave the lock file of a process that no longer exists."""
    if isinstance(home, SqliteHome):
        (home.folder / "market.db.lock").write_text("1234567890123\n")


@pytest.mark.usefixtures("leave_stale_lock")
async def test_the_lock_refuses_a_second_holder_and_names_the_first(
    market: MarketStore, open_market: OpenMarket
) -> None:
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
    second = await open_market()
    for one in (market, second, market):
        await take_lock_when_free(one)
        await one.commit(make_full_batch(NOW, step=(await one.progress()).commit_count))
        await one.unlock()
        await one.unlock()


@pytest.mark.sampled(2)
async def test_the_lock_dies_with_its_process(market: MarketStore, home: StoreHome) -> None:
    async with hold_lock_elsewhere(home) as holder:
        with pytest.raises(LockTakenError, match=f"pid {holder.pid}"):
            await market.lock()
        holder.send_signal(signal.SIGKILL)
        await holder.wait()
        await take_lock_when_free(market)
        await market.commit(make_full_batch())
