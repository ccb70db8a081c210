-- Calls of each key by UTC day and tool, which members see as a chart. The table usage admits calls;
-- this one is written beside it, once a second.
CREATE TABLE tool_usage (
  key_id INTEGER NOT NULL REFERENCES keys (id),
  day INTEGER NOT NULL,
  tool TEXT NOT NULL,
  used INTEGER NOT NULL,
  PRIMARY KEY (key_id, day, tool)
) STRICT, WITHOUT ROWID;

CREATE INDEX tool_usage_expiring ON tool_usage (day);

-- The tools of earlier calls are unknown. The first day of a successor also has the calls of the key
-- that it replaced, which would count twice.
INSERT INTO tool_usage (key_id, day, tool, used)
SELECT usage.key_id, usage.day, '', usage.used FROM usage JOIN keys ON keys.id = usage.key_id
WHERE keys.replaces IS NULL OR usage.day > keys.created_at / 86400000;
