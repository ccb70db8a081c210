-- Feed pages are read from indexes only. Every index ends in the rowid, which is created_at, so a
-- key of codes sorts its rows by time. `published` is in the keys so that the indexes cover reads.

DROP INDEX feed_all;
DROP INDEX feed_asset;
DROP INDEX feed_indicator;
DROP INDEX feed_timeframe;
DROP INDEX feed_direction;
DROP INDEX cell;

CREATE INDEX feed_all ON changes (published) WHERE published = 1;
CREATE INDEX feed_kind ON changes (indicator, timeframe, "after", published) WHERE published = 1;
CREATE INDEX cell ON changes (asset_id, indicator, timeframe, created_at, published, "after");

DROP INDEX alerts_asset;
DROP INDEX alerts_indicator;
DROP INDEX alerts_engine;

CREATE INDEX alerts_kind ON alerts (indicator, timeframe, action);
CREATE INDEX alerts_cell ON alerts (asset_id, indicator, timeframe, created_at, action);
