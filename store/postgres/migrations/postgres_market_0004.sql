-- Every stored value belongs to a digest or follows from one; market_0009.sql explains the columns.

ALTER TABLE assets ADD COLUMN pass BIGINT NOT NULL DEFAULT 0;
ALTER TABLE epochs ADD COLUMN pass BIGINT NOT NULL DEFAULT 0;
ALTER TABLE passes ADD COLUMN context_digest BYTEA;
ALTER TABLE coverage ADD COLUMN digest BYTEA;

CREATE INDEX epochs_of_pass ON epochs (pass);
