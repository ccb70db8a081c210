-- OAuth: clients that registered themselves, requests that wait for consent or for the exchange of
-- their code, and connections. A connection is a key; its tokens are stored only as hashes.

CREATE TABLE oauth_clients (
  client_id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  redirect_uris TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  used_at BIGINT NOT NULL
);

CREATE INDEX oauth_clients_unused ON oauth_clients (used_at);

-- A request is pending until it is approved, which gives it a code. Without a membership, the owner
-- of the service approved it.
CREATE TABLE oauth_requests (
  id_hash BYTEA PRIMARY KEY CHECK (length(id_hash) = 32),
  client_id TEXT NOT NULL,
  client_name TEXT NOT NULL,
  redirect_uri TEXT NOT NULL,
  state TEXT,
  resource TEXT NOT NULL,
  code_challenge TEXT NOT NULL,
  created_at BIGINT NOT NULL,
  code_hash BYTEA UNIQUE CHECK (length(code_hash) = 32),
  approved_at BIGINT,
  membership_id BIGINT REFERENCES memberships (id)
);

CREATE INDEX oauth_requests_expiring ON oauth_requests (created_at);

-- The code of a connection and every refresh token of it lead to one random part, so a replayed one
-- is recognized by `family_hash`, however old it is.
CREATE TABLE oauth_connections (
  key_id BIGINT PRIMARY KEY REFERENCES keys (id),
  client_id TEXT NOT NULL,
  resource TEXT NOT NULL,
  family_hash BYTEA NOT NULL UNIQUE CHECK (length(family_hash) = 32)
);

-- The refresh tokens of a connection that can be used, and its code. `reusable_until` is NULL for one
-- that was not used; the code and a refresh token can be used again for a moment, and then never.
CREATE TABLE oauth_grants (
  grant_hash BYTEA PRIMARY KEY CHECK (length(grant_hash) = 32),
  key_id BIGINT NOT NULL REFERENCES oauth_connections (key_id),
  issued_at BIGINT NOT NULL,
  reusable_until BIGINT
);

CREATE INDEX oauth_grants_of_key ON oauth_grants (key_id);
CREATE INDEX oauth_connections_of_client ON oauth_connections (client_id);

CREATE TABLE oauth_access_tokens (
  token_hash BYTEA PRIMARY KEY CHECK (length(token_hash) = 32),
  key_id BIGINT NOT NULL REFERENCES oauth_connections (key_id),
  expires_at BIGINT NOT NULL
);

CREATE INDEX oauth_access_tokens_of_key ON oauth_access_tokens (key_id);
CREATE INDEX oauth_access_tokens_expiring ON oauth_access_tokens (expires_at);
