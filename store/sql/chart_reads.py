"""Reads of bars, each in one packed value however many commits wrote them, and of closes."""

from collections.abc import Iterable
from typing import Any

from schemas.vocabulary import TIMEFRAME_DURATIONS_S, Timeframe
from store.bar_blocks import build_packed_block, find_close
from store.codes import TIMEFRAMES_BY_CODE
from store.market_rows import BarBlock
from store.sql.database import Database
from store.sql.market_statements import LATEST_REVISION

_COLUMNS = "ticker, generation, timeframe, bars"
_OF_ASSET = f"""
SELECT a.ticker, b.generation, b.timeframe, {{packed_bars}} AS bars FROM assets a CROSS JOIN bars b
WHERE a.ticker = ? AND b.asset_id = a.id AND b.generation = {LATEST_REVISION}
  AND b.timeframe IN (0, 1, 2) AND b.last_open > ?
GROUP BY a.ticker, b.generation, b.timeframe
"""
# The blocks that end within some seconds of each asset's last one, which may have ended long before
# those of other assets. MATERIALIZED and CROSS JOIN make SQLite search the last blocks first.
_RECENT = f"""
WITH cell AS MATERIALIZED (
  SELECT a.id, a.ticker, p.column1 AS timeframe, {LATEST_REVISION} AS generation
  FROM assets a CROSS JOIN (VALUES (0), (1), (2)) p
), newest AS MATERIALIZED (
  SELECT c.id, c.ticker, c.timeframe, c.generation, (
    SELECT max(b.last_open) FROM bars b
    WHERE b.asset_id = c.id AND b.generation = c.generation AND b.timeframe = c.timeframe
  ) AS last_open
  FROM cell c
)
SELECT n.ticker, n.generation, n.timeframe, {{packed_bars}} AS bars FROM newest n CROSS JOIN bars b
WHERE b.asset_id = n.id AND b.generation = n.generation AND b.timeframe = n.timeframe
  AND b.last_open > n.last_open - ?
GROUP BY n.ticker, n.generation, n.timeframe
"""
_OF_LATER_COMMITS = f"""
SELECT a.ticker, b.generation, b.timeframe, {{packed_bars}} AS bars
FROM bars b JOIN assets a ON a.id = b.asset_id
WHERE b.pass > ? AND b.generation = {LATEST_REVISION}
GROUP BY a.ticker, b.generation, b.timeframe
"""
_LIST_STEPPED_CLOSES = """
SELECT c.timeframe, max(c.close_time) AS close_time
FROM carries c JOIN assets a ON a.id = c.asset_id WHERE a.ticker = ? GROUP BY c.timeframe
"""
# The block with the bar that closed at :closed_at, which may have opened off its boundary.
LIST_BLOCKS_AT = f"""
WITH cell AS MATERIALIZED (
  SELECT a.id, a.ticker, p.column1 AS timeframe, p.column2 AS period_s,
    {LATEST_REVISION} AS generation
  FROM assets a CROSS JOIN (VALUES (2, 86400), (0, 3600)) p
  WHERE :tickers LIKE '%,' || a.ticker || ',%'
), block AS MATERIALIZED (
  SELECT l.id, l.ticker, l.timeframe, l.generation, (
    SELECT min(b.last_open) FROM bars b WHERE b.asset_id = l.id AND b.generation = l.generation
      AND b.timeframe = l.timeframe AND b.last_open > :closed_at - 2 * l.period_s
  ) AS last_open
  FROM cell l
)
SELECT k.ticker, k.timeframe, b.data FROM block k JOIN bars b ON b.asset_id = k.id
  AND b.generation = k.generation AND b.timeframe = k.timeframe AND b.last_open = k.last_open
ORDER BY k.ticker, k.timeframe DESC
"""


async def load_asset_bars(db: Database, ticker: str, after: int) -> list[BarBlock]:
    """Return an asset's bars that open after a time (epoch s), and some older ones."""
    return await _load(db, _OF_ASSET, ticker, after)


async def load_recent_bars(
    db: Database, span_s: int, after_number: int | None = None
) -> list[BarBlock]:
    """Return the bars of the last `span_s` before each asset's last bar, and some older ones.

    With `after_number`, return those that later commits wrote.
    """
    if after_number is None:
        return await _load(db, _RECENT, span_s)
    return await _load(db, _OF_LATER_COMMITS, after_number)


async def load_stepped_closes(db: Database, ticker: str) -> dict[Timeframe, int]:
    """Return the close (epoch s) of the last bar that an asset's readings stepped on."""
    rows = await db.execute(_LIST_STEPPED_CLOSES, ticker)
    return {TIMEFRAMES_BY_CODE[row["timeframe"]]: row["close_time"] for row in rows}


async def load_closes(db: Database, closed_at: int, tickers: Iterable[str]) -> dict[str, float]:
    """Return the close of the bar of each ticker that closed at a time (epoch s), if it has one."""
    values = {"closed_at": closed_at, "tickers": f",{','.join(tickers)},"}
    closes = {}
    for ticker, code, data in await db.execute_page(LIST_BLOCKS_AT, values):
        period_s = TIMEFRAME_DURATIONS_S[TIMEFRAMES_BY_CODE[code]]
        close = find_close(bytes(data), closed_at - period_s)
        # An asset has bars of one timeframe; if it has two, the shorter ones count.
        if close is not None:
            closes[ticker] = close
    return closes


async def _load(db: Database, sql: str, *values: Any) -> list[BarBlock]:
    # After weeks of hourly commits there are 48,000 blocks, and fetching each would compete with
    # the event loop.
    sql = sql.replace("{packed_bars}", db.packed_bars)
    return [
        build_packed_block(ticker, revision, code, bytes.fromhex(packed))
        for ticker, revision, code, packed in await db.fetch_packed(_COLUMNS, sql, *values)
    ]
