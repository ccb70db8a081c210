-- Keys that expire, or that another key replaces, and the latest calls of each key.

ALTER TABLE keys ADD COLUMN expires_at INTEGER;
ALTER TABLE keys ADD COLUMN replaces INTEGER REFERENCES keys (id);

-- Unique: a key has one successor, however many requests rotate it at once.
CREATE UNIQUE INDEX successors_of_keys ON keys (replaces) WHERE replaces IS NOT NULL;

-- No arguments, queries or addresses: members see when and how their keys were used, and no more.
CREATE TABLE calls (
  id INTEGER PRIMARY KEY,
  key_id INTEGER NOT NULL REFERENCES keys (id),
  at INTEGER NOT NULL,
  request_id TEXT NOT NULL,
  tool TEXT NOT NULL,
  transport TEXT NOT NULL CHECK (transport IN ('mcp', 'rest')),
  outcome TEXT NOT NULL,
  status INTEGER NOT NULL
) STRICT;

CREATE INDEX calls_of_key ON calls (key_id, id);
