-- Generations (revisions) of bars: a restated history (a split, a new venue) is stored in addition
-- to the one that it supersedes. Existing bars become generation 0. Blocks of an asset, generation
-- and timeframe never overlap; the layout is that of market_0001.sql.

CREATE TABLE bars_of_generations (
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

INSERT INTO bars_of_generations
SELECT asset_id, 0, timeframe, last_open, first_open, count, pass, data FROM bars;

DROP TABLE bars;

ALTER TABLE bars_of_generations RENAME TO bars;

CREATE INDEX bars_of_pass ON bars (pass);

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
