-- The source of each generation of bars; market_0006.sql explains it.

CREATE TABLE sources (
  asset_id INTEGER NOT NULL REFERENCES assets (id),
  generation INTEGER NOT NULL CHECK (generation >= 0),
  listing TEXT COLLATE "C" NOT NULL,
  pass BIGINT NOT NULL,
  PRIMARY KEY (asset_id, generation, listing)
);

CREATE INDEX sources_of_pass ON sources (pass);

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
  SELECT asset ->> 'ticker' AS ticker, asset ->> 'listing' AS listing
  FROM coverage, jsonb_array_elements(coverage.document::jsonb -> 'assets') asset
) listed ON listed.ticker = newest.ticker
WHERE newest.generation IS NOT NULL;

CREATE FUNCTION refuse_second_source() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  IF EXISTS (
    SELECT 1 FROM sources WHERE asset_id = NEW.asset_id AND generation = NEW.generation
  ) THEN
    RAISE EXCEPTION 'sources are append-only: a generation of bars has one source'
      USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NEW;
END $$;

CREATE TRIGGER appended BEFORE INSERT ON sources
  FOR EACH ROW EXECUTE FUNCTION refuse_second_source();
CREATE TRIGGER whole BEFORE TRUNCATE ON sources EXECUTE FUNCTION refuse();
CREATE TRIGGER same BEFORE UPDATE ON sources FOR EACH ROW EXECUTE FUNCTION refuse();
CREATE TRIGGER kept BEFORE DELETE ON sources FOR EACH ROW EXECUTE FUNCTION refuse();
ALTER TABLE sources ENABLE ALWAYS TRIGGER appended;
ALTER TABLE sources ENABLE ALWAYS TRIGGER whole;
ALTER TABLE sources ENABLE ALWAYS TRIGGER same;
ALTER TABLE sources ENABLE ALWAYS TRIGGER kept;

-- Bars that a venue never delivered; market_0006.sql explains them.

CREATE TABLE missing_bars (
  pass BIGINT NOT NULL,
  asset_id INTEGER NOT NULL REFERENCES assets (id),
  generation INTEGER NOT NULL CHECK (generation >= 0),
  count INTEGER NOT NULL CHECK (count >= 1),
  first_close BIGINT NOT NULL,
  last_close BIGINT NOT NULL CHECK (last_close >= first_close),
  PRIMARY KEY (pass, asset_id)
);

CREATE TRIGGER whole BEFORE TRUNCATE ON missing_bars EXECUTE FUNCTION refuse();
CREATE TRIGGER same BEFORE UPDATE ON missing_bars EXECUTE FUNCTION refuse();
CREATE TRIGGER kept BEFORE DELETE ON missing_bars EXECUTE FUNCTION refuse();
ALTER TABLE missing_bars ENABLE ALWAYS TRIGGER whole;
ALTER TABLE missing_bars ENABLE ALWAYS TRIGGER same;
ALTER TABLE missing_bars ENABLE ALWAYS TRIGGER kept;

-- Whether the history of a lagging asset was being built at a commit: 0 no, 1 being built, 2 built by
-- this commit. In 1 and 2 the commit steps each of the asset's bars at its own close.

ALTER TABLE watermarks
  ADD COLUMN history SMALLINT NOT NULL DEFAULT 0 CHECK (history IN (0, 1, 2));
