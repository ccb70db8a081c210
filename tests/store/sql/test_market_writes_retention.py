"""Pruning: which rows expire, and which are kept for past snapshots and cooldowns."""

import asyncio

import pytest

from store.digest import digest_bars
from store.market_rows import ReadingRow
from store.sql import market_writes as writes
from store.sql.market_store import MarketStore
from tests.support.row_builders import (
    DAY_MS,
    NOW,
    make_alert,
    make_bar,
    make_batch,
    make_blocks,
    make_change,
)
from tests.support.store_homes import StoreHome, run_sql

pytestmark = pytest.mark.clause("store")

EDGE = NOW - 365 * DAY_MS


async def load_created_at(store: MarketStore) -> list[int]:
    return [row.created_at async for row in store.changes()]


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
    expected = [EDGE - 8, EDGE - 7, EDGE - 5, EDGE - 1, EDGE, NOW]
    assert await load_created_at(market) == expected
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
    chain = await market.commits()
    assert await market.prune() == 1
    assert await market.commits() == chain
    assert await market.readings() == [ReadingRow("BTC", "1h", "enzo", -1)]
    held = await market.commit_content(1)
    assert digest_bars(held.bars, held.funding) == chain[0].bars_digest
    assert held.changes == rows[1:]


@pytest.mark.parametrize("new_home", ["sqlite"], indirect=True)
async def test_prune_deletes_in_short_transactions(
    market: MarketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [make_change(EDGE - 9 + n, after=1 - 2 * (n % 2)) for n in range(9)]
    await market.commit(make_batch(NOW, changes=rows))
    monkeypatch.setattr(writes, "ROWS_PER_PRUNE", 3)
    pruning = asyncio.ensure_future(market.prune())
    committing = asyncio.ensure_future(market.commit(make_batch(NOW + 1)))
    await asyncio.wait([pruning, committing], return_when=asyncio.FIRST_COMPLETED)
    assert (committing.done(), pruning.done()) == (True, False)
    assert await pruning == 8
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
    assert await market.count_unreferenced() == 0
    block = "INSERT INTO bars VALUES (1, 0, 1, 3, 0, 2, ?, ?)"
    await run_sql(home, block, wrong + 1, bytes(96))
    await run_sql(home, "INSERT INTO funding VALUES (1, 0, 1.0, ?)", wrong + 1)
    assert await market.count_unreferenced() == 3


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
