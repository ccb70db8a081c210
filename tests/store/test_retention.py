"""What ages out, what stays as the base of past boards, and what outlives the rows."""

import asyncio

import pytest

from store.digest import bars_digest
from store.errors import MarketStore
from store.market_rows import ReadingRow
from store.sql import market_writes as writes
from tests.store.homes import Home, plainly
from tests.store.rows import DAY_MS, NOW, alert, bar, blocks, change, work

pytestmark = pytest.mark.clause("store")

EDGE = NOW - 365 * DAY_MS


async def stored(store: MarketStore) -> list[int]:
    return [row.created_at async for row in store.changes()]


@pytest.mark.clause("8.38")
async def test_prune_keeps_the_newest_old_row_of_each_cell(market: MarketStore) -> None:
    old = [
        change(EDGE - 9),
        change(EDGE - 8, "ETH"),
        change(EDGE - 7, timeframe="4h"),
        change(EDGE - 6, indicator="dexter", published=False),
        change(EDGE - 5, indicator="dexter", published=False),
        change(EDGE - 1),
    ]
    young = [change(EDGE), change(NOW)]
    await market.commit(work(NOW, changes=[*old, *young]))
    assert await market.prune() == 2
    expected = [EDGE - 8, EDGE - 7, EDGE - 5, EDGE - 1, EDGE, NOW]
    assert await stored(market) == expected
    assert await market.prune() == 0
    assert (await market.progress()).pruned_before == EDGE


async def test_prune_follows_the_recorded_clock_alone(market: MarketStore) -> None:
    assert await market.prune() == 0
    await market.commit(work(NOW, changes=[change(NOW - 1), change(NOW)]))
    assert await market.prune() == 0
    await market.commit(work(NOW + 365 * DAY_MS))
    assert await market.prune() == 0
    await market.commit(work(NOW + 365 * DAY_MS + 1))
    assert await market.prune() == 1
    assert await stored(market) == [NOW]


async def test_prune_leaves_the_board_the_bars_and_the_chain(market: MarketStore) -> None:
    rows = [change(EDGE - 9), change(EDGE - 8, after=-1)]
    await market.commit(work(NOW, bars=blocks(bar()), changes=rows))
    chain = await market.passes()
    assert await market.prune() == 1
    assert await market.passes() == chain
    assert await market.readings() == [ReadingRow("BTC", "1h", "enzo", -1)]
    held = await market.pass_content(1)
    assert bars_digest(held.bars, held.funding) == chain[0].bars_digest
    assert held.changes == rows[1:]


@pytest.mark.parametrize("new_home", ["sqlite"], indirect=True)
async def test_prune_deletes_in_short_transactions(
    market: MarketStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [change(EDGE - 9 + n, after=1 - 2 * (n % 2)) for n in range(9)]
    await market.commit(work(NOW, changes=rows))
    monkeypatch.setattr(writes, "PRUNED_AT_ONCE", 3)
    pruning = asyncio.ensure_future(market.prune())
    committing = asyncio.ensure_future(market.commit(work(NOW + 1)))
    await asyncio.wait([pruning, committing], return_when=asyncio.FIRST_COMPLETED)
    assert (committing.done(), pruning.done()) == (True, False)
    assert await pruning == 8
    assert await stored(market) == [EDGE - 1]


async def test_created_at_goes_on_after_everything_has_aged(market: MarketStore) -> None:
    await market.commit(work(NOW, changes=[change(EDGE - 9), change(EDGE - 8)]))
    await market.prune()
    assert (await market.progress()).last_created_at == EDGE - 8
    await market.commit(work(NOW, changes=[change(EDGE - 7)]))


@pytest.mark.parametrize("wrong", [1, NOW])
async def test_rows_of_no_pass_are_counted(market: MarketStore, home: Home, wrong: int) -> None:
    await market.commit(work(NOW, bars=blocks(bar())))
    assert await market.orphans() == 0
    block = "INSERT INTO bars VALUES (1, 0, 1, 3, 0, 2, ?, ?)"
    await plainly(home, block, wrong + 1, bytes(96))
    await plainly(home, "INSERT INTO funding VALUES (1, 0, 1.0, ?)", wrong + 1)
    assert await market.orphans() == 3


@pytest.mark.clause("8.39")
async def test_prune_keeps_the_newest_old_alert_of_each_engine_action_and_epoch(
    market: MarketStore,
) -> None:
    edge = NOW - 90 * DAY_MS
    dropped = [alert(edge - 9), alert(edge - 8, "CLOSE")]
    base = [
        alert(edge - 7, "CLOSE"),
        alert(edge - 6, epoch=1),
        alert(edge - 5, ticker="ETH"),
        alert(edge - 4, timeframe="1d"),
        alert(edge - 3, indicator="enzo"),
        alert(edge - 1),
    ]
    young = [alert(edge), alert(NOW)]
    await market.commit(work(NOW, alerts=[*dropped, *base, *young]))
    assert await market.prune() == 2
    assert [row async for row in market.alerts()] == [*base, *young]
    assert await market.prune() == 0
    progress = await market.progress()
    assert (progress.pruned_before, progress.alerts_pruned_before) == (EDGE, edge)
    assert progress.last_created_at == NOW
