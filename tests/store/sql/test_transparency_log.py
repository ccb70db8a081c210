"""The log has a leaf for each published row of a market store, on every engine."""

import pytest

from store import log_tree as tree
from store.log_tree import Range, TileId, hash_row
from store.market_rows import AlertRow, CheckpointRow
from store.sql.market_store import MarketStore
from store.sql.migrate_database import move_market
from store.store_errors import DamagedError, StoreError
from tests.support.row_builders import (
    DAY_MS,
    NOW,
    make_alert,
    make_batch,
    make_change,
)
from tests.support.small_market import list_feed
from tests.support.store_homes import (
    REFUSED,
    HomeFactory,
    StoreHome,
    open_and_close,
    run_sql,
)
from tests.support.tampering import open_unguarded

pytestmark = pytest.mark.clause("proof")

TICKERS = ("BTC", "ETH", "SOL")


async def commit_rows(market: MarketStore, count: int, first: int = 0) -> None:
    """Commit published changes, each with its own bar, of which every fifth is not published."""
    changes = [
        make_change(NOW + number, TICKERS[number % 3], published=number % 5 > 0)
        for number in range(first, first + count)
    ]
    alerts = [make_alert(NOW + first + count, "CLOSE")]
    starts = dict.fromkeys(TICKERS, 5)
    await market.commit(make_batch(NOW, changes=changes, alerts=alerts, publish_from=starts))


async def assert_complete(market: MarketStore) -> None:
    """Assert that leaves and tiles are those of all rows of the feed."""
    rows, log = await list_feed(market), market.feed_log
    head = await log.head()
    size = head.size
    leaves = await log.leaves(0, size)
    assert [leaf.leaf for leaf in leaves] == list(range(len(rows)))
    assert [leaf.created_at for leaf in leaves] == [row.created_at for row in rows]
    assert {len(leaf.salt) for leaf in leaves} <= {16}
    assert len({leaf.salt for leaf in leaves}) == size
    hashes = [hash_row(row, leaf.salt) for row, leaf in zip(rows, leaves, strict=True)]
    expected = tree.extend_tiles({}, 0, b"".join(hashes))
    assert {tile: await log.tile(tile) for tile in expected} == expected
    if rows:
        assert head.root == tree.hash_ranges([Range(0, size)], expected)[0]


async def test_each_commit_appends_a_leaf_for_each_of_its_published_rows(
    market: MarketStore,
) -> None:
    assert (await market.feed_log.head()).root == tree.EMPTY_ROOT
    for first in (0, 10, 300, 900):
        await commit_rows(market, 7 if first < 300 else 400, first)
        await assert_complete(market)


async def forget_log(home: StoreHome) -> None:
    """Empty the log, as no program of ours does."""
    for name in ("log_leaves", "log_tiles"):
        async with open_unguarded(home, name) as session:
            assert await session.write(f"DELETE FROM {name}")


async def test_a_commit_appends_in_parts_what_the_log_lacks(
    market: MarketStore, home: StoreHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    await commit_rows(market, 1000)
    await forget_log(home)
    monkeypatch.setattr("store.sql.market_writes.LEAVES_PER_APPEND", 300)
    monkeypatch.setattr("store.sql.transparency_log.LEAVES_PER_APPEND", 300)
    await commit_rows(market, 20, 2000)
    await assert_complete(market)


async def test_leaves_outlive_the_rows_that_retention_deletes(market: MarketStore) -> None:
    await commit_rows(market, 100)
    leaves = await market.feed_log.leaves(0, 81)
    later = NOW + 400 * DAY_MS
    await market.commit(make_batch(later))
    assert await market.prune() > 0
    await market.commit(make_batch(later, changes=[make_change(later + 1)]))
    assert await market.feed_log.leaves(0, 81) == leaves
    assert (await market.feed_log.head()).size == 82


async def test_a_row_is_found_by_its_id(filled: MarketStore) -> None:
    rows = await list_feed(filled)
    leaves = await filled.feed_log.leaves(0, 9)
    assert [await filled.feed_log.find_leaf(row.id) for row in rows] == leaves
    assert any(isinstance(row, AlertRow) for row in rows)


@pytest.mark.parametrize(
    "row_id",
    [
        "",
        "universe.BTC",
        "universe.BTC.enzo.1h.5.0",
        "universe.BTC.perpkit.4h.{at}.0",
        "universe.BTC.nothing.1h.{at}.0",
        "universe.BTC.enzo.1h.0{at}.0",
        "universe.BTC.enzo.1h.{at}.LONG.0",
        "alerts.BTC.perpkit.4h.{at}.0",
        "alerts.BTC.perpkit.4h.{at}.HOLD.0",
        "universe.BTC.enzo.1h.99999999999999999999.0",
        "universe.BTC.enzo.1h.{at}.999999999999",
        "universe.ETH.enzo.1h.{unpublished}.0",
    ],
)
async def test_an_id_that_no_published_row_has_is_unknown(market: MarketStore, row_id: str) -> None:
    hidden = make_change(NOW + 9, "ETH", published=False)
    await market.commit(
        make_batch(NOW, changes=[make_change(NOW), hidden], publish_from={"BTC": 5, "ETH": 5})
    )
    assert await market.feed_log.find_leaf(row_id.format(at=NOW, unpublished=NOW + 9)) is None


async def test_a_tile_or_a_proof_beyond_the_tree_does_not_exist(market: MarketStore) -> None:
    await commit_rows(market, 20)
    assert await market.feed_log.tile(TileId(0, 1)) is None
    assert await market.feed_log.tile(TileId(1, 0)) is None
    with pytest.raises(DamagedError, match="tile 0/0 is missing or too short"):
        await market.feed_log.prove_inclusion(0, 300)


async def test_the_newest_checkpoint_replaces_the_one_before(market: MarketStore) -> None:
    log = market.feed_log
    assert await log.checkpoint() == CheckpointRow(0, None, None, None)
    for checkpoint in (
        CheckpointRow(0, None, None, "no key"),
        CheckpointRow(5, "note", "vkey"),
        CheckpointRow(9, "other", "vkey", "a reason"),
    ):
        await log.save_checkpoint(checkpoint)
        assert await log.checkpoint() == checkpoint
    with pytest.raises(StoreError, match="never shrinks"):
        await log.save_checkpoint(CheckpointRow(8, "other", "vkey"))


ATTACKS = {
    "a leaf is skipped": "INSERT INTO log_leaves SELECT created_at + 1, leaf + 2, salt "
    "FROM log_leaves WHERE leaf = 4",
    "a leaf is older than others": "INSERT INTO log_leaves SELECT created_at - 5, leaf + 1, salt "
    "FROM log_leaves WHERE leaf = 4",
    "a leaf has a short salt": "INSERT INTO log_leaves SELECT created_at + 1, leaf + 1, "
    "substr(salt, 2) FROM log_leaves WHERE leaf = 4",
    "a tile loses a hash": "UPDATE log_tiles SET hashes = substr(hashes, 1, 32)",
    "a tile swaps its hashes": "UPDATE log_tiles "
    "SET hashes = substr(hashes, 33, 32) || substr(hashes, 1, 32)",
    "a tile moves": "UPDATE log_tiles SET number = number + 1",
    "a tile is skipped": "INSERT INTO log_tiles SELECT level, number + 2, hashes FROM log_tiles",
    "a tile has half a hash": "UPDATE log_tiles SET hashes = hashes || substr(hashes, 1, 16)",
    "the signed size shrinks": "UPDATE log_checkpoint SET size = size - 1",
    "the signed note is removed": "UPDATE log_checkpoint SET note = NULL, vkey = NULL",
    "the key is removed": "UPDATE log_checkpoint SET vkey = NULL",
    "a second checkpoint is stored": "INSERT INTO log_checkpoint VALUES (1, 9, 'n', 'k', NULL)",
}


@pytest.mark.parametrize("attack", ATTACKS)
async def test_the_database_refuses_a_log_that_is_not_append_only(
    market: MarketStore, home: StoreHome, attack: str
) -> None:
    await commit_rows(market, 5)
    await market.feed_log.save_checkpoint(CheckpointRow(5, "note", "vkey"))
    with pytest.raises(REFUSED):
        await run_sql(home, ATTACKS[attack])


async def test_a_move_carries_the_log_over_and_the_target_continues_it(
    market: MarketStore, new_home: HomeFactory
) -> None:
    for first in (0, 600):
        await commit_rows(market, 150, first)
    await market.feed_log.save_checkpoint(CheckpointRow(300, "note", "vkey"))
    async with new_home() as home, open_and_close(home.open_market()) as target:
        await move_market(market._engine, target._engine, lambda done, total: None)
        head = await market.feed_log.head(3)
        assert await target.feed_log.head(3) == head
        leaves = await market.feed_log.leaves(0, head.size)
        assert await target.feed_log.leaves(0, head.size) == leaves
        await commit_rows(target, 150, 800)
        await assert_complete(target)
