-- Sign-in of members: a mailed link creates one session. Only the hashes of both are stored.

CREATE TABLE sign_in_links (
  token_hash BYTEA PRIMARY KEY CHECK (length(token_hash) = 32),
  contact_email TEXT NOT NULL,
  expires_at BIGINT NOT NULL,
  used_at BIGINT
);

CREATE INDEX sign_in_links_expiring ON sign_in_links (expires_at);

CREATE TABLE sessions (
  token_hash BYTEA PRIMARY KEY CHECK (length(token_hash) = 32),
  contact_email TEXT NOT NULL,
  expires_at BIGINT NOT NULL
);

CREATE INDEX sessions_expiring ON sessions (expires_at);

CREATE INDEX sessions_of_email ON sessions (lower(contact_email));

-- With COLLATE "C" lower() changes only ASCII letters, as it does in SQLite.
ALTER TABLE memberships ALTER COLUMN contact_email TYPE TEXT COLLATE "C";
ALTER TABLE claims ALTER COLUMN contact_email TYPE TEXT COLLATE "C";

-- Lookups by mailbox ignore the case of ASCII letters.
CREATE INDEX memberships_of_email ON memberships (lower(contact_email), id);
CREATE INDEX claims_of_email ON claims
  (lower(contact_email), provider, mode, created_at) WHERE redeemed_at IS NULL;

-- Sorted as they are read: sessions disable sorting, so the planner would scan every row.
DROP INDEX keys_of_membership;
CREATE INDEX keys_of_membership ON keys (membership_id, id);
DROP INDEX memberships_of_customer;
CREATE INDEX memberships_of_customer ON memberships (provider, customer, id);
