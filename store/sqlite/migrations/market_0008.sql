-- The transparency log: one leaf for each published row of both tiers, in the order of created_at.
-- Leaves outlive the rows that retention deletes. Rows of earlier versions get theirs when a process
-- first computes on the store.

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
