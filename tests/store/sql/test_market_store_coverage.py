"""The recorded source, which never changes, and the published coverage."""

from datetime import date

import pytest

from schemas.coverage import Coverage, CoveredAsset, CoveredIndicator
from store.errors import StoreError
from store.sql.market_store import MarketStore
from tests.support.row_builders import NOW, make_bar, make_batch, make_blocks

pytestmark = pytest.mark.clause("store")


async def test_a_store_knows_one_source_for_good(market: MarketStore) -> None:
    assert (await market.progress()).source is None
    assert await market.adopt_source("files:/bars", NOW) == NOW
    assert await market.adopt_source("files:/bars", NOW + 1) == NOW
    with pytest.raises(StoreError, match="holds the bars of files:/bars"):
        await market.adopt_source("simulated", NOW)
    assert (await market.progress()).source == "files:/bars"


def make_coverage(recorded_until: int | None) -> Coverage:
    return Coverage(
        published_at=NOW,
        source="recorded",
        recorded_until=recorded_until,
        assets=(CoveredAsset(ticker="BTC", name="B", asset_class="crypto", timeframes=("1h",)),),
        indicators=(CoveredIndicator(id="enzo", name="Enzo", logged=True),),
        renamed_on=date(2026, 7, 1),
    )


async def test_published_coverage_is_in_the_next_snapshot(market: MarketStore) -> None:
    assert (await market.snapshot()).coverage is None
    for recorded_until in (None, NOW):
        await market.publish_coverage(make_coverage(recorded_until))
        assert (await market.snapshot()).coverage == make_coverage(recorded_until)


async def test_a_covered_asset_without_bars_is_late_if_the_source_is_live(
    market: MarketStore,
) -> None:
    await market.publish_coverage(make_coverage(recorded_until=NOW))
    assert (await market.snapshot()).late_tickers == ()
    await market.publish_coverage(make_coverage(recorded_until=None))
    assert (await market.snapshot()).late_tickers == ("BTC",)
    await market.commit(make_batch(bars=make_blocks(make_bar("BTC"))))
    assert (await market.snapshot()).late_tickers == ()
