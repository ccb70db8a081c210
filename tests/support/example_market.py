"""A small hand-made market: six assets, their first readings and a few flips.

Tests use it, and so do the examples in the documentation.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import date

from compute.indicators.registry import INDICATORS
from schemas.coverage import Coverage, CoveredAsset, CoveredIndicator
from schemas.vocabulary import INDICATOR_IDS, LOGGED_IDS, TIMEFRAMES, SourceKind, Timeframe
from store.market_rows import Batch, ChangeRow, WatermarkRow
from store.sql.market_store import MarketStore

HOUR_MS = 3_600_000
NOON = 1_790_769_600_000 + 180_000  # 2026-09-30T12:03:00Z
NAMES = {indicator.id: indicator.name for indicator in INDICATORS}
ASSETS = (
    CoveredAsset(ticker="ETH", name="Ethereum", asset_class="crypto", timeframes=TIMEFRAMES),
    CoveredAsset(ticker="BTC", name="Bitcoin", asset_class="crypto", timeframes=TIMEFRAMES),
    CoveredAsset(ticker="NVDA", name="NVIDIA", asset_class="stock", timeframes=TIMEFRAMES),
    CoveredAsset(ticker="XAU", name="Gold", asset_class="metal", timeframes=("1d",)),
    CoveredAsset(ticker="DARK", name="Uncovered", asset_class="crypto", timeframes=()),
    CoveredAsset(
        ticker="MATIC",
        name="Polygon",
        asset_class="crypto",
        timeframes=TIMEFRAMES,
        removed_on=date(2026, 9, 27),
        continues_as="POL",
    ),
)


def make_coverage(source: SourceKind = "simulated", recorded_until: int | None = None) -> Coverage:
    """Return a coverage of ASSETS, published at NOON."""
    return Coverage(
        published_at=NOON,
        source=source,
        recorded_until=recorded_until,
        assets=ASSETS,
        indicators=tuple(
            CoveredIndicator(id=id_, name=NAMES[id_], logged=id_ in LOGGED_IDS)
            for id_ in INDICATOR_IDS
        ),
        renamed_on=date(2026, 8, 1),
    )


def make_change(
    created_at: int,
    ticker: str,
    indicator: str,
    timeframe: Timeframe,
    after: int,
    before: int | None = None,
) -> ChangeRow:
    """Return a change, or a first reading if `before` is None; only logged ones are published."""
    return ChangeRow(
        created_at=created_at,
        ticker=ticker,
        indicator=indicator,
        timeframe=timeframe,
        close_time=created_at // HOUR_MS * 3600,
        epoch=1,
        before=before,
        after=after,
        price=101.5,
        published=before is not None and indicator in LOGGED_IDS,
    )


def make_first_readings(start: int) -> Iterator[ChangeRow]:
    """Yield first readings: 1 for crypto, -1 for the rest, 0 for ceres; dexter on BTC and MATIC."""
    created_at = start
    for asset in ASSETS:
        legacy = ("dexter",) if asset.ticker in {"BTC", "MATIC"} else ()
        for indicator in (*INDICATOR_IDS, *legacy):
            for timeframe in asset.timeframes:
                usual = 1 if asset.asset_class == "crypto" else -1
                after = 0 if indicator == "ceres" else usual
                yield make_change(created_at, asset.ticker, indicator, timeframe, after)
                created_at += 1


def make_flips(start: int, count: int) -> list[ChangeRow]:
    """Return alternating flips of two cells, each a millisecond and a bar after the previous."""
    cells = (("BTC", "trend_oracle"), ("ETH", "enzo"))
    rows = []
    for number in range(count):
        ticker, indicator = cells[number % 2]
        before = 1 if number % 4 < 2 else -1
        row = make_change(start + number, ticker, indicator, "1h", -before, before)
        rows.append(row._replace(close_time=row.close_time - (count - number) * 3600))
    return rows


def make_batch(market_time: int, changes: list[ChangeRow]) -> Batch:
    """Return a batch of changes only."""
    return Batch(market_time=market_time, bars=(), funding=(), changes=changes, carries=())


async def seed_market(market: MarketStore, published: Coverage, flip_count: int = 6) -> None:
    """Commit unpublished first readings, then changes, then flips at NOON with ETH late."""
    await market.publish_coverage(published)
    before = NOON - 400 * 24 * HOUR_MS
    await market.commit(make_batch(before, list(make_first_readings(before))))
    hour_ago = NOON - HOUR_MS
    await market.commit(
        make_batch(
            hour_ago,
            [
                make_change(hour_ago, "BTC", "ceres", "4h", 1, 0),
                make_change(hour_ago + 1, "NVDA", "llnr", "1d", 0, -1),
                make_change(hour_ago + 2, "BTC", "perpkit", "1h", -1, 1),
            ],
        )
    )
    late = [WatermarkRow("ETH", (NOON - HOUR_MS) // HOUR_MS * 3600, late=TIMEFRAMES[:1])]
    await market.commit(replace(make_batch(NOON, make_flips(NOON, flip_count)), watermarks=late))
