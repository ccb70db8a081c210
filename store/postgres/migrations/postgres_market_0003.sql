-- The transparency log; market_0008.sql explains its tables.

CREATE TABLE log_leaves (
  created_at BIGINT PRIMARY KEY,
  leaf BIGINT NOT NULL UNIQUE CHECK (leaf >= 0),
  salt BYTEA NOT NULL CHECK (length(salt) = 16)
);

CREATE TABLE log_tiles (
  level SMALLINT NOT NULL CHECK (level >= 0),
  number BIGINT NOT NULL CHECK (number >= 0),
  hashes BYTEA NOT NULL CHECK (length(hashes) BETWEEN 32 AND 8192 AND length(hashes) % 32 = 0),
  PRIMARY KEY (level, number)
);

CREATE TABLE log_checkpoint (
  id SMALLINT PRIMARY KEY CHECK (id = 1),
  size BIGINT NOT NULL CHECK (size >= 0),
  note TEXT,
  vkey TEXT,
  refusal TEXT,
  CHECK ((note IS NULL) = (vkey IS NULL))
);

-- New leaves come after all others in both orders, and number them without a gap.
CREATE FUNCTION refuse_stray_leaves() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
DECLARE
  oldest BIGINT := (SELECT min(created_at) FROM fresh);
  first_leaf BIGINT := (SELECT min(leaf) FROM fresh);
BEGIN
  IF (SELECT count(*) FROM fresh) <> (SELECT count(*) FROM log_leaves WHERE created_at >= oldest)
    OR first_leaf <> (SELECT coalesce(max(leaf) + 1, 0) FROM log_leaves WHERE created_at < oldest)
    OR EXISTS (
      SELECT 1 FROM (SELECT leaf, row_number() OVER (ORDER BY created_at) AS place FROM fresh) sorted
      WHERE leaf - first_leaf <> place - 1
    )
  THEN
    RAISE EXCEPTION 'log_leaves are append-only: leaf is the next one, and created_at grows'
      USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NULL;
END $$;

CREATE FUNCTION refuse_stray_tiles() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
  IF NEW.number <> (SELECT coalesce(max(number) + 1, 0) FROM log_tiles WHERE level = NEW.level) THEN
    RAISE EXCEPTION 'log_tiles are append-only: number is the next one of its level'
      USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NEW;
END $$;

CREATE FUNCTION refuse_changed_tiles() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.level <> OLD.level OR NEW.number <> OLD.number
    OR substr(NEW.hashes, 1, length(OLD.hashes)) <> OLD.hashes
  THEN
    RAISE EXCEPTION 'log_tiles are append-only: a tile keeps its hashes'
      USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NEW;
END $$;

CREATE FUNCTION refuse_shrinking() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.size < OLD.size OR (NEW.note IS NULL AND OLD.note IS NOT NULL) THEN
    RAISE EXCEPTION 'the signed log never shrinks' USING ERRCODE = 'integrity_constraint_violation';
  END IF;
  RETURN NEW;
END $$;

CREATE TRIGGER appended AFTER INSERT ON log_leaves REFERENCING NEW TABLE AS fresh
  FOR EACH STATEMENT EXECUTE FUNCTION refuse_stray_leaves();
CREATE TRIGGER same BEFORE UPDATE ON log_leaves EXECUTE FUNCTION refuse();
CREATE TRIGGER appended BEFORE INSERT ON log_tiles
  FOR EACH ROW EXECUTE FUNCTION refuse_stray_tiles();
CREATE TRIGGER same BEFORE UPDATE ON log_tiles
  FOR EACH ROW EXECUTE FUNCTION refuse_changed_tiles();
CREATE TRIGGER same BEFORE UPDATE ON log_checkpoint
  FOR EACH ROW EXECUTE FUNCTION refuse_shrinking();

DO $$
DECLARE
  guarded TEXT;
  made RECORD;
BEGIN
  FOREACH guarded IN ARRAY ARRAY['log_leaves', 'log_tiles', 'log_checkpoint']
  LOOP
    EXECUTE format('CREATE TRIGGER whole BEFORE TRUNCATE ON %I EXECUTE FUNCTION refuse()', guarded);
    EXECUTE format('CREATE TRIGGER kept BEFORE DELETE ON %I EXECUTE FUNCTION refuse()', guarded);
    FOR made IN SELECT tgname FROM pg_trigger WHERE tgrelid = guarded::regclass AND NOT tgisinternal
    LOOP
      EXECUTE format('ALTER TABLE %I ENABLE ALWAYS TRIGGER %I', guarded, made.tgname);
    END LOOP;
  END LOOP;
END $$;
