-- Past snapshots: each cell's newest change at a time, published or not, and the commit at a time.

DROP INDEX feed_cell;

CREATE INDEX cell ON changes (asset_id, indicator, timeframe, created_at);
CREATE INDEX passes_written ON passes (coalesce(written_at, market_time));
