-- Market data of one service. The codes of timeframes, indicators and actions are in
-- schemas/vocabulary.py. REPLACE deletes rows without firing DELETE triggers unless a pragma is
-- set, so BEFORE INSERT triggers refuse rows that would replace others. Every stored value belongs to
-- a digest or follows from one (store/digest.py). pass: the commit that wrote the row.

CREATE TABLE facts (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;

CREATE TABLE coverage (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  document TEXT NOT NULL,
  digest BLOB NOT NULL
) STRICT;

CREATE TABLE clock (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  market_time INTEGER NOT NULL
) STRICT;

-- A pass is a commit. written_at: the market clock when it was written, NULL if that is nominal.
-- alerts_digest is NULL if the commit wrote no alert.
CREATE TABLE passes (
  number INTEGER PRIMARY KEY,
  market_time INTEGER NOT NULL,
  written_at INTEGER,
  first_created_at INTEGER,
  last_created_at INTEGER,
  bars_digest BLOB NOT NULL,
  changes_digest BLOB NOT NULL,
  alerts_digest BLOB,
  context_digest BLOB NOT NULL,
  digest BLOB NOT NULL
) STRICT;

CREATE INDEX passes_written ON passes (coalesce(written_at, market_time));

CREATE TABLE assets (
  id INTEGER PRIMARY KEY,
  ticker TEXT NOT NULL UNIQUE,
  publish_from INTEGER NOT NULL,
  pass INTEGER NOT NULL
) STRICT;

-- The bars of one asset, generation (revision) and native timeframe in one commit, oldest first. A
-- restated history (a split, a new venue) is a new generation, stored in addition to the one that it
-- supersedes. data: 48 bytes per bar, little-endian: open_time (int64, epoch s), open, high, low,
-- close, volume (float64 each). Blocks of an asset, generation and timeframe never overlap, so
-- last_open sorts them.
CREATE TABLE bars (
  asset_id INTEGER NOT NULL REFERENCES assets (id),
  generation INTEGER NOT NULL CHECK (generation >= 0),
  timeframe INTEGER NOT NULL CHECK (timeframe IN (0, 1, 2)),
  last_open INTEGER NOT NULL CHECK (last_open >= first_open),
  first_open INTEGER NOT NULL,
  count INTEGER NOT NULL CHECK (count >= 1),
  pass INTEGER NOT NULL,
  data BLOB NOT NULL CHECK (length(data) = 48 * count),
  PRIMARY KEY (asset_id, generation, timeframe, last_open)
) STRICT, WITHOUT ROWID;

CREATE INDEX bars_of_pass ON bars (pass);

-- Where the blocks of bars begin and end. Without it, SQLite reads whole rows of up to 46 KB to
-- compare them with a key: the last bars of 251 assets took 50 ms at each new snapshot, now 2 ms.

CREATE INDEX bar_ends ON bars (asset_id, generation, timeframe, last_open, first_open);

-- The source of each generation (revision) of bars: a venue and symbol, or the kind of source. Row
-- and first bars of a generation are written in one commit, and its digest covers both. The key
-- has the listing, so that an audit can see two sources of one generation; the trigger refuses
-- them.
CREATE TABLE sources (
  asset_id INTEGER NOT NULL REFERENCES assets (id),
  generation INTEGER NOT NULL CHECK (generation >= 0),
  listing TEXT NOT NULL,
  pass INTEGER NOT NULL,
  PRIMARY KEY (asset_id, generation, listing)
) STRICT, WITHOUT ROWID;

CREATE INDEX sources_of_pass ON sources (pass);

CREATE TABLE funding (
  asset_id INTEGER NOT NULL REFERENCES assets (id),
  settled_at INTEGER NOT NULL,
  funding_rate REAL NOT NULL,
  pass INTEGER NOT NULL,
  PRIMARY KEY (asset_id, settled_at)
) STRICT, WITHOUT ROWID;

CREATE INDEX funding_of_pass ON funding (pass);

-- Assets whose source had not delivered all bars up to the hour of a commit. late: a bit for each
-- timeframe whose due candle was not stepped (1h 1, 4h 2, 1d 4). history: whether the history of the
-- asset was being built: 0 no, 1 being built, 2 built by this commit; in 1 and 2 the commit steps
-- each of the asset's bars at its own close.
CREATE TABLE watermarks (
  pass INTEGER NOT NULL,
  asset_id INTEGER NOT NULL REFERENCES assets (id),
  watermark INTEGER NOT NULL,
  late INTEGER NOT NULL CHECK (late BETWEEN 0 AND 7),
  history INTEGER NOT NULL CHECK (history IN (0, 1, 2)),
  PRIMARY KEY (pass, asset_id)
) STRICT, WITHOUT ROWID;

-- Bars that an asset's session expected before its newest bar and that its venue never delivered.
-- A commit counts them when the asset's readings go on without them.
CREATE TABLE missing_bars (
  pass INTEGER NOT NULL,
  asset_id INTEGER NOT NULL REFERENCES assets (id),
  generation INTEGER NOT NULL CHECK (generation >= 0),
  count INTEGER NOT NULL CHECK (count >= 1),
  first_close INTEGER NOT NULL,
  last_close INTEGER NOT NULL CHECK (last_close >= first_close),
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

-- Changes and alerts share one sequence of created_at.
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

CREATE TABLE readings (
  asset_id INTEGER NOT NULL REFERENCES assets (id),
  timeframe INTEGER NOT NULL,
  indicator INTEGER NOT NULL,
  reading INTEGER NOT NULL CHECK (reading BETWEEN -1 AND 1),
  PRIMARY KEY (asset_id, timeframe, indicator)
) STRICT, WITHOUT ROWID;

-- In carries and epochs, indicator may be the code of an alert engine.
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
  pass INTEGER NOT NULL,
  UNIQUE (asset_id, timeframe, indicator, epoch)
) STRICT;

CREATE INDEX epochs_of_pass ON epochs (pass);

-- The transparency log: one leaf for each published row of both tiers, in the order of created_at.
-- Leaves outlive the rows that retention deletes.
CREATE TABLE log_leaves (
  created_at INTEGER PRIMARY KEY,
  leaf INTEGER NOT NULL UNIQUE,
  salt BLOB NOT NULL CHECK (length(salt) = 16)
) STRICT;

-- Tiles as C2SP's tlog-tiles has them: up to 256 hashes of 32 bytes. A tile only grows.
CREATE TABLE log_tiles (
  level INTEGER NOT NULL CHECK (level >= 0),
  number INTEGER NOT NULL CHECK (number >= 0),
  hashes BLOB NOT NULL CHECK (length(hashes) BETWEEN 32 AND 8192 AND length(hashes) % 32 = 0),
  PRIMARY KEY (level, number)
) STRICT;

-- The newest signed checkpoint, with its size and the key (vkey) that verifies it. refusal says why
-- no newer one is signed, and is NULL if nothing is wrong.
CREATE TABLE log_checkpoint (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  size INTEGER NOT NULL CHECK (size >= 0),
  note TEXT,
  vkey TEXT,
  refusal TEXT,
  CHECK ((note IS NULL) = (vkey IS NULL))
) STRICT;

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

-- A superseded generation takes no more bars.
CREATE TRIGGER bars_insert BEFORE INSERT ON bars
WHEN NEW.last_open < NEW.first_open
  OR NEW.generation < (SELECT max(generation) FROM bars WHERE asset_id = NEW.asset_id)
  OR NEW.generation > 1 + (
    SELECT coalesce(max(generation), 0) FROM bars WHERE asset_id = NEW.asset_id
  )
  OR NEW.first_open <= (
    SELECT max(last_open) FROM bars
    WHERE asset_id = NEW.asset_id AND generation = NEW.generation AND timeframe = NEW.timeframe
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

CREATE TRIGGER sources_insert BEFORE INSERT ON sources
WHEN EXISTS (
  SELECT 1 FROM sources WHERE asset_id = NEW.asset_id AND generation = NEW.generation
)
BEGIN
  SELECT RAISE(ABORT, 'sources are append-only: a generation of bars has one source');
END;

CREATE TRIGGER sources_update BEFORE UPDATE ON sources
BEGIN
  SELECT RAISE(ABORT, 'sources are append-only');
END;

CREATE TRIGGER sources_delete BEFORE DELETE ON sources
BEGIN
  SELECT RAISE(ABORT, 'sources are append-only');
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

CREATE TRIGGER missing_bars_insert BEFORE INSERT ON missing_bars
WHEN EXISTS (SELECT 1 FROM missing_bars WHERE pass = NEW.pass AND asset_id = NEW.asset_id)
BEGIN
  SELECT RAISE(ABORT, 'missing_bars are append-only');
END;

CREATE TRIGGER missing_bars_update BEFORE UPDATE ON missing_bars
BEGIN
  SELECT RAISE(ABORT, 'missing_bars are append-only');
END;

CREATE TRIGGER missing_bars_delete BEFORE DELETE ON missing_bars
BEGIN
  SELECT RAISE(ABORT, 'missing_bars are append-only');
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

CREATE TRIGGER log_leaves_insert BEFORE INSERT ON log_leaves
WHEN NEW.leaf <> (SELECT coalesce(max(leaf) + 1, 0) FROM log_leaves)
  OR NEW.created_at <= (SELECT coalesce(max(created_at), 0) FROM log_leaves)
BEGIN
  SELECT RAISE(ABORT, 'log_leaves are append-only: leaf is the next one, and created_at grows');
END;

CREATE TRIGGER log_leaves_update BEFORE UPDATE ON log_leaves
BEGIN
  SELECT RAISE(ABORT, 'log_leaves are append-only');
END;

CREATE TRIGGER log_leaves_delete BEFORE DELETE ON log_leaves
BEGIN
  SELECT RAISE(ABORT, 'log_leaves are append-only');
END;

CREATE TRIGGER log_tiles_insert BEFORE INSERT ON log_tiles
WHEN NEW.number <> (SELECT coalesce(max(number) + 1, 0) FROM log_tiles WHERE level = NEW.level)
BEGIN
  SELECT RAISE(ABORT, 'log_tiles are append-only: number is the next one of its level');
END;

CREATE TRIGGER log_tiles_update BEFORE UPDATE ON log_tiles
WHEN NEW.level <> OLD.level OR NEW.number <> OLD.number
  OR substr(NEW.hashes, 1, length(OLD.hashes)) <> OLD.hashes
BEGIN
  SELECT RAISE(ABORT, 'log_tiles are append-only: a tile keeps its hashes');
END;

CREATE TRIGGER log_tiles_delete BEFORE DELETE ON log_tiles
BEGIN
  SELECT RAISE(ABORT, 'log_tiles are append-only');
END;

CREATE TRIGGER log_checkpoint_insert BEFORE INSERT ON log_checkpoint
WHEN EXISTS (SELECT 1 FROM log_checkpoint)
BEGIN
  SELECT RAISE(ABORT, 'log_checkpoint has one row');
END;

CREATE TRIGGER log_checkpoint_update BEFORE UPDATE ON log_checkpoint
WHEN NEW.size < OLD.size OR (NEW.note IS NULL AND OLD.note IS NOT NULL)
BEGIN
  SELECT RAISE(ABORT, 'the signed log never shrinks');
END;

CREATE TRIGGER log_checkpoint_delete BEFORE DELETE ON log_checkpoint
BEGIN
  SELECT RAISE(ABORT, 'log_checkpoint has one row');
END;
