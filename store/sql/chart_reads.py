"""Reads of bars for pages, each in one packed value however many commits wrote them."""

from typing import Any

from schemas.vocabulary import Timeframe
from store.bar_blocks import build_packed_block
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


async def _load(db: Database, sql: str, *values: Any) -> list[BarBlock]:
    # After weeks of hourly commits there are 48,000 blocks, and fetching each would compete with
    # the event loop.
    sql = sql.replace("{packed_bars}", db.packed_bars)
    return [
        build_packed_block(ticker, revision, code, bytes.fromhex(packed))
        for ticker, revision, code, packed in await db.fetch_packed(_COLUMNS, sql, *values)
    ]
