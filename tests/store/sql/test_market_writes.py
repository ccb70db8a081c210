"""A batch is written atomically and read back unchanged."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from store.errors import StoreError
from store.market_rows import BarBlock, Batch, ChangeRow, CommitContent, FundingRow, ReadingRow
from store.sql import market_store
from store.sql.market_store import MarketStore
from tests.store.conftest import OpenMarket
from tests.support.row_builders import (
    NOW,
    make_bar,
    make_batch,
    make_blocks,
    make_carry,
    make_change,
    make_epoch,
    make_full_batch,
    to_rows,
)
from tests.support.store_homes import StoreHome, read_tables, take_lock_when_free, wait_for_version

pytestmark = pytest.mark.clause("store")

KILLED_MIDWAY = """
import asyncio, os, signal, sys
from dataclasses import replace
from tests.support.store_homes import open_home
from tests.support.row_builders import NOW, make_carry, make_full_batch

class Fatal(list):
    reads = 0
    def __iter__(self):
        self.reads += 1
        if self.reads == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__iter__()

async def main():
    store = await open_home(sys.argv[1]).open_market()
    await store.commit(make_full_batch())
    await store.commit(replace(make_full_batch(NOW + 1, step=1), carries=Fatal([make_carry()])))

asyncio.run(main())
"""


def make_empty_block(ticker: str) -> BarBlock:
    return BarBlock(ticker, "1h", np.empty(0, dtype=np.int64), np.empty((0, 5)))


async def load_changes(store: MarketStore) -> list[ChangeRow]:
    return [row async for row in store.changes()]


async def test_everything_in_a_batch_is_read_back_unchanged(market: MarketStore) -> None:
    given = make_full_batch()
    await market.commit(given)
    assert to_rows(await market.bars()) == to_rows([given.bars[1], given.bars[0]])
    assert await market.funding() == list(given.funding)
    assert await load_changes(market) == list(given.changes)
    assert [row async for row in market.alerts()] == list(given.alerts)
    assert await market.carries() == list(given.carries)
    assert await market.epochs() == list(given.epochs)
    assert await market.publish_from() == {"BTC": 5, "ETH": 7}
    progress = await market.progress()
    assert (progress.market_time, progress.last_created_at, progress.commit_count) == (
        NOW,
        NOW + 3,
        1,
    )


async def test_everything_is_there_after_reopening(
    market: MarketStore, open_market: OpenMarket, home: StoreHome
) -> None:
    await market.commit(make_full_batch())
    before = await read_tables(home)
    await market.close()
    await market.close()
    reopened = await open_market()
    assert await read_tables(home) == before
    await reopened.commit(make_full_batch(NOW + 1, step=1))
    assert (await reopened.progress()).commit_count == 2


async def test_bars_are_read_by_ticker_and_from_a_time(market: MarketStore) -> None:
    rows = [
        make_bar("BTC", 0, "1d"),
        make_bar("BTC", 0),
        make_bar("BTC", 3600),
        make_bar("ETH", 3600),
    ]
    settlements = [FundingRow("BTC", 0, 0.1), FundingRow("BTC", 8, 0.1), FundingRow("ETH", 8, 0.1)]
    await market.commit(make_batch(bars=make_blocks(*rows)[::-1], funding=settlements[::-1]))
    assert to_rows(await market.bars("BTC")) == rows[:3]
    assert to_rows(await market.bars(after=0)) == rows[2:]
    assert await market.bars("SOL") == []
    assert await market.funding("BTC", 0) == settlements[1:2]
    assert await market.funding() == settlements


async def test_the_board_shows_the_newest_reading_of_each_cell(market: MarketStore) -> None:
    await market.commit(
        make_batch(changes=[make_change(1000), make_change(2000, before=1, after=0)])
    )
    await market.commit(
        make_batch(changes=[make_change(3000, before=0, after=-1), make_change(3001, "ETH")])
    )
    assert await market.readings() == [
        ReadingRow("BTC", "1h", "enzo", -1),
        ReadingRow("ETH", "1h", "enzo", 1),
    ]
    assert (await market.snapshot()).readings["BTC"] == {"enzo": {"1h": -1}}


async def test_a_carry_is_replaced_and_an_epoch_is_added(market: MarketStore) -> None:
    await market.commit(make_batch(carries=[make_carry()], epochs=[make_epoch()]))
    await market.commit(
        make_batch(carries=[make_carry(data=b"new")], epochs=[make_epoch(number=2)])
    )
    assert await market.carries() == [make_carry(data=b"new")]
    assert await market.epochs() == [make_epoch(), make_epoch(number=2)]


async def test_an_empty_batch_moves_the_clock_and_joins_the_chain(
    market: MarketStore,
) -> None:
    await market.commit(make_batch(NOW))
    await market.commit(make_batch(NOW + 1))
    assert (await market.progress()).market_time == NOW + 1
    assert [(row.number, row.first_created_at) for row in await market.commits()] == [
        (1, None),
        (2, None),
    ]
    assert await market.commit_content(2) == CommitContent([], [], [], [])


async def test_an_unknown_commit_is_refused(market: MarketStore) -> None:
    with pytest.raises(StoreError, match="no commit 1"):
        await market.commit_content(1)


@pytest.mark.clause("4.7.21")
@pytest.mark.parametrize(
    "bad",
    [
        make_batch(NOW - 1, bars=make_blocks(make_bar("SOL"))),
        make_batch(changes=[make_change(NOW + 1)]),
        make_batch(changes=[make_change(NOW + 9), make_change(NOW + 9, "ETH")]),
        make_batch(changes=[make_change(NOW + 9), make_change(NOW + 8, "ETH")]),
        make_batch(changes=[make_change(NOW + 9, close_time=NOW)]),
        make_batch(bars=make_blocks(make_bar("SOL"), make_bar("BTC"))),
        make_batch(bars=make_blocks(make_bar("SOL"), make_bar("SOL"))),
        make_batch(bars=make_blocks(make_bar("SOL"), make_bar("BTC", 7200), make_bar("SOL"))),
        make_batch(bars=make_blocks(make_bar("SOL", 3600), make_bar("SOL", 0))),
        make_batch(bars=[make_blocks(make_bar("SOL"))[0], make_empty_block("BTC")]),
        make_batch(bars=make_blocks(make_bar("SOL")._replace(volume=float("nan")))),
        make_batch(funding=[FundingRow("BTC", 0, 0.1)]),
        make_batch(epochs=[make_epoch("SOL"), make_epoch(number=0)]),
        make_batch(bars=make_blocks(make_bar("SOL")), changes=[make_change(NOW + 9, after=2)]),
        make_batch(bars=make_blocks(make_bar("SOL")), funding=[FundingRow("BTC", 9, float("nan"))]),
    ],
    ids=[
        "the clock goes back",
        "created_at is taken",
        "created_at repeats",
        "created_at falls",
        "an id is used twice",
        "a bar is stored already",
        "a bar comes twice",
        "a bar comes in two blocks",
        "bars go back in time",
        "a block is empty",
        "a bar is no number",
        "a settlement is stored already",
        "an epoch is stored already",
        "no such reading",
        "no number",
    ],
)
@pytest.mark.sampled(2)
async def test_a_batch_that_breaks_a_rule_leaves_no_rows(
    market: MarketStore, home: StoreHome, bad: Batch
) -> None:
    await market.commit(make_full_batch())
    before = await read_tables(home)
    with pytest.raises(StoreError):
        await market.commit(bad)
    assert await read_tables(home) == before
    await market.commit(make_full_batch(NOW + 1, step=1))


@pytest.mark.parametrize(
    "unwritable",
    [make_carry(data=cast(bytes, object())), None],
    ids=["a value the database can't hold", "no row at all"],
)
async def test_a_commit_that_fails_midway_leaves_no_rows(
    market: MarketStore, home: StoreHome, unwritable: object
) -> None:
    await market.commit(make_full_batch())
    before = await read_tables(home)
    good = make_full_batch(NOW + 1, step=1)
    bad = Batch(NOW + 1, good.bars, good.funding, good.changes, [make_carry(), unwritable])  # type: ignore[list-item]
    with pytest.raises((StoreError, AttributeError)):
        await market.commit(bad)
    assert await read_tables(home) == before
    await market.commit(good)


async def test_a_killed_process_leaves_complete_commits(
    open_market: OpenMarket, home: StoreHome
) -> None:
    killed = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", KILLED_MIDWAY, home.address],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL
    store = await open_market()
    assert (await store.progress()).commit_count == 1
    assert await load_changes(store) == list(make_full_batch().changes)
    assert await store.count_unreferenced() == 0
    await take_lock_when_free(store)
    await store.commit(make_full_batch(NOW + 1, step=1))
    assert len(to_rows(await store.bars())) == 4


async def test_a_cancelled_commit_leaves_complete_commits(
    market: MarketStore, home: StoreHome
) -> None:
    await market.commit(make_full_batch())
    for turns in range(0, 40, 2):
        passes = (await market.progress()).commit_count
        task = asyncio.create_task(market.commit(make_full_batch(NOW + passes, step=passes)))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        passes = (await market.progress()).commit_count
        stored = await read_tables(home)
        assert len(stored["bars"]) == len(stored["changes"]) == 2 * passes


async def test_commits_at_once_follow_each_other(market: MarketStore) -> None:
    passes = [make_batch(NOW, bars=make_blocks(make_bar("BTC", 3600 * step))) for step in range(5)]
    await asyncio.gather(*map(market.commit, passes))
    assert [row.number for row in await market.commits()] == [1, 2, 3, 4, 5]
    assert len(to_rows(await market.bars())) == 5


async def test_another_connection_sees_only_complete_commits(
    market: MarketStore, open_market: OpenMarket
) -> None:
    tickers = [f"T{number:03}" for number in range(100)]

    async def write() -> None:
        for step in range(20):
            created = [NOW + 100 * step + number for number in range(100)]
            rows = [
                make_change(at, ticker, after=step % 3 - 1)
                for at, ticker in zip(created, tickers, strict=True)
            ]
            await market.commit(make_batch(NOW + step, changes=rows))

    reader = await open_market()
    task = asyncio.create_task(write())
    seen = 0
    while seen < 20:
        snapshot = await reader.snapshot()
        if snapshot.market_time is not None:
            seen = snapshot.market_time - NOW + 1
            shown = {cells["enzo"]["1h"] for cells in snapshot.readings.values()}
            assert shown == {(seen - 1) % 3 - 1}
            assert len(snapshot.readings) == 100
            assert snapshot.last_created_at == NOW + 100 * (seen - 1) + 99
        if task.done():
            await task
    await task


async def test_the_version_moves_with_every_commit_of_any_process(
    market: MarketStore, open_market: OpenMarket
) -> None:
    other = await open_market()
    seen = [market.version()]
    assert market.version() == seen[0]
    for writer in (market, other, market):
        await writer.commit(make_batch())
        seen.append(await wait_for_version(market, seen[-1]))
        assert market.version() == seen[-1]
    assert len(set(seen)) == len(seen)


async def test_changes_come_in_batches_without_a_gap(
    market: MarketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(market_store, "ROWS_PER_READ", 3)
    rows = [make_change(1000 * at, published=at % 2 == 0) for at in range(1, 11)]
    await market.commit(make_batch(changes=rows))
    assert await load_changes(market) == rows


async def test_a_stream_of_changes_left_early_holds_nothing_open(market: MarketStore) -> None:
    await market.commit(make_full_batch())
    stream = cast(AsyncGenerator[ChangeRow, None], market.changes())
    assert (await anext(stream)).created_at == NOW
    await market.commit(make_full_batch(NOW + 1, step=1))
    assert (await market.progress()).commit_count == 2
    await stream.aclose()
