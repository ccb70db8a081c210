-- A random id of this store, which the market store records. A start with another store, such as a
-- new one in the place of a lost one, is refused.

CREATE TABLE store_id (
  id SMALLINT PRIMARY KEY CHECK (id = 1),
  value TEXT NOT NULL
);

INSERT INTO store_id (id, value) VALUES (1, replace(gen_random_uuid()::text, '-', ''));
