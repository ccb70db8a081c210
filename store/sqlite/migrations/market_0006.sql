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

-- Stored bars of earlier versions: their source is the one that the coverage names, as pass 0. It
-- is unknown if the coverage and the reason of the newest generation name two venues, because
-- such a history may hold bars of both. A live source replaces the bars of an unknown source.
INSERT INTO sources
SELECT newest.asset_id, newest.generation,
  CASE
    WHEN kind.value LIKE 'simulated%' THEN 'simulated'
    WHEN kind.value <> 'live' THEN 'recorded'
    WHEN EXISTS (
      SELECT 1 FROM epochs e
      WHERE e.asset_id = newest.asset_id AND e.generation = newest.generation
        AND e.reason LIKE 'bars of % instead of %'
        AND e.reason NOT LIKE 'bars of ' || listed.listing || ' instead of %'
    ) THEN 'unknown'
    ELSE coalesce(listed.listing, 'unknown')
  END,
  0
FROM (
  SELECT a.id AS asset_id, a.ticker,
    (SELECT max(generation) FROM bars WHERE asset_id = a.id) AS generation
  FROM assets a
) newest
JOIN facts kind ON kind.key = 'source'
LEFT JOIN (
  SELECT json_extract(asset.value, '$.ticker') AS ticker,
    json_extract(asset.value, '$.listing') AS listing
  FROM coverage, json_each(coverage.document, '$.assets') asset
) listed ON listed.ticker = newest.ticker
WHERE newest.generation IS NOT NULL;

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

-- Whether the history of a lagging asset was being built at a commit: 0 no, 1 being built, 2 built by
-- this commit. In 1 and 2 the commit steps each of the asset's bars at its own close.

ALTER TABLE watermarks ADD COLUMN history INTEGER NOT NULL DEFAULT 0 CHECK (history IN (0, 1, 2));
