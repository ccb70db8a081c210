-- Sign-in of the owner of the service, by a link that a command prints.
ALTER TABLE sign_in_links ADD COLUMN is_owner INTEGER NOT NULL DEFAULT 0 CHECK (is_owner IN (0, 1));
ALTER TABLE sessions ADD COLUMN is_owner INTEGER NOT NULL DEFAULT 0 CHECK (is_owner IN (0, 1));
