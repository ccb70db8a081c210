-- The alerts tier. In carries and epochs, indicator may be the code of an alert engine. Changes and
-- alerts share one sequence of created_at.

-- A small table (90 days of a few engines): timeframe and direction need no index of their own.
CREATE TABLE alerts (
  created_at INTEGER PRIMARY KEY,
  asset_id INTEGER NOT NULL REFERENCES assets (id),
  indicator INTEGER NOT NULL,
  timeframe INTEGER NOT NULL,
  close_time INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  action INTEGER NOT NULL CHECK (action BETWEEN 0 AND 4),
  price REAL NOT NULL,
  UNIQUE (close_time, asset_id, indicator, timeframe, action, epoch)
) STRICT;

CREATE INDEX alerts_asset ON alerts (asset_id, created_at);
CREATE INDEX alerts_indicator ON alerts (indicator, created_at);
CREATE INDEX alerts_engine ON alerts (asset_id, indicator, timeframe, created_at);

-- NULL if a commit wrote no alert, as for all commits before this migration.
ALTER TABLE passes ADD COLUMN alerts_digest BLOB;

CREATE TRIGGER alerts_insert BEFORE INSERT ON alerts
WHEN NEW.created_at <= max(
    (SELECT coalesce(max(created_at), 0) FROM alerts),
    (SELECT coalesce(max(created_at), 0) FROM changes)
  )
  OR EXISTS (
    SELECT 1 FROM alerts
    WHERE asset_id = NEW.asset_id AND indicator = NEW.indicator AND timeframe = NEW.timeframe
      AND close_time = NEW.close_time AND action = NEW.action AND epoch = NEW.epoch
  )
BEGIN
  SELECT RAISE(ABORT, 'alerts are append-only: created_at must grow and an id is used once');
END;

CREATE TRIGGER alerts_update BEFORE UPDATE ON alerts
BEGIN
  SELECT RAISE(ABORT, 'alerts are append-only');
END;

CREATE TRIGGER alerts_delete BEFORE DELETE ON alerts
WHEN OLD.created_at >= coalesce(
  (SELECT market_time - 7776000000 FROM clock WHERE id = 1), OLD.created_at
)
BEGIN
  SELECT RAISE(ABORT, 'alerts are append-only: younger than the retention of 90 days');
END;

DROP TRIGGER changes_insert;

CREATE TRIGGER changes_insert BEFORE INSERT ON changes
WHEN NEW.created_at <= max(
    (SELECT coalesce(max(created_at), 0) FROM changes),
    (SELECT coalesce(max(created_at), 0) FROM alerts)
  )
  OR EXISTS (
    SELECT 1 FROM changes
    WHERE asset_id = NEW.asset_id AND indicator = NEW.indicator AND timeframe = NEW.timeframe
      AND close_time = NEW.close_time AND epoch = NEW.epoch
  )
BEGIN
  SELECT RAISE(ABORT, 'changes are append-only: created_at must grow and an id is used once');
END;
