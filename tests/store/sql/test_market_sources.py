"""The source of each revision of bars, which is recorded once, with the revision's first bars."""

from datetime import date

import pytest

from schemas.coverage import Coverage, CoveredAsset
from store.errors import StoreError
from store.market_rows import BarBlock, SourceRow
from store.sql.market_store import MarketStore
from tests.support.row_builders import NOW, make_bar, make_batch, make_blocks
from tests.support.small_market import load_past

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
        snapshots = await market.snapshot(), await load_past(market, NOW + revision)
        for snapshot in snapshots:
            assert snapshot.coverage == make_coverage(listing)
