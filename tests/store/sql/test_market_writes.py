"""A batch is written atomically and read back unchanged."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from store.digest import digest_bars
from store.market_rows import (
    AlertRow,
    BarBlock,
    Batch,
    CarryRow,
    CommitInputs,
    FundingRow,
    ReadingRow,
)
from store.sql.market_store import MarketStore
from store.store_errors import StoreError
from tests.store.conftest import OpenMarket
from tests.support.row_builders import (
    DAY_MS,
    NOW,
    list_changes,
    list_commits,
    list_epochs,
    make_alert,
    make_bar,
    make_batch,
    make_blocks,
    make_carry,
    make_change,
    make_epoch,
    make_full_batch,
    to_rows,
)
from tests.support.store_homes import (
    StoreHome,
    read_tables,
    run_sql,
    take_lock_when_free,
    wait_for_version,
)

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


async def test_everything_in_a_batch_is_read_back_unchanged(market: MarketStore) -> None:
    given = make_full_batch()
    await market.commit(given)
    assert to_rows(await market.bars()) == to_rows([given.bars[1], given.bars[0]])
    assert await market.funding() == list(given.funding)
    assert await list_changes(market) == list(given.changes)
    assert [row async for row in market.alerts()] == list(given.alerts)
    assert await market.carries() == list(given.carries)
    assert await market.readings() == [
        ReadingRow("BTC", "1h", "enzo", 1),
        ReadingRow("ETH", "1d", "dexter", 1),
    ]
    assert await list_epochs(market) == list(given.epochs)
    assert await market.publish_from() == {"BTC": 5, "ETH": 7}
    progress = await market.progress()
    assert (progress.market_time, progress.last_created_at, progress.commit_count) == (
        NOW,
        NOW + 3,
        1,
    )


async def test_funding_is_read_by_ticker_and_from_a_time(market: MarketStore) -> None:
    settlements = [FundingRow("BTC", 0, 0.1), FundingRow("BTC", 8, 0.1), FundingRow("ETH", 8, 0.1)]
    await market.commit(make_batch(funding=settlements[::-1]))
    assert await market.funding("BTC", 0) == settlements[1:2]
    assert await market.funding() == settlements


async def test_a_carry_is_replaced_and_an_epoch_is_added(market: MarketStore) -> None:
    await market.commit(make_batch(carries=[make_carry()], epochs=[make_epoch()]))
    await market.commit(
        make_batch(carries=[make_carry(data=b"new")], epochs=[make_epoch(number=2)])
    )
    assert await market.carries() == [make_carry(data=b"new")]
    assert await list_epochs(market) == [make_epoch(), make_epoch(number=2)]


async def test_an_empty_batch_moves_the_clock_and_joins_the_chain(
    market: MarketStore,
) -> None:
    await market.commit(make_batch(NOW))
    await market.commit(make_batch(NOW + 1))
    assert (await market.progress()).market_time == NOW + 1
    assert [(row.number, row.first_created_at) for row in await list_commits(market)] == [
        (1, None),
        (2, None),
    ]
    assert await market.commit_inputs(2) == CommitInputs([], [], [], [])


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
        make_batch(
            bars=[
                *make_blocks(make_bar("SOL")),
                BarBlock("BTC", "1h", np.empty(0, dtype=np.int64), np.empty((0, 5))),
            ]
        ),
        make_batch(bars=make_blocks(make_bar("SOL")._replace(volume=float("nan")))),
        make_batch(funding=[FundingRow("BTC", 0, 0.1)]),
        make_batch(epochs=[make_epoch("SOL"), make_epoch(number=0)]),
        make_batch(bars=make_blocks(make_bar("SOL")), changes=[make_change(NOW + 9, after=2)]),
        make_batch(bars=make_blocks(make_bar("SOL")), funding=[FundingRow("BTC", 9, float("nan"))]),
        *(
            replace(make_full_batch(NOW + 1, step=1), carries=[make_carry(), unwritable])
            for unwritable in (make_carry(data=cast(bytes, object())), cast(CarryRow, None))
        ),
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
        "a value the database can't hold",
        "no row at all",
    ],
)
@pytest.mark.sampled(2)
async def test_a_batch_that_breaks_a_rule_leaves_no_rows(
    filled: MarketStore, home: StoreHome, bad: Batch
) -> None:
    before = await read_tables(home)
    with pytest.raises((StoreError, AttributeError)):
        await filled.commit(bad)
    assert await read_tables(home) == before
    await filled.commit(make_full_batch(NOW + 1, step=1))


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
    assert await list_changes(store) == list(make_full_batch().changes)
    assert (await store.audit_reads.load_market()).unreferenced == 0
    await take_lock_when_free(store)
    await store.commit(make_full_batch(NOW + 1, step=1))
    assert len(to_rows(await store.bars())) == 4


@pytest.mark.prove
async def test_a_cancelled_commit_leaves_complete_commits(
    filled: MarketStore, home: StoreHome
) -> None:
    for turns in range(0, 40, 2):
        passes = (await filled.progress()).commit_count
        task = asyncio.create_task(filled.commit(make_full_batch(NOW + passes, step=passes)))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        passes = (await filled.progress()).commit_count
        stored = await read_tables(home)
        assert len(stored["bars"]) == len(stored["changes"]) == 2 * passes


async def test_commits_at_once_follow_each_other(market: MarketStore) -> None:
    passes = [make_batch(NOW, bars=make_blocks(make_bar("BTC", 3600 * step))) for step in range(5)]
    await asyncio.gather(*map(market.commit, passes))
    assert [row.number for row in await list_commits(market)] == [1, 2, 3, 4, 5]
    assert len(to_rows(await market.bars())) == 5


@pytest.mark.prove
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


async def test_alerts_come_in_batches_without_a_gap(
    market: MarketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.sql.market_store.ROWS_PER_READ", 3)
    rows = [make_alert(1000 * at) for at in range(1, 11)]
    await market.commit(make_batch(alerts=rows))
    assert [row async for row in market.alerts()] == rows


async def test_a_stream_of_alerts_left_early_holds_nothing_open(filled: MarketStore) -> None:
    stream = cast(AsyncGenerator[AlertRow, None], filled.alerts())
    assert await anext(stream) == make_full_batch().alerts[0]
    await filled.commit(make_full_batch(NOW + 1, step=1))
    assert (await filled.progress()).commit_count == 2
    await stream.aclose()


EDGE = NOW - 365 * DAY_MS


async def load_created_at(store: MarketStore) -> list[int]:
    return [row.created_at for row in await list_changes(store)]


@pytest.mark.clause("1.33", "1.35", "8.38")
async def test_prune_keeps_the_newest_old_row_of_each_cell(market: MarketStore) -> None:
    old = [
        make_change(EDGE - 9),
        make_change(EDGE - 8, "ETH"),
        make_change(EDGE - 7, timeframe="4h"),
        make_change(EDGE - 6, indicator="dexter", published=False),
        make_change(EDGE - 5, indicator="dexter", published=False),
        make_change(EDGE - 1),
    ]
    young = [make_change(EDGE), make_change(NOW)]
    await market.commit(make_batch(NOW, changes=[*old, *young]))
    assert await market.prune() == 2
    assert await load_created_at(market) == [EDGE - 8, EDGE - 7, EDGE - 5, EDGE - 1, EDGE, NOW]
    assert await market.prune() == 0
    assert (await market.progress()).pruned_before == EDGE


async def test_prune_follows_only_the_recorded_clock(market: MarketStore) -> None:
    assert await market.prune() == 0
    await market.commit(make_batch(NOW, changes=[make_change(NOW - 1), make_change(NOW)]))
    assert await market.prune() == 0
    await market.commit(make_batch(NOW + 365 * DAY_MS))
    assert await market.prune() == 0
    await market.commit(make_batch(NOW + 365 * DAY_MS + 1))
    assert await market.prune() == 1
    assert await load_created_at(market) == [NOW]


async def test_prune_leaves_the_board_the_bars_and_the_chain(market: MarketStore) -> None:
    rows = [make_change(EDGE - 9), make_change(EDGE - 8, after=-1)]
    await market.commit(make_batch(NOW, bars=make_blocks(make_bar()), changes=rows))
    chain = await list_commits(market)
    assert await market.prune() == 1
    assert await list_commits(market) == chain
    assert await market.readings() == [ReadingRow("BTC", "1h", "enzo", -1)]
    held = await market.commit_inputs(1)
    assert digest_bars(held.bars, held.funding) == chain[0].bars_digest
    assert await list_changes(market) == rows[1:]


async def test_prune_deletes_in_short_transactions(
    market: MarketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [make_change(EDGE - 9 + n, after=1 - 2 * (n % 2)) for n in range(9)]
    await market.commit(make_batch(NOW, changes=rows))
    monkeypatch.setattr("store.sql.market_writes.ROWS_PER_PRUNE", 3)
    begin, begun = market._engine.begin_write, list[None]()
    monkeypatch.setattr(market._engine, "begin_write", lambda: begun.append(None) or begin())
    assert await market.prune() == 8
    horizons, deleting, nothing_left = 1, 3, 2
    assert len(begun) == horizons + deleting + nothing_left
    assert await load_created_at(market) == [EDGE - 1]


async def test_created_at_keeps_growing_after_all_rows_were_pruned(market: MarketStore) -> None:
    await market.commit(make_batch(NOW, changes=[make_change(EDGE - 9), make_change(EDGE - 8)]))
    await market.prune()
    assert (await market.progress()).last_created_at == EDGE - 8
    await market.commit(make_batch(NOW, changes=[make_change(EDGE - 7)]))


@pytest.mark.parametrize("wrong", [1, NOW])
async def test_rows_of_no_commit_are_counted(
    market: MarketStore, home: StoreHome, wrong: int
) -> None:
    await market.commit(make_batch(NOW, bars=make_blocks(make_bar())))
    assert (await market.audit_reads.load_market()).unreferenced == 0
    await run_sql(home, "INSERT INTO bars VALUES (1, 0, 1, 3, 0, 2, ?, ?)", wrong + 1, bytes(96))
    await run_sql(home, "INSERT INTO funding VALUES (1, 0, 1.0, ?)", wrong + 1)
    assert (await market.audit_reads.load_market()).unreferenced == 3


@pytest.mark.clause("1.34", "1.35", "8.39")
async def test_prune_keeps_the_newest_old_alert_of_each_engine_action_and_epoch(
    market: MarketStore,
) -> None:
    edge = NOW - 90 * DAY_MS
    dropped = [make_alert(edge - 9), make_alert(edge - 8, "CLOSE")]
    base = [
        make_alert(edge - 7, "CLOSE"),
        make_alert(edge - 6, epoch=1),
        make_alert(edge - 5, ticker="ETH"),
        make_alert(edge - 4, timeframe="1d"),
        make_alert(edge - 3, indicator="enzo"),
        make_alert(edge - 1),
    ]
    young = [make_alert(edge), make_alert(NOW)]
    await market.commit(make_batch(NOW, alerts=[*dropped, *base, *young]))
    assert await market.prune() == 2
    assert [row async for row in market.alerts()] == [*base, *young]
    assert await market.prune() == 0
    progress = await market.progress()
    assert (progress.pruned_before, progress.alerts_pruned_before) == (EDGE, edge)
    assert progress.last_created_at == NOW
