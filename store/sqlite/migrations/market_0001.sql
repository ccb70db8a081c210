-- Market data of one service. The codes of timeframes, indicators and actions are in
-- schemas/vocabulary.py. REPLACE deletes rows without firing DELETE triggers unless a pragma is
-- set, so BEFORE INSERT triggers refuse rows that would replace others.

CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE coverage (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  document TEXT NOT NULL
) STRICT;

CREATE TABLE clock (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  market_time INTEGER NOT NULL
) STRICT;

-- A pass is a commit. written_at: the market clock when it was written, NULL if that is nominal.
CREATE TABLE passes (
  number INTEGER PRIMARY KEY,
  market_time INTEGER NOT NULL,
  written_at INTEGER,
  first_created_at INTEGER,
  last_created_at INTEGER,
  bars_digest BLOB NOT NULL,
  changes_digest BLOB NOT NULL,
  digest BLOB NOT NULL
) STRICT;

CREATE TABLE assets (
  id INTEGER PRIMARY KEY,
  ticker TEXT NOT NULL UNIQUE,
  publish_from INTEGER NOT NULL
) STRICT;

-- The bars of one asset and native timeframe in one commit, oldest first. data: 48 bytes per bar,
-- little-endian: open_time (int64, epoch s), open, high, low, close, volume (float64 each).
-- Blocks of an asset and timeframe never overlap, so last_open sorts them.
CREATE TABLE bars (
  asset_id INTEGER NOT NULL REFERENCES assets (id),
  timeframe INTEGER NOT NULL CHECK (timeframe IN (0, 1, 2)),
  last_open INTEGER NOT NULL CHECK (last_open >= first_open),
  first_open INTEGER NOT NULL,
  count INTEGER NOT NULL CHECK (count >= 1),
  pass INTEGER NOT NULL,
  data BLOB NOT NULL CHECK (length(data) = 48 * count),
  PRIMARY KEY (asset_id, timeframe, last_open)
) STRICT, WITHOUT ROWID;

CREATE INDEX bars_of_pass ON bars (pass);

CREATE TABLE funding (
  asset_id INTEGER NOT NULL REFERENCES assets (id),
  settled_at INTEGER NOT NULL,
  funding_rate REAL NOT NULL,
  pass INTEGER NOT NULL,
  PRIMARY KEY (asset_id, settled_at)
) STRICT, WITHOUT ROWID;

CREATE INDEX funding_of_pass ON funding (pass);

-- Assets whose source had not delivered all bars up to the hour of a commit.
CREATE TABLE watermarks (
  pass INTEGER NOT NULL,
  asset_id INTEGER NOT NULL REFERENCES assets (id),
  watermark INTEGER NOT NULL,
  is_late INTEGER NOT NULL CHECK (is_late IN (0, 1)),
  PRIMARY KEY (pass, asset_id)
) STRICT, WITHOUT ROWID;

-- close_time is the first column of UNIQUE, so that new rows are appended to its index.
CREATE TABLE changes (
  created_at INTEGER PRIMARY KEY,
  asset_id INTEGER NOT NULL REFERENCES assets (id),
  indicator INTEGER NOT NULL,
  timeframe INTEGER NOT NULL,
  close_time INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  "before" INTEGER CHECK ("before" BETWEEN -1 AND 1),
  "after" INTEGER NOT NULL CHECK ("after" BETWEEN -1 AND 1),
  price REAL NOT NULL,
  published INTEGER NOT NULL CHECK (published IN (0, 1)),
  UNIQUE (close_time, asset_id, indicator, timeframe, epoch)
) STRICT;

CREATE INDEX feed_all ON changes (created_at) WHERE published = 1;
CREATE INDEX feed_asset ON changes (asset_id, created_at) WHERE published = 1;
CREATE INDEX feed_indicator ON changes (indicator, created_at) WHERE published = 1;
CREATE INDEX feed_timeframe ON changes (timeframe, created_at) WHERE published = 1;
CREATE INDEX feed_direction ON changes ("after", created_at) WHERE published = 1;
CREATE INDEX feed_cell ON changes (asset_id, indicator, timeframe, created_at)
  WHERE published = 1;

CREATE TABLE readings (
  asset_id INTEGER NOT NULL REFERENCES assets (id),
  timeframe INTEGER NOT NULL,
  indicator INTEGER NOT NULL,
  reading INTEGER NOT NULL CHECK (reading BETWEEN -1 AND 1),
  PRIMARY KEY (asset_id, timeframe, indicator)
) STRICT, WITHOUT ROWID;

CREATE TABLE carries (
  asset_id INTEGER NOT NULL REFERENCES assets (id),
  timeframe INTEGER NOT NULL,
  indicator INTEGER NOT NULL,
  version INTEGER NOT NULL,
  layout TEXT NOT NULL,
  epoch INTEGER NOT NULL,
  close_time INTEGER NOT NULL,
  data BLOB NOT NULL,
  PRIMARY KEY (asset_id, timeframe, indicator)
) STRICT;

CREATE TABLE epochs (
  id INTEGER PRIMARY KEY,
  asset_id INTEGER NOT NULL REFERENCES assets (id),
  timeframe INTEGER NOT NULL,
  indicator INTEGER NOT NULL,
  epoch INTEGER NOT NULL,
  version INTEGER NOT NULL,
  generation INTEGER NOT NULL,
  from_close_time INTEGER NOT NULL,
  reason TEXT NOT NULL,
  UNIQUE (asset_id, timeframe, indicator, epoch)
) STRICT;

CREATE TRIGGER changes_insert BEFORE INSERT ON changes
WHEN NEW.created_at <= (SELECT coalesce(max(created_at), 0) FROM changes)
  OR EXISTS (
    SELECT 1 FROM changes
    WHERE asset_id = NEW.asset_id AND indicator = NEW.indicator AND timeframe = NEW.timeframe
      AND close_time = NEW.close_time AND epoch = NEW.epoch
  )
BEGIN
  SELECT RAISE(ABORT, 'changes are append-only: created_at must grow and an id is used once');
END;

CREATE TRIGGER changes_update BEFORE UPDATE ON changes
BEGIN
  SELECT RAISE(ABORT, 'changes are append-only');
END;

CREATE TRIGGER changes_delete BEFORE DELETE ON changes
WHEN OLD.created_at >= coalesce(
  (SELECT market_time - 31536000000 FROM clock WHERE id = 1), OLD.created_at
)
BEGIN
  SELECT RAISE(ABORT, 'changes are append-only: younger than the retention of 365 days');
END;

CREATE TRIGGER assets_insert BEFORE INSERT ON assets
WHEN EXISTS (SELECT 1 FROM assets WHERE id = NEW.id)
  OR EXISTS (SELECT 1 FROM assets WHERE ticker = NEW.ticker)
BEGIN
  SELECT RAISE(ABORT, 'assets are append-only');
END;

CREATE TRIGGER assets_update BEFORE UPDATE ON assets
BEGIN
  SELECT RAISE(ABORT, 'assets are append-only');
END;

CREATE TRIGGER assets_delete BEFORE DELETE ON assets
BEGIN
  SELECT RAISE(ABORT, 'assets are append-only');
END;

CREATE TRIGGER bars_insert BEFORE INSERT ON bars
WHEN NEW.last_open < NEW.first_open
  OR NEW.first_open <= (
    SELECT max(last_open) FROM bars
    WHERE asset_id = NEW.asset_id AND timeframe = NEW.timeframe
  )
BEGIN
  SELECT RAISE(ABORT, 'bars are append-only: a block is later than every stored one');
END;

CREATE TRIGGER bars_update BEFORE UPDATE ON bars
BEGIN
  SELECT RAISE(ABORT, 'bars are append-only');
END;

CREATE TRIGGER bars_delete BEFORE DELETE ON bars
BEGIN
  SELECT RAISE(ABORT, 'bars are append-only');
END;

CREATE TRIGGER funding_insert BEFORE INSERT ON funding
WHEN EXISTS (
  SELECT 1 FROM funding WHERE asset_id = NEW.asset_id AND settled_at = NEW.settled_at
)
BEGIN
  SELECT RAISE(ABORT, 'funding is append-only: this settlement is already stored');
END;

CREATE TRIGGER funding_update BEFORE UPDATE ON funding
BEGIN
  SELECT RAISE(ABORT, 'funding is append-only');
END;

CREATE TRIGGER funding_delete BEFORE DELETE ON funding
BEGIN
  SELECT RAISE(ABORT, 'funding is append-only');
END;

CREATE TRIGGER watermarks_insert BEFORE INSERT ON watermarks
WHEN EXISTS (SELECT 1 FROM watermarks WHERE pass = NEW.pass AND asset_id = NEW.asset_id)
BEGIN
  SELECT RAISE(ABORT, 'watermarks are append-only');
END;

CREATE TRIGGER watermarks_update BEFORE UPDATE ON watermarks
BEGIN
  SELECT RAISE(ABORT, 'watermarks are append-only');
END;

CREATE TRIGGER watermarks_delete BEFORE DELETE ON watermarks
BEGIN
  SELECT RAISE(ABORT, 'watermarks are append-only');
END;

CREATE TRIGGER passes_insert BEFORE INSERT ON passes
WHEN NEW.number <> (SELECT coalesce(max(number), 0) + 1 FROM passes)
BEGIN
  SELECT RAISE(ABORT, 'passes are append-only: numbers follow each other');
END;

CREATE TRIGGER passes_update BEFORE UPDATE ON passes
BEGIN
  SELECT RAISE(ABORT, 'passes are append-only');
END;

CREATE TRIGGER passes_delete BEFORE DELETE ON passes
BEGIN
  SELECT RAISE(ABORT, 'passes are append-only');
END;

CREATE TRIGGER epochs_insert BEFORE INSERT ON epochs
WHEN EXISTS (SELECT 1 FROM epochs WHERE id = NEW.id)
  OR EXISTS (
    SELECT 1 FROM epochs
    WHERE asset_id = NEW.asset_id AND timeframe = NEW.timeframe
      AND indicator = NEW.indicator AND epoch = NEW.epoch
  )
BEGIN
  SELECT RAISE(ABORT, 'epochs are append-only');
END;

CREATE TRIGGER epochs_update BEFORE UPDATE ON epochs
BEGIN
  SELECT RAISE(ABORT, 'epochs are append-only');
END;

CREATE TRIGGER epochs_delete BEFORE DELETE ON epochs
BEGIN
  SELECT RAISE(ABORT, 'epochs are append-only');
END;

CREATE TRIGGER clock_insert BEFORE INSERT ON clock
WHEN EXISTS (SELECT 1 FROM clock)
BEGIN
  SELECT RAISE(ABORT, 'the clock has one row');
END;

CREATE TRIGGER clock_update BEFORE UPDATE ON clock
WHEN NEW.market_time < OLD.market_time
BEGIN
  SELECT RAISE(ABORT, 'the clock never goes back');
END;

CREATE TRIGGER clock_delete BEFORE DELETE ON clock
BEGIN
  SELECT RAISE(ABORT, 'the clock has one row');
END;
