"""Reads of all that past snapshots are made of, for an index in memory, in slices."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from schemas.vocabulary import TIMEFRAME_DURATIONS_S
from store.bar_blocks import unpack_open_times
from store.codes import HISTORIES_BY_CODE, TIMEFRAME_SETS_BY_CODE, TIMEFRAMES_BY_CODE
from store.market_rows import (
    AssetRow,
    BarRun,
    PastCommit,
    PastCommits,
    PastMissingBars,
    WatermarkRow,
)
from store.sql.database import MarketEngine, Row
from store.sql.lanes import Lane
from store.sql.market_statements import LATEST_REVISION

LIST_COMMITS = """
SELECT number, market_time, written_at, last_created_at FROM passes
WHERE number > ? ORDER BY number LIMIT ?
"""
LIST_ASSETS = f"SELECT a.id, a.ticker, a.publish_from, {LATEST_REVISION} AS revision FROM assets a"
LIST_WATERMARKS = """
SELECT w.pass, a.ticker, w.watermark, w.late, w.history
FROM watermarks w JOIN assets a ON a.id = w.asset_id
WHERE w.pass > ? AND w.pass <= ? ORDER BY w.pass, a.ticker
"""
LIST_MISSING_BARS = """
SELECT asset_id, generation, count, first_close, last_close FROM missing_bars
WHERE pass > ? AND pass <= ?
"""
LIST_READINGS = """
SELECT created_at, asset_id, indicator, timeframe, "after" AS reading FROM changes
WHERE created_at > ? AND created_at <= ? ORDER BY created_at LIMIT ?
"""
FIND_CHANGE = "SELECT created_at FROM changes ORDER BY created_at LIMIT 1 OFFSET ?"
# After a year of hourly commits an asset has 8,760 blocks. The database joins those of consecutive
# bars: only blocks after a hole, those with several bars, and the last one are returned.
_LIST_RUNS = """
SELECT asset_id, generation, timeframe, first_open, last_open, count, previous, is_last, data
FROM (
  SELECT b.asset_id, b.generation, b.timeframe, b.first_open, b.last_open, b.count,
    lag(b.last_open) OVER cell AS previous, lead(b.last_open) OVER cell IS NULL AS is_last,
    CASE WHEN b.count > 2 THEN b.data END AS data
  FROM bars b WHERE {chosen} AND b.timeframe IN (0, 2)
  WINDOW cell AS (PARTITION BY b.asset_id, b.generation, b.timeframe ORDER BY b.last_open)
) block
WHERE is_last OR count > 1 OR previous IS NULL
  OR first_open - previous <> CASE timeframe WHEN 0 THEN 3600 ELSE 86400 END
ORDER BY asset_id, generation, timeframe, last_open
"""
LIST_RUNS_OF_ASSET = _LIST_RUNS.format(chosen="b.asset_id = ? AND b.generation = ? AND b.pass <= ?")
LIST_RUNS_OF_COMMITS = _LIST_RUNS.format(chosen="b.pass > ? AND b.pass <= ?")

# By the id of the asset, the revision, and the code of the timeframe, 1h or 1d.
Runs = dict[tuple[int, int, int], list[BarRun]]


class PastLog:
    """The commits, the changes of readings, and the times of bars; each method reads one slice."""

    def __init__(self, engine: MarketEngine) -> None:
        self._engine = engine

    async def has_more_changes(self, count: int) -> bool:
        """Return whether the store has more than `count` changes."""
        async with self._engine.begin_read(Lane.PAST) as db:
            return bool(await db.execute(FIND_CHANGE, count))

    async def load_commits(self, after_number: int, limit: int) -> PastCommits:
        """Return the commits after a number, oldest first, with what they recorded."""
        async with self._engine.begin_read(Lane.PAST) as db:
            columns = "number, market_time, written_at, last_created_at"
            rows = await db.fetch_packed(columns, LIST_COMMITS, after_number, limit)
            commits = [PastCommit._make(row) for row in sorted(rows)]
            bounds = after_number, commits[-1].number if commits else after_number
            return PastCommits(
                commits=commits,
                assets=[AssetRow(*row) for row in await db.execute(LIST_ASSETS)],
                watermarks=_group_watermarks(await db.execute(LIST_WATERMARKS, *bounds)),
                missing_bars=[
                    PastMissingBars(*row) for row in await db.execute(LIST_MISSING_BARS, *bounds)
                ],
            )

    async def load_readings(self, after: int, until: int, limit: int) -> list[list[int]]:
        """Return the readings after the changes in (`after`, `until`], epoch ms, oldest first.

        A row has `created_at`, the id of the asset, the stored codes of indicator and timeframe,
        and the reading.
        """
        columns = "created_at, asset_id, indicator, timeframe, reading"
        async with self._engine.begin_read(Lane.PAST) as db:
            # An aggregate keeps the order of its rows in practice, but no database promises that.
            return sorted(await db.fetch_packed(columns, LIST_READINGS, after, until, limit))

    async def load_runs_of_asset(self, asset_id: int, revision: int, until_number: int) -> Runs:
        """Return the bars of one revision of an asset, as runs, up to a commit."""
        async with self._engine.begin_read(Lane.PAST) as db:
            values = asset_id, revision, until_number
            return _join_blocks(await db.execute(LIST_RUNS_OF_ASSET, *values))

    async def load_runs_of_commits(self, after_number: int, until_number: int) -> Runs:
        """Return the bars of some commits, as runs."""
        async with self._engine.begin_read(Lane.PAST) as db:
            values = after_number, until_number
            return _join_blocks(await db.execute(LIST_RUNS_OF_COMMITS, *values))


def _group_watermarks(rows: Sequence[Row]) -> dict[int, list[WatermarkRow]]:
    watermarks: defaultdict[int, list[WatermarkRow]] = defaultdict(list)
    for number, ticker, watermark, late, history in rows:
        timeframes = TIMEFRAME_SETS_BY_CODE[late]
        row = WatermarkRow(ticker, watermark, timeframes, HISTORIES_BY_CODE[history])
        watermarks[number].append(row)
    return dict(watermarks)


def _join_blocks(rows: Sequence[Row]) -> Runs:
    """Return the runs of bars that the rows of _LIST_RUNS describe."""
    firsts: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
    lasts: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
    for *names, first_open, last_open, count, previous, is_last, data in rows:
        asset_id, revision, timeframe = names
        cell = asset_id, revision, timeframe
        period_s = TIMEFRAME_DURATIONS_S[TIMEFRAMES_BY_CODE[timeframe]]
        opens = [first_open, last_open][:count] if data is None else unpack_open_times(data)
        if previous is None:
            firsts[cell].append(first_open)
        else:
            opens = [previous, *opens]
        for before, opened in pairwise(opens):
            if opened - before != period_s:
                lasts[cell].append(before)
                firsts[cell].append(opened)
        if is_last:
            lasts[cell].append(last_open)
    # Both lists are in order, and a run ends before the next one begins.
    return {
        cell: [BarRun(*ends) for ends in zip(firsts[cell], lasts[cell], strict=True)]
        for cell in firsts
    }
