-- Sign-in of members: a mailed link creates one session. Only the hashes of both are stored.

CREATE TABLE sign_in_links (
  token_hash BLOB PRIMARY KEY CHECK (length(token_hash) = 32),
  contact_email TEXT NOT NULL,
  expires_at INTEGER NOT NULL,
  used_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX sign_in_links_expiring ON sign_in_links (expires_at);

CREATE TABLE sessions (
  token_hash BLOB PRIMARY KEY CHECK (length(token_hash) = 32),
  contact_email TEXT NOT NULL,
  expires_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX sessions_expiring ON sessions (expires_at);

CREATE INDEX sessions_of_email ON sessions (lower(contact_email));

-- Lookups by mailbox ignore the case of ASCII letters.
CREATE INDEX memberships_of_email ON memberships (lower(contact_email), id);
CREATE INDEX claims_of_email ON claims
  (lower(contact_email), provider, mode, created_at) WHERE redeemed_at IS NULL;
