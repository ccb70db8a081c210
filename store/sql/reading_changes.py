"""Reads since when readings have held, and the closes of the bars that they rest on."""

from collections.abc import Iterable

from schemas.vocabulary import TIMEFRAME_CODES, TIMEFRAME_DURATIONS_S, Timeframe
from store.bar_blocks import find_close
from store.codes import KEYS_BY_CODE, TIMEFRAMES_BY_CODE
from store.market_rows import LastChange
from store.sql.database import Database
from store.sql.feed import format_tickers
from store.sql.market_statements import LATEST_REVISION

_IS_REQUESTED = "(CAST(:tickers AS TEXT) IS NULL OR :tickers LIKE '%,' || a.ticker || ',%')"
# The index `cell` finds the last change of a cell. MATERIALIZED keeps it from being searched again.
LIST_LAST_CHANGES = f"""
WITH asset AS MATERIALIZED (
  SELECT a.id, a.ticker, coalesce({LATEST_REVISION}, 0) AS generation
  FROM assets a WHERE {_IS_REQUESTED}
), held AS MATERIALIZED (
  SELECT s.id, s.ticker, s.generation, r.indicator, r.timeframe, (
    SELECT n.created_at FROM changes n INDEXED BY cell
    WHERE n.asset_id = r.asset_id AND n.indicator = r.indicator AND n.timeframe = r.timeframe
      AND n.created_at <= :until ORDER BY n.created_at DESC LIMIT 1
  ) AS created_at
  FROM asset s JOIN readings r ON r.asset_id = s.id
  WHERE CAST(:timeframe AS INTEGER) IS NULL OR r.timeframe = :timeframe
)
SELECT h.ticker, h.indicator, h.timeframe, c.created_at, c.price, h.generation = coalesce((
  SELECT e.generation FROM epochs e WHERE e.asset_id = h.id AND e.timeframe = h.timeframe
    AND e.indicator = h.indicator AND e.epoch = c.epoch
), 0) AS is_current
FROM held h JOIN changes c ON c.created_at = h.created_at
"""
# The block with the bar that closed at :closed_at, which may have opened off its boundary.
LIST_BLOCKS_AT = f"""
WITH cell AS MATERIALIZED (
  SELECT a.id, a.ticker, p.column1 AS timeframe, p.column2 AS period_s,
    {LATEST_REVISION} AS generation
  FROM assets a CROSS JOIN (VALUES (2, 86400), (0, 3600)) p WHERE {_IS_REQUESTED}
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


async def load_last_changes(
    db: Database, until: int, tickers: Iterable[str] | None, timeframe: Timeframe | None
) -> list[LastChange]:
    """Return the last change of each cell up to a time (epoch ms), published or not.

    None stands for all tickers or timeframes.
    """
    values = {
        "until": until,
        "tickers": format_tickers(tickers),
        "timeframe": None if timeframe is None else TIMEFRAME_CODES[timeframe],
    }
    return [
        LastChange(ticker, KEYS_BY_CODE[key], TIMEFRAMES_BY_CODE[code], at, price, bool(current))
        for ticker, key, code, at, price, current in await db.execute_page(
            LIST_LAST_CHANGES, values
        )
    ]


async def load_closes(db: Database, closed_at: int, tickers: Iterable[str]) -> dict[str, float]:
    """Return the close of the bar of each ticker that closed at a time (epoch s), if it has one."""
    values = {"closed_at": closed_at, "tickers": format_tickers(tickers)}
    closes = {}
    for ticker, code, data in await db.execute_page(LIST_BLOCKS_AT, values):
        period_s = TIMEFRAME_DURATIONS_S[TIMEFRAMES_BY_CODE[code]]
        close = find_close(bytes(data), closed_at - period_s)
        # An asset has bars of one timeframe; if it has two, the shorter ones count.
        if close is not None:
            closes[ticker] = close
    return closes
