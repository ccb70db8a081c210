"""A pass is written whole or not at all, and read back as it was given."""

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

from store.errors import MarketStore, StoreError
from store.market_rows import BarBlock, ChangeRow, FundingRow, Pass, PassContent, ReadingRow
from store.sql import market_store
from tests.store.conftest import OpenMarket
from tests.store.homes import Home, content, free_lock, moved
from tests.store.rows import (
    NOW,
    bar,
    blocks,
    carry,
    change,
    epoch,
    full,
    rows_of,
    work,
)

pytestmark = pytest.mark.clause("store")

KILLED_MIDWAY = """
import asyncio, os, signal, sys
from dataclasses import replace
from tests.store.homes import home_at
from tests.store.rows import NOW, carry, full

class Fatal(list):
    reads = 0
    def __iter__(self):
        self.reads += 1
        if self.reads == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__iter__()

async def main():
    store = await home_at(sys.argv[1]).open_market()
    await store.commit(full())
    await store.commit(replace(full(NOW + 1, step=1), carries=Fatal([carry()])))

asyncio.run(main())
"""


def empty(ticker: str) -> BarBlock:
    return BarBlock(ticker, "1h", np.empty(0, dtype=np.int64), np.empty((0, 5)))


async def all_changes(store: MarketStore) -> list[ChangeRow]:
    return [row async for row in store.changes()]


async def test_everything_in_a_pass_comes_back_as_given(market: MarketStore) -> None:
    given = full()
    await market.commit(given)
    assert rows_of(await market.bars()) == rows_of([given.bars[1], given.bars[0]])
    assert await market.funding() == list(given.funding)
    assert await all_changes(market) == list(given.changes)
    assert [row async for row in market.alerts()] == list(given.alerts)
    assert await market.carries() == list(given.carries)
    assert await market.epochs() == list(given.epochs)
    assert await market.publish_from() == {"BTC": 5, "ETH": 7}
    progress = await market.progress()
    assert (progress.market_time, progress.last_created_at, progress.passes) == (NOW, NOW + 3, 1)


async def test_everything_is_there_after_reopening(
    market: MarketStore, open_market: OpenMarket, home: Home
) -> None:
    await market.commit(full())
    before = await content(home)
    await market.close()
    await market.close()
    reopened = await open_market()
    assert await content(home) == before
    await reopened.commit(full(NOW + 1, step=1))
    assert (await reopened.progress()).passes == 2


async def test_bars_are_read_by_ticker_and_from_a_time(market: MarketStore) -> None:
    rows = [bar("BTC", 0, "1d"), bar("BTC", 0), bar("BTC", 3600), bar("ETH", 3600)]
    settlements = [FundingRow("BTC", 0, 0.1), FundingRow("BTC", 8, 0.1), FundingRow("ETH", 8, 0.1)]
    await market.commit(work(bars=blocks(*rows)[::-1], funding=settlements[::-1]))
    assert rows_of(await market.bars("BTC")) == rows[:3]
    assert rows_of(await market.bars(after=0)) == rows[2:]
    assert await market.bars("SOL") == []
    assert await market.funding("BTC", 0) == settlements[1:2]
    assert await market.funding() == settlements


async def test_the_board_shows_the_newest_reading_of_each_cell(market: MarketStore) -> None:
    await market.commit(work(changes=[change(1000), change(2000, before=1, after=0)]))
    await market.commit(work(changes=[change(3000, before=0, after=-1), change(3001, "ETH")]))
    assert await market.readings() == [
        ReadingRow("BTC", "1h", "enzo", -1),
        ReadingRow("ETH", "1h", "enzo", 1),
    ]
    assert (await market.snapshot()).readings["BTC"] == {"enzo": {"1h": -1}}


async def test_a_carry_is_replaced_and_an_epoch_is_added(market: MarketStore) -> None:
    await market.commit(work(carries=[carry()], epochs=[epoch()]))
    await market.commit(work(carries=[carry(data=b"new")], epochs=[epoch(number=2)]))
    assert await market.carries() == [carry(data=b"new")]
    assert await market.epochs() == [epoch(), epoch(number=2)]


async def test_an_empty_pass_moves_the_clock_and_joins_the_chain(
    market: MarketStore,
) -> None:
    await market.commit(work(NOW))
    await market.commit(work(NOW + 1))
    assert (await market.progress()).market_time == NOW + 1
    assert [(row.number, row.first_created_at) for row in await market.passes()] == [
        (1, None),
        (2, None),
    ]
    assert await market.pass_content(2) == PassContent([], [], [], [])


async def test_a_pass_that_does_not_exist_is_refused(market: MarketStore) -> None:
    with pytest.raises(StoreError, match="no pass 1"):
        await market.pass_content(1)


@pytest.mark.parametrize(
    "bad",
    [
        work(NOW - 1, bars=blocks(bar("SOL"))),
        work(changes=[change(NOW + 1)]),
        work(changes=[change(NOW + 9), change(NOW + 9, "ETH")]),
        work(changes=[change(NOW + 9), change(NOW + 8, "ETH")]),
        work(changes=[change(NOW + 9, close_time=NOW)]),
        work(bars=blocks(bar("SOL"), bar("BTC"))),
        work(bars=blocks(bar("SOL"), bar("SOL"))),
        work(bars=blocks(bar("SOL"), bar("BTC", 7200), bar("SOL"))),
        work(bars=blocks(bar("SOL", 3600), bar("SOL", 0))),
        work(bars=[blocks(bar("SOL"))[0], empty("BTC")]),
        work(bars=blocks(bar("SOL")._replace(volume=float("nan")))),
        work(funding=[FundingRow("BTC", 0, 0.1)]),
        work(epochs=[epoch("SOL"), epoch(number=0)]),
        work(bars=blocks(bar("SOL")), changes=[change(NOW + 9, after=2)]),
        work(bars=blocks(bar("SOL")), funding=[FundingRow("BTC", 9, float("nan"))]),
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
async def test_a_pass_that_breaks_a_rule_leaves_nothing(
    market: MarketStore, home: Home, bad: Pass
) -> None:
    await market.commit(full())
    before = await content(home)
    with pytest.raises(StoreError):
        await market.commit(bad)
    assert await content(home) == before
    await market.commit(full(NOW + 1, step=1))


@pytest.mark.parametrize(
    "unwritable",
    [carry(data=cast(bytes, object())), None],
    ids=["a value the database can't hold", "no row at all"],
)
async def test_a_commit_that_raises_midway_leaves_nothing(
    market: MarketStore, home: Home, unwritable: object
) -> None:
    await market.commit(full())
    before = await content(home)
    good = full(NOW + 1, step=1)
    bad = Pass(NOW + 1, good.bars, good.funding, good.changes, [carry(), unwritable])  # type: ignore[list-item]
    with pytest.raises((StoreError, AttributeError)):
        await market.commit(bad)
    assert await content(home) == before
    await market.commit(good)


async def test_a_killed_process_leaves_whole_passes(open_market: OpenMarket, home: Home) -> None:
    killed = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", KILLED_MIDWAY, home.address],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL
    store = await open_market()
    assert (await store.progress()).passes == 1
    assert await all_changes(store) == list(full().changes)
    assert await store.orphans() == 0
    await free_lock(store)
    await store.commit(full(NOW + 1, step=1))
    assert len(rows_of(await store.bars())) == 4


async def test_a_cancelled_commit_leaves_a_whole_number_of_passes(
    market: MarketStore, home: Home
) -> None:
    await market.commit(full())
    for turns in range(0, 40, 2):
        passes = (await market.progress()).passes
        task = asyncio.create_task(market.commit(full(NOW + passes, step=passes)))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        passes = (await market.progress()).passes
        stored = await content(home)
        assert len(stored["bars"]) == len(stored["changes"]) == 2 * passes


async def test_commits_at_once_follow_each_other(market: MarketStore) -> None:
    passes = [work(NOW, bars=blocks(bar("BTC", 3600 * step))) for step in range(5)]
    await asyncio.gather(*map(market.commit, passes))
    assert [row.number for row in await market.passes()] == [1, 2, 3, 4, 5]
    assert len(rows_of(await market.bars())) == 5


async def test_another_connection_sees_only_whole_passes(
    market: MarketStore, open_market: OpenMarket
) -> None:
    tickers = [f"T{number:03}" for number in range(100)]

    async def write() -> None:
        for step in range(20):
            created = [NOW + 100 * step + number for number in range(100)]
            rows = [
                change(at, ticker, after=step % 3 - 1)
                for at, ticker in zip(created, tickers, strict=True)
            ]
            await market.commit(work(NOW + step, changes=rows))

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
        await writer.commit(work())
        seen.append(await moved(market, seen[-1]))
        assert market.version() == seen[-1]
    assert len(set(seen)) == len(seen)


async def test_changes_come_in_batches_without_a_gap(
    market: MarketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(market_store, "ROWS_A_BATCH", 3)
    rows = [change(1000 * at, published=at % 2 == 0) for at in range(1, 11)]
    await market.commit(work(changes=rows))
    assert await all_changes(market) == rows


async def test_a_stream_of_changes_left_early_holds_nothing_open(market: MarketStore) -> None:
    await market.commit(full())
    stream = cast(AsyncGenerator[ChangeRow, None], market.changes())
    assert (await anext(stream)).created_at == NOW
    await market.commit(full(NOW + 1, step=1))
    assert (await market.progress()).passes == 2
    await stream.aclose()
