"""The latest snapshot is read once per version, and each past one once while it is cached."""

import asyncio
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from mcp_server.tools.get_confluence import GET_CONFLUENCE
from mcp_server.tools.get_state import GET_STATE
from schemas.vocabulary import DAY_MS, RUN_DELAY_MS, format_instant
from serving import snapshot_cache
from serving.context import Context
from serving.snapshot import Snapshot
from serving.snapshot_cache import SnapshotCache
from store.errors import StoreError
from store.market_rows import Batch, CheckpointRow, PastKey, StoredSnapshot, WatermarkRow
from store.sql.market_store import MarketStore
from tests.support.example_market import (
    HOUR_MS,
    NOON,
    make_batch,
    make_change,
    make_coverage,
    seed_market,
)
from tests.support.row_builders import make_bar, make_blocks, make_epoch
from tests.support.store_homes import (
    DEADLINE_S,
    StoreHome,
    open_and_close,
    open_market_as,
    wait_for_version,
)

pytestmark = pytest.mark.clause("feed")


class CountingStore(MarketStore):
    def __init__(self, engine) -> None:
        super().__init__(engine)
        self.snapshots = 0
        self.rebuilt: list[PastKey] = []
        self.is_loading = asyncio.Event()
        self.is_failing = False

    async def snapshot(self, known=None) -> StoredSnapshot:
        self.snapshots += 1
        return await super().snapshot(known)

    async def past_snapshot(self, key, readings) -> StoredSnapshot:
        self.is_loading.set()
        if self.is_failing:
            raise StoreError("lost")
        self.rebuilt.append(key)
        return await super().past_snapshot(key, readings)


@asynccontextmanager
async def open_seeded(path):
    async with open_and_close(open_market_as(CountingStore, path / "market.db")) as store:
        await seed_market(store, make_coverage())
        yield store


async def test_concurrent_callers_share_one_read_per_version(tmp_path):
    async with open_seeded(tmp_path) as store:
        boards = SnapshotCache(store)
        held = await asyncio.gather(*(boards.snapshot() for _ in range(20)))
        assert store.snapshots == 1
        assert all(board is held[0] for board in held)
        await store.commit(make_batch(NOON + HOUR_MS, []))
        assert (await boards.snapshot()).market_time == NOON + HOUR_MS
        assert held[0].market_time == NOON
        assert store.snapshots == 2


async def test_a_checkpoint_of_the_log_keeps_the_snapshot_and_its_cached_responses(tmp_path):
    async with open_seeded(tmp_path) as store:
        boards = SnapshotCache(store)
        before = await boards.snapshot()
        seen = store.version()
        await store.feed_log.save_checkpoint(CheckpointRow(0, "note", "vkey"))
        await wait_for_version(store, seen)
        assert boards.peek() is None
        assert await boards.snapshot() is before
        assert boards.peek() is before


@pytest.mark.clause("monitoring")
async def test_every_instant_of_a_run_shares_one_rebuilt_snapshot(tmp_path):
    async with open_seeded(tmp_path) as store:
        boards = SnapshotCache(store)
        run = NOON - 5 * HOUR_MS  # Inside a nominal batch of many runs.
        instants = [run, run + 1, run + 17, run + HOUR_MS - 1]
        held = [await boards.snapshot_at(at) for at in instants * 2]
        assert all(board is held[0] for board in held)
        assert await boards.snapshot_at(run + 5) is held[0]
        assert store.rebuilt == [PastKey(None, run, run + HOUR_MS - 1)]
        assert await boards.snapshot_at(run - 1) is not held[0]
        # Of a commit: any time until the next one.
        late = await boards.snapshot_at(NOON + 1)
        assert await boards.snapshot_at(NOON + 300 * DAY_MS) is late
        assert len(store.rebuilt) == 3


@pytest.mark.clause("monitoring")
async def test_a_commit_makes_no_reading_of_the_past_be_read_again(tmp_path):
    async with open_seeded(tmp_path) as store:
        boards = SnapshotCache(store)
        before = await boards.snapshot_at(NOON - HOUR_MS)
        await store.commit(replace(make_batch(NOON + HOUR_MS, []), written_at=NOON + HOUR_MS))
        assert await boards.snapshot_at(NOON - HOUR_MS) is before
        await store.publish_coverage(make_coverage("live"))
        after = await boards.snapshot_at(NOON - HOUR_MS)
        assert after.coverage.source == "live"
        assert after.stored.readings is before.stored.readings
        assert store.rebuilt == 3 * store.rebuilt[:1]


async def test_a_caller_that_leaves_or_a_store_that_fails_spoils_no_other_call(tmp_path):
    async with open_seeded(tmp_path) as store:
        boards = SnapshotCache(store)
        callers = [asyncio.create_task(boards.snapshot_at(NOON)) for _ in range(3)]
        async with asyncio.timeout(DEADLINE_S):
            await store.is_loading.wait()
        callers[0].cancel()
        left, *others = await asyncio.gather(*callers, return_exceptions=True)
        assert isinstance(left, asyncio.CancelledError)
        assert others[0] == others[1] is not None
        store.is_failing = True
        with pytest.raises(StoreError):
            await boards.snapshot_at(NOON - HOUR_MS)
        store.is_failing = False
        assert (await boards.snapshot_at(NOON - HOUR_MS)).market_time == NOON - HOUR_MS


async def test_only_the_snapshots_requested_last_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot_cache, "MAX_PAST_SNAPSHOTS", 2)
    async with open_seeded(tmp_path) as store:
        boards = SnapshotCache(store)
        first, second, third = (NOON - back * HOUR_MS for back in (5, 4, 3))
        for at in (first, second, first, third):
            await boards.snapshot_at(at)
        assert [key.market_time for key in store.rebuilt] == [first, second, third]
        await boards.snapshot_at(first)
        assert len(store.rebuilt) == 3
        await boards.snapshot_at(second)
        assert len(store.rebuilt) == 4


class UncachedSnapshots(SnapshotCache):
    """Rebuilds every past snapshot."""

    async def snapshot_at(self, at: int) -> Snapshot | None:
        return await SnapshotCache(self.store).snapshot_at(at)


def make_context(snapshots: SnapshotCache, now: int) -> Context:
    return Context(snapshots, "", "", lambda: now, None, 1000)


CALLS = [
    (GET_STATE, {}),
    (GET_STATE, {"ticker": "BTC,MATIC,DARK", "direction": "bullish"}),
    (GET_CONFLUENCE, {"min_agree": 1}),
]


async def answer(context: Context, at: int) -> list[str]:
    """Return the results of all calls for a time, or the error that refuses it."""
    results = []
    for tool, filters in CALLS:
        query = tool.query(**filters, as_of=format_instant(at))
        try:
            result = await tool.handler(query, context)
        except Exception as error:
            results.append(repr(error))
        else:
            results.append(result.model_dump_json(by_alias=True))
    return results


def list_instants(runs: Sequence[int], now: int) -> list[int]:
    edges = [now - 365 * DAY_MS, *runs]
    beside = {at + by for at in edges for by in (-1, 0)}
    return sorted(at for at in beside if at <= now)


def list_steps() -> list[Batch | str]:
    """Return commits of every kind after the seeded ones, and the other writes by name."""
    runs = [NOON + n * HOUR_MS for n in range(12)]
    hour = (NOON - RUN_DELAY_MS) // 1000
    turned = [
        make_change(runs[4] + n, "XAU", key, "1d", 1, -1) for n, key in enumerate(("enzo", "llnr"))
    ]
    spread = [
        make_change(runs[n], "BTC", "llnr", "1h", 1 - 2 * (n % 2), 2 * (n % 2) - 1)
        for n in (5, 6, 7, 8)
    ]
    bars = make_blocks(*(make_bar("BTC", hour - back * 3600) for back in range(9, 0, -1)))
    again = make_blocks(make_bar("BTC", hour - 6 * 3600 - 1800), revision=1)
    late = [WatermarkRow("ETH", hour, late=("1h",))]
    new = make_blocks(*(make_bar("ETH", hour + back * 3600) for back in range(5)))
    last = make_batch(runs[11], [make_change(runs[11], "DARK", "enzo", "1h", 1)])
    return [
        replace(make_batch(runs[1], []), bars=bars, written_at=runs[1] + 9),
        replace(make_batch(runs[4], turned), written_at=runs[4], watermarks=late),
        replace(make_batch(runs[8], spread), watermarks=[WatermarkRow("BTC", hour)]),
        replace(make_batch(runs[9], []), bars=new, written_at=runs[9]),
        replace(make_batch(runs[10], []), bars=again, written_at=runs[10] + 60_000),
        replace(make_batch(runs[10], []), epochs=[make_epoch()], written_at=runs[10] + 90_000),
        "coverage",
        replace(last, written_at=runs[11]),
        "prune",
        replace(make_batch(runs[11] + 40 * DAY_MS, []), written_at=runs[11] + 40 * DAY_MS),
        "prune",
    ]


async def write(store: MarketStore, step: Batch | str) -> None:
    if step == "prune":
        await store.prune()
    elif step == "coverage":
        coverage = make_coverage("live")
        await store.publish_coverage(coverage.model_copy(update={"assets": coverage.assets[:-1]}))
    else:
        await store.commit(step)


@pytest.mark.clause("answers", "1.11")
@pytest.mark.sampled(2)
async def test_no_cached_answer_differs_from_an_uncached_one_whatever_is_written(home: StoreHome):
    async with (
        open_and_close(home.open_market()) as writer,
        open_and_close(home.open_market()) as store,
    ):
        await seed_market(writer, make_coverage())
        warm, cold = SnapshotCache(store), UncachedSnapshots(store)
        runs = [NOON + n * HOUR_MS for n in range(-2, 12)]
        distinct = set()
        for step in list_steps():
            seen = store.version()
            await write(writer, step)
            await wait_for_version(store, seen)
            now = (await store.progress()).market_time + 2 * HOUR_MS
            for at in list_instants(runs, now):
                expected = await answer(make_context(cold, now), at)
                found = await answer(make_context(warm, now), at)
                assert found == expected, format_instant(at)
                distinct.update(expected)
        assert len(distinct) > 200
