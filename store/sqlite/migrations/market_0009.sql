-- Every stored value belongs to a digest or follows from one (store/digest.py). pass: the commit that
-- wrote the row, 0 if an earlier version did. Digests are NULL if an earlier version wrote the row.

ALTER TABLE assets ADD COLUMN pass INTEGER NOT NULL DEFAULT 0;
ALTER TABLE epochs ADD COLUMN pass INTEGER NOT NULL DEFAULT 0;
ALTER TABLE passes ADD COLUMN context_digest BLOB;
ALTER TABLE coverage ADD COLUMN digest BLOB;

CREATE INDEX epochs_of_pass ON epochs (pass);
