-- A claim can be repeated: its key is derived from the claim token, which is not stored, and this
-- salt. NULL if the key is random, as that of a claim on the member page.
ALTER TABLE claims ADD COLUMN key_salt BLOB CHECK (length(key_salt) = 32);

-- Checkouts that were requested with an Idempotency-Key, of which only a hash is stored. The URL is
-- NULL until the payment processor has opened the checkout.
CREATE TABLE idempotency_keys (
  key_hash BLOB PRIMARY KEY CHECK (length(key_hash) = 32),
  order_hash BLOB NOT NULL CHECK (length(order_hash) = 32),
  claim_id TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  checkout_url TEXT
) STRICT, WITHOUT ROWID;

CREATE INDEX idempotency_keys_expiring ON idempotency_keys (created_at);

-- A random id of this store, which the market store records. A start with another store, such as a
-- new one in the place of a lost one, is refused.
CREATE TABLE store_id (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  value TEXT NOT NULL
) STRICT;

INSERT INTO store_id (id, value) VALUES (1, lower(hex(randomblob(16))));

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
