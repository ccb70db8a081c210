-- A claim gives its key once, so nothing is stored to give it again.
DROP TABLE idempotency_keys;
ALTER TABLE claims DROP COLUMN key_salt;
-- Where a browser that has opened a checkout can pay it.
ALTER TABLE claims ADD COLUMN checkout_url TEXT;
