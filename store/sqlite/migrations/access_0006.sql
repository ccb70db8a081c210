-- Sign-in of the owner of the service, by a link or by a key of the operator. A session that a key
-- opened lives no longer than the key.
ALTER TABLE sign_in_links ADD COLUMN is_owner INTEGER NOT NULL DEFAULT 0 CHECK (is_owner IN (0, 1));
ALTER TABLE sessions ADD COLUMN is_owner INTEGER NOT NULL DEFAULT 0 CHECK (is_owner IN (0, 1));
ALTER TABLE sessions ADD COLUMN key_id INTEGER REFERENCES keys (id);
