import asyncio

import pytest

from serving.snapshot_cache import SnapshotCache
from store.market_rows import StoredSnapshot
from store.sql.market_store import MarketStore
from tests.support.store_homes import open_market_as
from tools.example_market import HOUR_MS, NOON, make_batch, make_coverage, seed_market

pytestmark = pytest.mark.clause("feed")


class CountingStore(MarketStore):
    snapshots = 0

    async def snapshot(self) -> StoredSnapshot:
        self.snapshots += 1
        return await super().snapshot()


async def test_concurrent_callers_share_one_read_per_version(tmp_path):
    store = await open_market_as(CountingStore, tmp_path / "market.db")
    try:
        await seed_market(store, make_coverage())
        boards = SnapshotCache(store)
        held = await asyncio.gather(*(boards.snapshot() for _ in range(20)))
        assert store.snapshots == 1
        assert all(board is held[0] for board in held)
        await store.commit(make_batch(NOON + HOUR_MS, []))
        assert (await boards.snapshot()).market_time == NOON + HOUR_MS
        assert held[0].market_time == NOON
        assert store.snapshots == 2
    finally:
        await store.close()
