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
