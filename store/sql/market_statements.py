"""SQL statements of the market store that are longer than a line, for both engines."""

SELECT_CHANGE = """
SELECT c.created_at, (SELECT ticker FROM assets WHERE id = c.asset_id) AS ticker, c.indicator,
  c.timeframe, c.close_time, c.epoch, c."before", c."after", c.price, c.published
"""
SELECT_ALERT = """
SELECT a.created_at, (SELECT ticker FROM assets WHERE id = a.asset_id) AS ticker, a.indicator,
  a.timeframe, a.close_time, a.epoch, a.action, a.price
"""
_SELECT_BARS = """
SELECT a.ticker, b.generation, b.timeframe, b.pass, b.first_open, b.last_open, b.count, b.data
"""
# An index seek, since the revision follows asset_id in the primary key of bars.
LATEST_REVISION = "(SELECT max(generation) FROM bars WHERE asset_id = a.id)"
_TICKER_CONDITION = "(CAST(:ticker AS TEXT) IS NULL OR a.ticker = :ticker)"
# The sign in `+a.id` keeps SQLite from making bars the outer loop, with a search per bar.
LIST_BARS = f"""
{_SELECT_BARS} FROM assets a
  JOIN bars b ON b.asset_id = +a.id AND b.generation = coalesce(:revision, {LATEST_REVISION})
WHERE {_TICKER_CONDITION} AND b.timeframe IN (0, 1, 2) AND b.last_open > :after
ORDER BY a.ticker, b.timeframe, b.last_open
"""
LIST_BARS_OF_COMMIT = f"""
{_SELECT_BARS} FROM bars b JOIN assets a ON a.id = b.asset_id WHERE b.pass = ?
ORDER BY a.ticker, b.generation, b.timeframe, b.last_open
"""
# The newest bar of each asset and native timeframe that closed by :run_s, the time of a run, or by
# the watermark of an asset that lagged in commit :number. It ends a block, except inside a block of
# a backfill, whose data are returned. MATERIALIZED keeps each part from being evaluated again.
LIST_LAST_BARS = f"""
WITH cell AS MATERIALIZED (
  SELECT a.id, a.ticker, p.column1 AS timeframe, {LATEST_REVISION} AS generation,
    coalesce(w.watermark, :run_s) / p.column2 * p.column2 - p.column2 AS opened_by
  FROM assets a CROSS JOIN (VALUES (0, 3600), (2, 86400)) p
  LEFT JOIN watermarks w ON w.pass = :number AND w.asset_id = a.id
), ends AS MATERIALIZED (
  SELECT c.id, c.ticker, c.timeframe, c.generation, c.opened_by, (
    SELECT max(b.last_open) FROM bars b WHERE b.asset_id = c.id AND b.generation = c.generation
      AND b.timeframe = c.timeframe AND b.last_open <= c.opened_by
  ) AS last_open, (
    SELECT min(b.last_open) FROM bars b WHERE b.asset_id = c.id AND b.generation = c.generation
      AND b.timeframe = c.timeframe AND b.last_open > c.opened_by
  ) AS next_open
  FROM cell c
)
SELECT e.ticker, e.timeframe, e.opened_by, e.last_open, b.data FROM ends e
  LEFT JOIN bars b ON b.asset_id = e.id AND b.generation = e.generation
    AND b.timeframe = e.timeframe AND b.last_open = e.next_open AND b.first_open <= e.opened_by
"""
# The bars that the newest revision lacks, of those that closed in (:after, :until]. A row counts
# whole if one of its bars did.
COUNT_MISSING_BARS = f"""
SELECT a.ticker, CAST(sum(m.count) AS BIGINT) AS count
FROM missing_bars m JOIN assets a ON a.id = m.asset_id
WHERE m.last_close > :after AND m.first_close <= :until AND m.generation = {LATEST_REVISION}
GROUP BY a.ticker ORDER BY a.ticker
"""
LIST_REVISIONS = f"SELECT a.ticker, {LATEST_REVISION} AS revision FROM assets a ORDER BY a.ticker"
_SELECT_SOURCES = """
SELECT a.ticker, s.generation AS revision, s.listing, s.pass AS number
FROM sources s JOIN assets a ON a.id = s.asset_id
"""
LIST_SOURCES = f"{_SELECT_SOURCES} ORDER BY a.ticker, s.generation, s.listing"
LIST_SOURCES_OF_COMMIT = f"{_SELECT_SOURCES} WHERE s.pass = ? ORDER BY a.ticker, s.generation"
_SELECT_FUNDING = "SELECT a.ticker, f.settled_at, f.funding_rate"
LIST_FUNDING = f"""
{_SELECT_FUNDING} FROM assets a JOIN funding f ON f.asset_id = +a.id
WHERE {_TICKER_CONDITION} AND f.settled_at > :after ORDER BY a.ticker, f.settled_at
"""
LIST_FUNDING_OF_COMMIT = f"""
{_SELECT_FUNDING} FROM funding f JOIN assets a ON a.id = f.asset_id
WHERE f.pass = ? ORDER BY a.ticker, f.settled_at
"""
LIST_CARRIES = """
SELECT a.ticker, c.timeframe, c.indicator, c.version, c.layout, c.epoch, c.close_time, c.data
FROM carries c JOIN assets a ON a.id = c.asset_id ORDER BY a.ticker, c.timeframe, c.indicator
"""
LIST_EPOCHS = """
SELECT a.ticker, e.timeframe, e.indicator, e.epoch, e.version, e.generation AS revision,
  e.from_close_time, e.reason
FROM epochs e JOIN assets a ON a.id = e.asset_id ORDER BY e.id
"""
LIST_COMMITS = """
SELECT number, market_time, written_at, first_created_at, last_created_at, bars_digest,
  changes_digest, alerts_digest, digest, context_digest
FROM passes ORDER BY number
"""
COUNT_UNREFERENCED = """
SELECT
  (SELECT coalesce(CAST(sum(count) AS BIGINT), 0) FROM bars
    WHERE pass NOT IN (SELECT number FROM passes))
  + (SELECT count(*) FROM funding WHERE pass NOT IN (SELECT number FROM passes))
  + (SELECT count(*) FROM watermarks WHERE pass NOT IN (SELECT number FROM passes))
  + (SELECT count(*) FROM sources WHERE pass NOT IN (SELECT number FROM passes))
  + (SELECT count(*) FROM missing_bars WHERE pass NOT IN (SELECT number FROM passes))
  + (SELECT count(*) FROM assets WHERE pass NOT IN (SELECT number FROM passes))
  + (SELECT count(*) FROM epochs WHERE pass NOT IN (SELECT number FROM passes))
"""
LIST_CHANGES_AFTER = f"""
{SELECT_CHANGE} FROM changes c WHERE c.created_at > :after ORDER BY c.created_at LIMIT :limit
"""
LIST_PUBLISHED_AFTER = LIST_CHANGES_AFTER.replace("ORDER BY", "AND c.published = 1 ORDER BY")
LIST_CHANGE_COLUMNS = """
SELECT created_at, asset_id, indicator, timeframe, close_time, epoch, "before", "after", price,
  published
FROM changes WHERE created_at > :after ORDER BY created_at LIMIT :limit
"""
LIST_ALERTS_AFTER = f"""
{SELECT_ALERT} FROM alerts a WHERE a.created_at > :after ORDER BY a.created_at LIMIT :limit
"""
# Bars, each in one packed value however many commits wrote them, and closes.
BARS_OF_ASSET = f"""
SELECT a.ticker, b.generation, b.timeframe, {{packed_bars}} AS bars FROM assets a CROSS JOIN bars b
WHERE a.ticker = ? AND b.asset_id = a.id AND b.generation = {LATEST_REVISION}
  AND b.timeframe IN (0, 1, 2) AND b.last_open > ?
GROUP BY a.ticker, b.generation, b.timeframe
"""
# The blocks that end within some seconds of each asset's last one, which may have ended long before
# those of other assets. MATERIALIZED and CROSS JOIN make SQLite search the last blocks first.
RECENT_BARS = f"""
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
BARS_OF_LATER_COMMITS = f"""
SELECT a.ticker, b.generation, b.timeframe, {{packed_bars}} AS bars
FROM bars b JOIN assets a ON a.id = b.asset_id
WHERE b.pass > ? AND b.generation = {LATEST_REVISION}
GROUP BY a.ticker, b.generation, b.timeframe
"""
LIST_STEPPED_CLOSES = """
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
