-- API keys of one service, stored as SHA-256 only.

CREATE TABLE keys (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  key_hash BLOB NOT NULL UNIQUE CHECK (length(key_hash) = 32),
  label TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  revoked_at INTEGER
) STRICT;
