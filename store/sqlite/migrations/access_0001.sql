-- Keys, usage, purchases, sign-ins and OAuth of one service. Secrets are stored as SHA-256 only.
-- Times are epoch ms; day is the number of whole UTC days since 1970.

-- A random id of this store, which the market store records. A start with another store, such as a
-- new one in the place of a lost one, is refused.
CREATE TABLE store_id (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  value TEXT NOT NULL
) STRICT;

INSERT INTO store_id (id, value) VALUES (1, lower(hex(randomblob(16))));

-- closed_at is when the subscription of an ended membership was found canceled, so that it cannot be
-- paid again. Until then the membership can become active again, and is compared with the processor
-- every day.
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
  closed_at INTEGER,
  UNIQUE (provider, subscription)
) STRICT;

CREATE INDEX memberships_of_customer ON memberships (provider, customer);

-- Lookups by mailbox ignore the case of ASCII letters.
CREATE INDEX memberships_of_email ON memberships (lower(contact_email), id);

-- A bought key may have no label, and has the mode and membership that it was bought with; both are
-- NULL if the operator made the key.
CREATE TABLE keys (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  key_hash BLOB NOT NULL UNIQUE CHECK (length(key_hash) = 32),
  label TEXT,
  created_at INTEGER NOT NULL,
  revoked_at INTEGER,
  mode TEXT CHECK (mode IN ('test', 'live')),
  membership_id INTEGER REFERENCES memberships (id),
  expires_at INTEGER,
  replaces INTEGER REFERENCES keys (id)
) STRICT;

CREATE INDEX keys_of_membership ON keys (membership_id);

-- Unique: a key has one successor, however many requests rotate it at once.
CREATE UNIQUE INDEX successors_of_keys ON keys (replaces) WHERE replaces IS NOT NULL;

CREATE TABLE usage (
  key_id INTEGER NOT NULL REFERENCES keys (id),
  day INTEGER NOT NULL,
  used INTEGER NOT NULL CHECK (used >= 1),
  last_at INTEGER NOT NULL,
  PRIMARY KEY (key_id, day)
) STRICT, WITHOUT ROWID;

-- Calls of each key by UTC day and tool, which members see as a chart. The table usage admits calls;
-- this one is written beside it, once a second.
CREATE TABLE tool_usage (
  key_id INTEGER NOT NULL REFERENCES keys (id),
  day INTEGER NOT NULL,
  tool TEXT NOT NULL,
  used INTEGER NOT NULL,
  PRIMARY KEY (key_id, day, tool)
) STRICT, WITHOUT ROWID;

CREATE INDEX tool_usage_expiring ON tool_usage (day);

-- The latest calls of each key. No arguments, queries or addresses: members see when and how their
-- keys were used, and no more.
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

-- checkout_url is where a browser that has opened a checkout can pay it.
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
  key_id INTEGER REFERENCES keys (id),
  checkout_url TEXT
) STRICT, WITHOUT ROWID;

CREATE INDEX unredeemed_claims ON claims (expires_at) WHERE redeemed_at IS NULL;
CREATE INDEX claims_of_email ON claims
  (lower(contact_email), provider, mode, created_at) WHERE redeemed_at IS NULL;

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

-- Sign-in: a mailed link creates one session of a member, and a link that a command prints one of
-- the service's owner.
CREATE TABLE sign_in_links (
  token_hash BLOB PRIMARY KEY CHECK (length(token_hash) = 32),
  contact_email TEXT NOT NULL,
  expires_at INTEGER NOT NULL,
  used_at INTEGER,
  is_owner INTEGER NOT NULL DEFAULT 0 CHECK (is_owner IN (0, 1))
) STRICT, WITHOUT ROWID;

CREATE INDEX sign_in_links_expiring ON sign_in_links (expires_at);

CREATE TABLE sessions (
  token_hash BLOB PRIMARY KEY CHECK (length(token_hash) = 32),
  contact_email TEXT NOT NULL,
  expires_at INTEGER NOT NULL,
  is_owner INTEGER NOT NULL DEFAULT 0 CHECK (is_owner IN (0, 1))
) STRICT, WITHOUT ROWID;

CREATE INDEX sessions_expiring ON sessions (expires_at);
CREATE INDEX sessions_of_email ON sessions (lower(contact_email));

-- The assets that a member watches. The holder is the e-mail address of the plan in lower case, or
-- 'owner' for the owner of the service.
CREATE TABLE watchlist (
  holder TEXT NOT NULL,
  ticker TEXT NOT NULL,
  added_at INTEGER NOT NULL,
  PRIMARY KEY (holder, ticker)
) STRICT, WITHOUT ROWID;

-- OAuth: clients that registered themselves, requests that wait for consent or for the exchange of
-- their code, and connections. A connection is a key; its tokens are stored only as hashes.

CREATE TABLE oauth_clients (
  client_id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  redirect_uris TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  used_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX oauth_clients_unused ON oauth_clients (used_at);

-- A request is pending until it is approved, which gives it a code. Without a membership, the owner
-- of the service approved it.
CREATE TABLE oauth_requests (
  id_hash BLOB PRIMARY KEY CHECK (length(id_hash) = 32),
  client_id TEXT NOT NULL,
  client_name TEXT NOT NULL,
  redirect_uri TEXT NOT NULL,
  state TEXT,
  resource TEXT NOT NULL,
  code_challenge TEXT NOT NULL,
  created_at INTEGER NOT NULL,
  code_hash BLOB UNIQUE CHECK (length(code_hash) = 32),
  approved_at INTEGER,
  membership_id INTEGER REFERENCES memberships (id)
) STRICT, WITHOUT ROWID;

CREATE INDEX oauth_requests_expiring ON oauth_requests (created_at);

-- The code of a connection and every refresh token of it lead to one random part, so a replayed one
-- is recognized by `family_hash`, however old it is.
CREATE TABLE oauth_connections (
  key_id INTEGER PRIMARY KEY REFERENCES keys (id),
  client_id TEXT NOT NULL,
  resource TEXT NOT NULL,
  family_hash BLOB NOT NULL UNIQUE CHECK (length(family_hash) = 32)
) STRICT;

-- The refresh tokens of a connection that can be used, and its code. `reusable_until` is NULL for one
-- that was not used; the code and a refresh token can be used again for a moment, and then never.
CREATE TABLE oauth_grants (
  grant_hash BLOB PRIMARY KEY CHECK (length(grant_hash) = 32),
  key_id INTEGER NOT NULL REFERENCES oauth_connections (key_id),
  issued_at INTEGER NOT NULL,
  reusable_until INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX oauth_grants_of_key ON oauth_grants (key_id);
CREATE INDEX oauth_connections_of_client ON oauth_connections (client_id);

CREATE TABLE oauth_access_tokens (
  token_hash BLOB PRIMARY KEY CHECK (length(token_hash) = 32),
  key_id INTEGER NOT NULL REFERENCES oauth_connections (key_id),
  expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX oauth_access_tokens_of_key ON oauth_access_tokens (key_id);
CREATE INDEX oauth_access_tokens_expiring ON oauth_access_tokens (expires_at);
