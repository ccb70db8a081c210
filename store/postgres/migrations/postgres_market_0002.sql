-- Whether the history of a lagging asset was being built at a commit: 0 no, 1 being built, 2 built by
-- this commit. In 1 and 2 the commit steps each of the asset's bars at its own close.

ALTER TABLE watermarks
  ADD COLUMN history SMALLINT NOT NULL DEFAULT 0 CHECK (history IN (0, 1, 2));
