"""A small hand-made market: six assets, their first readings and a few flips.

Tests use it, and so do the examples in the documentation.
"""

import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import date

import numpy as np

from compute.covered_assets import build_coverage as as_served
from compute.indicators.registry import INDICATORS
from compute.sources.simulated import SimulatedSource, choose_start
from compute.universe import Asset, load_universe
from schemas.coverage import Coverage, CoveredAsset, CoveredIndicator
from schemas.vocabulary import (
    DAY_MS,
    INDICATOR_IDS,
    LOGGED_IDS,
    STORED_KEYS,
    TIMEFRAME_DURATIONS_S,
    TIMEFRAMES,
    AssetClass,
    SourceKind,
    Timeframe,
    compute_midnight_s,
)
from store.market_rows import BarBlock, Batch, CarryRow, ChangeRow, WatermarkRow
from store.sql.market_store import MarketStore

HOUR_MS = 3_600_000
NOON = 1_790_769_600_000 + 180_000  # 2026-09-30T12:03:00Z
LATER = NOON + HOUR_MS
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
    return Batch(market_time=market_time, bars=(), funding=(), changes=changes, carries=())


async def seed_market(market: MarketStore, published: Coverage) -> None:
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
    await market.commit(replace(make_batch(NOON, make_flips(NOON, 6)), watermarks=late))


SEED = 1
FIRST, START = NOON - 60 * DAY_MS, NOON - 31 * DAY_MS
OFFSET_MS = 180_000
# The probability that a reading changes in a run. It gives 0.8, 0.23 and 0.04 changes a day, as
# measured on the recorded coins.
CHANCES: dict[Timeframe, float] = {"1h": 0.8 / 24, "4h": 0.23 / 6, "1d": 0.04}
# The share of readings that leave neutral in the direction of their asset's trend, and the share
# that change direction without passing through neutral.
ALIKE, STRAIGHT = 0.85, 0.1
PRICES: dict[AssetClass, tuple[float, float]] = {
    "crypto": (0.01, 1000.0),
    "stock": (20.0, 900.0),
    "metal": (30.0, 4000.0),
}


def make_full_coverage() -> Coverage:
    universe = load_universe()
    source = SimulatedSource(universe, choose_start(NOON // 1000).origin, lambda: NOON)
    return as_served(universe, source, INDICATORS, NOON, None)


async def fill_full_universe(market: MarketStore, *, has_prices: bool = False) -> None:
    """Commit first readings of the whole universe, then a month of changes up to NOON.

    With `has_prices`, changes have the prices of two months of simulated bars, which are committed
    too. By default there is one bar of each asset.
    """
    await market.publish_coverage(make_full_coverage())
    rows = list(_generate_rows(random.Random(SEED)))
    await market.commit(make_batch(FIRST, _order_rows(row for row in rows if row.before is None)))
    changes = _order_rows(row for row in rows if row.before is not None)
    bars, carries = {block.ticker: block for block in _generate_last_bars()}, list[CarryRow]()
    if has_prices:
        carries = list(_generate_carries())
        bars = await _fetch_bars()
        changes = [_set_price(row, bars[row.ticker]) for row in changes]
    batch = replace(make_batch(NOON, changes), bars=list(bars.values()), carries=carries)
    await market.commit(batch)


def _generate_rows(draw: random.Random) -> Iterator[ChangeRow]:
    """Yield the first reading and the changes of every cell, created at the time of their run."""
    universe = load_universe()
    for asset in universe.assets:
        low, high = PRICES[asset.asset_class]
        price = low * (high / low) ** draw.random()
        # Only assets tracked before the rename have the legacy key dexter.
        is_old = asset.added_on < universe.renamed_on
        for timeframe in TIMEFRAMES:
            lean = 1 if draw.random() < 0.5 else -1
            for key in STORED_KEYS if is_old else INDICATOR_IDS:
                reading = _draw_next_reading(draw, 0, lean) if draw.random() < 0.5 else 0
                yield make_change(FIRST, asset.ticker, key, timeframe, reading)
                for run in _draw_runs(draw, asset, timeframe) if key in INDICATOR_IDS else ():
                    before, reading = reading, _draw_next_reading(draw, reading, lean)
                    row = make_change(run, asset.ticker, key, timeframe, reading, before)
                    drawn = price * (0.95 + 0.1 * draw.random())
                    yield row._replace(price=float(f"{drawn:.6g}"))


def _generate_last_bars() -> Iterator[BarBlock]:
    """Yield the newest hourly bar of each asset, of stocks an earlier one."""
    closed = NOON // HOUR_MS * 3600
    for asset in load_universe().assets:
        opened = closed - 3600 * (1 if asset.asset_class == "crypto" else 16)
        yield BarBlock(asset.ticker, "1h", np.array([opened]), np.ones((1, 5)))


async def _fetch_bars() -> dict[str, BarBlock]:
    """Return the hourly bars of a simulated market between FIRST and NOON, by ticker."""
    universe, now = load_universe(), NOON // 1000
    start = choose_start(now)
    source = SimulatedSource(
        universe, start.origin, lambda: NOON + DAY_MS, priced_at=start.priced_at
    )
    blocks = {}
    for ticker in universe.by_ticker:
        bars = (await source.fetch(ticker, FIRST // 1000, now)).bars
        values = np.column_stack([bars.open, bars.high, bars.low, bars.close, bars.volume])
        blocks[ticker] = BarBlock(ticker, "1h", bars.open_time, values)
    return blocks


def _generate_carries() -> Iterator[CarryRow]:
    """Yield a carry per asset and timeframe, which says up to where charts show bars."""
    for ticker in load_universe().by_ticker:
        for timeframe, duration_s in TIMEFRAME_DURATIONS_S.items():
            closed = NOON // 1000 // duration_s * duration_s
            yield CarryRow(ticker, timeframe, INDICATOR_IDS[0], 1, "", 1, closed, b"")


def _set_price(row: ChangeRow, block: BarBlock) -> ChangeRow:
    """Return the row with the last close before it."""
    closed = int(
        np.searchsorted(block.open_time + HOUR_MS // 1000, row.created_at // 1000, "right")
    )
    return row._replace(price=float(block.values[max(closed - 1, 0), 3]))


def _draw_runs(draw: random.Random, asset: Asset, timeframe: Timeframe) -> Iterator[int]:
    """Yield the times (epoch ms) of the runs in which a reading changes."""
    period = TIMEFRAME_DURATIONS_S[timeframe] * 1000
    end = NOON if asset.removed_on is None else compute_midnight_s(asset.removed_on) * 1000
    run = START // period * period + OFFSET_MS
    while True:
        # The number of runs without a change is geometrically distributed.
        waited = math.log(1 - draw.random()) / math.log(1 - CHANCES[timeframe])
        run += (1 + int(waited)) * period
        if run > end:
            return
        yield run


def _draw_next_reading(draw: random.Random, reading: int, lean: int) -> int:
    if reading:
        return -reading if draw.random() < STRAIGHT else 0
    return lean if draw.random() < ALIKE else -lean


def _order_rows(rows: Iterable[ChangeRow]) -> list[ChangeRow]:
    """Return rows in the order of the feed; rows of the same run are a millisecond apart."""
    ordered = sorted(
        rows,
        key=lambda row: (
            row.created_at,
            TIMEFRAMES.index(row.timeframe),
            row.ticker,
            STORED_KEYS.index(row.indicator),
        ),
    )
    spaced, newest = [], 0
    for row in ordered:
        newest = max(row.created_at, newest + 1)
        spaced.append(row._replace(created_at=newest))
    return spaced
