"""Writes the sample that visitors see: the last year of a simulated market of a few assets.

Only the rows of the last hours are published, so that pages of the sample are small.
"""

import asyncio
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from compute.bars import DAY_S
from compute.hourly_pipeline import HourlyPipeline
from compute.indicators.registry import INDICATORS
from compute.sources.simulated import SimulatedSource
from compute.universe import Universe, load_universe
from rest_shim.sample import SAMPLE_FILE
from schemas.vocabulary import DAY_MS, HOUR_MS, RUN_DELAY_MS, TIMEFRAMES
from serving.prices import Prices
from serving.snapshot_cache import SnapshotCache
from store.opening import open_sqlite_market
from store.sql.ledger_reads import ALERT, CELL_CODES, MOVES, PUBLISHED
from web.asset_page import CHART_DAYS

TICKERS = ("BTC", "ETH", "SOL", "XRP", "NVDA", "AAPL", "TSLA", "XAU", "XAG")
# The last hours before this end have every kind of change and of alert.
PRICED_AT = 1_790_812_800  # 2026-10-01
END = 1000 * PRICED_AT + DAY_MS + 4 * HOUR_MS + RUN_DELAY_MS
HISTORY_S = 420 * DAY_S
PUBLISHED_MS = 5 * HOUR_MS
PRICE_DIGITS, VOLUME_DIGITS = 6, 4


async def build_parts(folder: Path) -> dict[str, Any]:
    """Return the arrays of the file; the market is computed in a store in the folder."""
    packaged = load_universe()
    assets = tuple(packaged.by_ticker[ticker] for ticker in TICKERS)
    # So early that there are no readings of the outdated dexter.
    universe = Universe(assets=assets, renamed_on=date(2025, 1, 1))
    origin = PRICED_AT - HISTORY_S
    source = SimulatedSource(universe, origin, lambda: END, priced_at=PRICED_AT)
    market = await open_sqlite_market(folder / "market.db")
    try:
        pipeline = await HourlyPipeline.open(market, source, universe, INDICATORS, lambda: END)
        await pipeline.run_until(pipeline.due_hour)
        stored, names = await market.snapshot(), await market.ledger_reads.load_names()
        assert stored.coverage is not None
        by_ticker = {asset.ticker: asset for asset in stored.coverage.assets}
        coverage = stored.coverage.model_copy(
            update={
                "source": "recorded",
                "published_at": END,
                "recorded_until": END,
                "served_from": None,
                "assets": tuple(by_ticker[ticker] for ticker in names.tickers.values()),
            }
        )
        parts = [part async for part in market.ledger_reads.load_rows(0, END + HOUR_MS)]
        rows = np.sort(np.concatenate(parts), order="created_at")
        prices = Prices(SnapshotCache(market))
        bars = {
            f"{ticker}.{timeframe}": _pack(
                await prices.load_bars(ticker, timeframe, END - CHART_DAYS[timeframe] * DAY_MS)
            )
            for ticker in TICKERS
            for timeframe in TIMEFRAMES
        }
    finally:
        await market.close()
    text = np.frombuffer(coverage.model_dump_json().encode(), np.uint8)
    rows = _trim(rows, [*names.tickers])
    # Columns compress to less than rows.
    columns = {f"rows.{name}": np.ascontiguousarray(rows[name]) for name in rows.dtype.names}
    return {"coverage": text, **columns, **bars}


def _pack(bars: Any) -> Any:
    """Return bars as one table; open times are epoch seconds."""
    times, *prices, volumes = bars
    rounded = [_shorten(column, PRICE_DIGITS) for column in prices]
    return np.vstack([np.array(times) // 1000, *rounded, _shorten(volumes, VOLUME_DIGITS)])


def _trim(rows: Any, ids: list[int]) -> Any:
    """Return the rows, of which only the last are published; assets are numbered from 0."""
    code, is_old = rows["code"], rows["created_at"] <= END - PUBLISHED_MS
    move = code % MOVES
    is_change = move < ALERT
    code -= PUBLISHED * (is_old & is_change & (move >= PUBLISHED))
    asset = code // (MOVES * CELL_CODES)
    code += (np.searchsorted(ids, asset) - asset) * MOVES * CELL_CODES
    rows["price"] = _shorten(rows["price"], PRICE_DIGITS)
    return rows[is_change | ~is_old]


def _shorten(values: Any, digits: int) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values]


def main() -> None:
    """Write the file into the package."""
    with TemporaryDirectory() as folder:
        parts = asyncio.run(build_parts(Path(folder)))
    np.savez_compressed(Path(__file__).parents[1] / "rest_shim" / SAMPLE_FILE, **parts)


if __name__ == "__main__":
    main()
