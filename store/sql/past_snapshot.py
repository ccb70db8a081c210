"""Rebuilds the snapshot of a past time, as functions over a read transaction.

Readings come from the recorded changes; pruning keeps each cell's newest change before the cutoff.
"""

from schemas.vocabulary import HOUR_MS, find_latest_run
from store.lagging import find_building_tickers, find_late
from store.market_rows import PastKey, StoredSnapshot
from store.sql.database import Database, fetch_value
from store.sql.market_reads import (
    READING_COLUMNS,
    Readings,
    group_readings,
    load_coverage,
    load_history_start,
    load_last_closes,
    load_missing_bars,
    load_publish_from,
    load_watermarks,
)

LATEST_COMMIT_AT = """
SELECT number, market_time FROM passes INDEXED BY passes_written
WHERE coalesce(written_at, market_time) <= ?
ORDER BY coalesce(written_at, market_time) DESC, number DESC LIMIT 1
"""
IS_NOMINAL = "SELECT written_at IS NULL FROM passes WHERE number = ?"
LAST_CREATED_AT = """
SELECT last_created_at FROM passes WHERE number <= ? AND last_created_at IS NOT NULL
ORDER BY number DESC LIMIT 1
"""
READINGS_AT = """
SELECT a.ticker, r.timeframe, r.indicator, (
  SELECT c."after" FROM changes c INDEXED BY cell
  WHERE c.asset_id = r.asset_id AND c.indicator = r.indicator AND c.timeframe = r.timeframe
    AND c.created_at <= ? ORDER BY c.created_at DESC LIMIT 1
) AS reading
FROM readings r JOIN assets a ON a.id = r.asset_id
"""


async def find_past_key(db: Database, at: int) -> PastKey:
    """Return the key of the state that was the latest at a time (epoch ms)."""
    number, market_time = await _find_commit_at(db, at)
    # A commit without written_at (backfill, replay) spans many hourly runs with nominal times. If
    # the next commit is one, `at` may lie inside it: the snapshot is that of the last run by then.
    run = find_latest_run(at)
    if await fetch_value(db, IS_NOMINAL, number + 1) and run > market_time:
        return PastKey(None, run, run + HOUR_MS - 1)
    last = await fetch_value(db, LAST_CREATED_AT, number) or 0
    return PastKey(number, market_time, last)


async def load_past_snapshot(db: Database, key: PastKey, known: Readings | None) -> StoredSnapshot:
    """Return the state of a key; `known` are its readings if they were loaded before."""
    published_coverage = await load_coverage(db)
    watermarks = await load_watermarks(db, key.number)
    published_from = await load_publish_from(db)
    building, unbuilt = find_building_tickers(watermarks, published_from)
    return StoredSnapshot(
        coverage=published_coverage,
        market_time=key.market_time,
        last_created_at=key.last_created_at,
        readings=await _load_readings_at(db, key.last_created_at) if known is None else known,
        late=find_late(watermarks, published_coverage, published_from),
        building_tickers=building,
        unbuilt_tickers=unbuilt,
        history_starts_at=await load_history_start(db),
        last_closes=await load_last_closes(db, key.number, key.market_time),
        missing_bars=await load_missing_bars(db, key.market_time),
    )


async def _find_commit_at(db: Database, at: int) -> tuple[int, int]:
    """Return number and market time of the newest commit by then, zeros before the first."""
    found = await db.execute(LATEST_COMMIT_AT, at)
    return (found[0]["number"], found[0]["market_time"]) if found else (0, 0)


async def _load_readings_at(db: Database, last_created_at: int) -> Readings:
    """Return each cell's reading after a change (epoch ms), without the cells that had none."""
    return group_readings(await db.fetch_packed(READING_COLUMNS, READINGS_AT, last_created_at))
