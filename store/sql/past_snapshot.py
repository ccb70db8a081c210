"""What was latest at a past time, as functions over a read transaction.

Readings come from the recorded changes, of which each cell's newest old one is never pruned.
"""

from typing import Any

from schemas.vocabulary import HOUR_MS, TIMEFRAMES, run_at_or_before
from store.codes import INDICATORS
from store.market_rows import ReadingRow, Snapshot, WatermarkRow
from store.sql.database import Database, one_value
from store.sql.market_reads import board, coverage, late, past_from, watermarks

WRITTEN = """
SELECT number, market_time FROM passes INDEXED BY passes_written
WHERE coalesce(written_at, market_time) <= ?
ORDER BY coalesce(written_at, market_time) DESC, number DESC LIMIT 1
"""
IS_NOMINAL = "SELECT written_at IS NULL FROM passes WHERE number = ?"
LAST_CREATED = """
SELECT last_created_at FROM passes WHERE number <= ? AND last_created_at IS NOT NULL
ORDER BY number DESC LIMIT 1
"""
READINGS = """
SELECT a.ticker, r.timeframe, r.indicator, (
  SELECT c."after" FROM changes c INDEXED BY cell
  WHERE c.asset_id = r.asset_id AND c.indicator = r.indicator AND c.timeframe = r.timeframe
    AND c.created_at <= ? ORDER BY c.created_at DESC LIMIT 1
)
FROM readings r JOIN assets a ON a.id = r.asset_id
"""


async def snapshot_at(db: Database, at: int) -> Snapshot:
    """Return the state that was latest at a time; within nominal passes that of the last run."""
    number, market_time = await _written(db, at)
    run = run_at_or_before(at)
    if await one_value(db, IS_NOMINAL, number + 1) and run > market_time:
        return await _snapshot(db, run, run + HOUR_MS - 1, [])
    last = await one_value(db, LAST_CREATED, number) or 0
    return await _snapshot(db, market_time, last, await watermarks(db, number))


async def _written(db: Database, at: int) -> tuple[int, int]:
    """Return number and market time of the newest pass written by then, zeros before the first."""
    found: list[tuple[Any, ...]] = await db.rows(WRITTEN, at)
    number, market_time = found[0] if found else (0, 0)
    return number, market_time


async def _snapshot(
    db: Database, market_time: int, last_created_at: int, behind: list[WatermarkRow]
) -> Snapshot:
    rows = await db.rows(READINGS, last_created_at)
    covered = await coverage(db)
    return Snapshot(
        coverage=covered,
        market_time=market_time,
        last_created_at=last_created_at,
        readings=board(
            ReadingRow(ticker, TIMEFRAMES[timeframe], INDICATORS[indicator], reading)
            for ticker, timeframe, indicator, reading in rows
            if reading is not None
        ),
        late=await late(db, behind, covered),
        past_from=await past_from(db),
    )
