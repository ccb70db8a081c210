-- Quotas, purchases and throttles. The table of keys is rebuilt: a bought key may have no label,
-- and has the mode and membership that it was bought with (both NULL if the operator made the key).
-- Times are epoch ms; day is the number of whole UTC days since 1970.

CREATE TABLE memberships (
  id INTEGER PRIMARY KEY,
  provider TEXT NOT NULL,
  mode TEXT NOT NULL CHECK (mode IN ('test', 'live')),
  subscription TEXT NOT NULL,
  customer TEXT NOT NULL,
  contact_email TEXT NOT NULL,
  billing TEXT NOT NULL CHECK (billing IN ('monthly', 'yearly')),
  created_at INTEGER NOT NULL,
  ended_at INTEGER,
  ended_why TEXT,
  UNIQUE (provider, subscription)
) STRICT;

CREATE INDEX memberships_of_customer ON memberships (provider, customer);

ALTER TABLE keys RENAME TO keys_0001;

CREATE TABLE keys (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  key_hash BLOB NOT NULL UNIQUE CHECK (length(key_hash) = 32),
  label TEXT,
  created_at INTEGER NOT NULL,
  revoked_at INTEGER,
  mode TEXT CHECK (mode IN ('test', 'live')),
  membership_id INTEGER REFERENCES memberships (id)
) STRICT;

INSERT INTO keys (id, key_hash, label, created_at, revoked_at)
SELECT id, key_hash, label, created_at, revoked_at FROM keys_0001;

DROP TABLE keys_0001;

CREATE INDEX keys_of_membership ON keys (membership_id);

CREATE TABLE usage (
  key_id INTEGER NOT NULL REFERENCES keys (id),
  day INTEGER NOT NULL,
  used INTEGER NOT NULL CHECK (used >= 1),
  last_at INTEGER NOT NULL,
  PRIMARY KEY (key_id, day)
) STRICT, WITHOUT ROWID;

CREATE TABLE claims (
  id TEXT PRIMARY KEY,
  token_hash BLOB NOT NULL UNIQUE CHECK (length(token_hash) = 32),
  provider TEXT NOT NULL,
  mode TEXT NOT NULL CHECK (mode IN ('test', 'live')),
  session TEXT NOT NULL,
  contact_email TEXT NOT NULL,
  billing TEXT NOT NULL CHECK (billing IN ('monthly', 'yearly')),
  agent_name TEXT,
  created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  redeemed_at INTEGER,
  key_id INTEGER REFERENCES keys (id)
) STRICT, WITHOUT ROWID;

CREATE INDEX unredeemed_claims ON claims (expires_at) WHERE redeemed_at IS NULL;

-- The checkouts of the sandbox processor; no other provider reads them.
CREATE TABLE sandbox_sessions (
  id TEXT PRIMARY KEY,
  claim_id TEXT NOT NULL,
  contact_email TEXT NOT NULL,
  billing TEXT NOT NULL CHECK (billing IN ('monthly', 'yearly')),
  amount_usd INTEGER NOT NULL,
  status TEXT NOT NULL CHECK (status IN ('open', 'paid', 'cancelled')),
  expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX sandbox_sessions_expiring ON sandbox_sessions (expires_at);

CREATE TABLE events (
  id TEXT PRIMARY KEY,
  handled_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE attempts (
  kind TEXT NOT NULL,
  address TEXT NOT NULL,
  at INTEGER NOT NULL
) STRICT;

CREATE INDEX attempts_of_address ON attempts (kind, address, at);

CREATE TABLE access_requests (
  contact_email TEXT PRIMARY KEY,
  agent_name TEXT,
  operator TEXT,
  use_case TEXT,
  expected_volume TEXT,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Events in serving processes that `signals doctor` reports to the operator.
CREATE TABLE notices (
  name TEXT PRIMARY KEY,
  detail TEXT NOT NULL,
  at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
