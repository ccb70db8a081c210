-- What market_0006.sql creates in a SQLite file.

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
