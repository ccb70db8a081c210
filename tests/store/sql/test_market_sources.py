"""The source of each revision of bars, which is recorded once, with the revision's first bars."""

from datetime import date

import pytest

from schemas.coverage import Coverage, CoveredAsset
from store.errors import StoreError
from store.market_rows import BarBlock, EpochRow, SourceRow
from store.postgres.schema import MARKET_MIGRATIONS as POSTGRES_MIGRATIONS
from store.sql.market_store import MarketStore
from store.sqlite.schema import MARKET_MIGRATIONS as SQLITE_MIGRATIONS
from tests.store.conftest import OpenMarket
from tests.support.row_builders import NOW, make_bar, make_batch, make_blocks
from tests.support.store_homes import SqliteHome, StoreHome, run_sql

pytestmark = pytest.mark.clause("store")

BINANCE, OKX = "binance BTC/USDT", "okx BTC/USDT"


def make_coverage(listing: str | None) -> Coverage:
    btc = CoveredAsset(
        ticker="BTC", name="B", asset_class="crypto", timeframes=("1h",), listing=listing
    )
    return Coverage(
        published_at=NOW,
        recorded_until=None,
        source="live",
        assets=(btc,),
        indicators=(),
        renamed_on=date(2026, 7, 1),
    )


def make_bars(hour: int, source: str | None, revision: int = 0) -> list[BarBlock]:
    return make_blocks(make_bar("BTC", 3600 * hour), revision=revision, source=source)


async def test_a_source_is_recorded_with_the_first_bars_of_its_revision(
    market: MarketStore,
) -> None:
    await market.publish_coverage(make_coverage(OKX))
    for hour, (source, revision) in enumerate([(BINANCE, 0), (BINANCE, 0), (OKX, 1), (OKX, 1)]):
        await market.commit(make_batch(NOW + hour, bars=make_bars(hour, source, revision)))
    rows = [SourceRow("BTC", 0, BINANCE, 1), SourceRow("BTC", 1, OKX, 3)]
    assert await market.sources() == rows
    held = [(await market.commit_content(number)).sources for number in (1, 2, 3, 4)]
    assert held == [rows[:1], [], rows[1:], []]


async def test_a_revision_takes_no_bars_of_a_second_source(market: MarketStore) -> None:
    await market.commit(make_batch(bars=make_bars(0, BINANCE)))
    with pytest.raises(StoreError, match="one source"):
        await market.commit(make_batch(NOW + 1, bars=make_bars(1, OKX)))
    assert (await market.progress()).commit_count == 1
    assert [row.listing for row in await market.sources()] == [BINANCE]
    assert [len(block) for block in await market.bars()] == [1]


async def test_the_coverage_names_the_source_of_the_stored_bars(market: MarketStore) -> None:
    await market.publish_coverage(make_coverage(OKX))
    for revision, listing in enumerate([BINANCE, "gate BTC/USDT"]):
        await market.commit(make_batch(NOW + revision, bars=make_bars(0, listing, revision)))
        snapshots = await market.snapshot(), await market.snapshot_at(NOW + revision)
        for snapshot in snapshots:
            assert snapshot.coverage == make_coverage(listing)


@pytest.mark.parametrize(
    ("source", "listing", "reason", "expected"),
    [
        ("live", BINANCE, "layout", BINANCE),
        ("live", OKX, f"bars of {OKX} instead of {BINANCE}", OKX),
        ("live", BINANCE, f"bars of {OKX} instead of {BINANCE}", "unknown"),
        ("live", None, "layout", "unknown"),
        ("files:/bars", None, "layout", "recorded"),
        ("simulated:0", None, "layout", "simulated"),
    ],
    ids=["stayed", "moved", "moved and perhaps back", "uncovered", "recorded", "simulated"],
)
@pytest.mark.sampled(5)
async def test_a_database_of_an_earlier_version_takes_its_sources_from_the_coverage(
    open_market: OpenMarket,
    home: StoreHome,
    source: str,
    listing: str | None,
    reason: str,
    expected: str,
) -> None:
    market = await open_market()
    await market.adopt_source(source, NOW)
    await market.publish_coverage(make_coverage(listing))
    await market.commit(make_batch(bars=make_bars(0, None)))
    epochs = [EpochRow("BTC", "1h", "enzo", 1, 1, 1, 1, reason)]
    await market.commit(make_batch(NOW + 1, bars=make_bars(0, None, revision=1), epochs=epochs))
    await market.close()
    await forget_sources(home)
    market = await open_market()
    assert await market.sources() == [SourceRow("BTC", 1, expected, 0)]
    assert await market.count_unreferenced() == 0
    await market.commit(make_batch(NOW + 2, bars=make_bars(1, expected, revision=1)))
    assert (await market.commit_content(3)).sources == []


async def forget_sources(home: StoreHome) -> None:
    """Return the market store to the state before sources were recorded."""
    is_sqlite = isinstance(home, SqliteHome)
    names = (SQLITE_MIGRATIONS if is_sqlite else POSTGRES_MIGRATIONS)[5 if is_sqlite else 1 :]
    functions = "refuse_stray_leaves, refuse_stray_tiles, refuse_changed_tiles, refuse_shrinking"
    back = "ALTER TABLE watermarks ADD COLUMN is_late INTEGER NOT NULL DEFAULT 0"
    renamed = "CONSTRAINT watermarks_late_check TO watermarks_is_late_check"
    for statement in (
        "ALTER TABLE watermarks " + ("DROP COLUMN late" if is_sqlite else f"RENAME {renamed}"),
        back if is_sqlite else "ALTER TABLE watermarks RENAME COLUMN late TO is_late",
        "DROP INDEX epochs_of_pass",
        "ALTER TABLE assets DROP COLUMN pass",
        "ALTER TABLE epochs DROP COLUMN pass",
        "ALTER TABLE passes DROP COLUMN context_digest",
        "ALTER TABLE coverage DROP COLUMN digest",
        "DROP TABLE log_leaves",
        "DROP TABLE log_tiles",
        "DROP TABLE log_checkpoint",
        *(() if is_sqlite else (f"DROP FUNCTION {functions}",)),
        "DROP TABLE sources",
        "DROP TABLE missing_bars",
        "ALTER TABLE watermarks DROP COLUMN history",
        "DROP INDEX bar_ends" if is_sqlite else "DROP FUNCTION refuse_second_source",
    ):
        await run_sql(home, statement)
    for name in names:
        await run_sql(home, "DELETE FROM migrations WHERE name = ?", name)
