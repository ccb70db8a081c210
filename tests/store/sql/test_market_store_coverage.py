"""The recorded source, which never changes, and the published coverage."""

from dataclasses import replace
from datetime import date

import pytest

from schemas.coverage import Coverage, CoveredAsset, CoveredIndicator
from store.digest import digest_bars
from store.errors import StoreError
from store.market_rows import WatermarkRow
from store.sql.market_store import MarketStore
from tests.support.row_builders import NOW, make_bar, make_batch, make_blocks
from tests.support.small_market import load_past

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


@pytest.mark.clause("2.4.16")
async def test_a_snapshot_tells_assets_that_are_being_built_from_late_ones(
    market: MarketStore,
) -> None:
    await market.publish_coverage(make_coverage(recorded_until=None))
    rows = [
        WatermarkRow("BTC", -1, history="building"),
        WatermarkRow("ETH", 3600, late=("1h",), history="building"),
        WatermarkRow("NVDA", -1, history="building"),
        WatermarkRow("SOL", 3600, history="built"),
    ]
    publish_from = {"BTC": NOW, "ETH": NOW, "NVDA": NOW + 1, "SOL": NOW}
    await market.commit(make_batch(watermarks=rows, publish_from=publish_from))
    for snapshot in (await market.snapshot(), await load_past(market, NOW + 3_600_000)):
        assert snapshot.building_tickers == ("BTC", "ETH", "NVDA")
        assert snapshot.unbuilt_tickers == ("BTC",)
        assert tuple(snapshot.late) == ("ETH",)
    assert await market.watermarks() == rows
    (commit,) = await market.commits()
    assert commit.bars_digest == digest_bars((), (), rows)
    other = [replace(row, history="followed") for row in rows]
    assert digest_bars((), (), other) != commit.bars_digest


async def test_a_covered_asset_without_bars_is_late_if_the_source_is_live(
    market: MarketStore,
) -> None:
    await market.publish_coverage(make_coverage(recorded_until=NOW))
    assert (await market.snapshot()).late == {}
    await market.publish_coverage(make_coverage(recorded_until=None))
    assert tuple((await market.snapshot()).late) == ("BTC",)
    await market.commit(make_batch(bars=make_blocks(make_bar("BTC"))))
    assert (await market.snapshot()).late == {}
