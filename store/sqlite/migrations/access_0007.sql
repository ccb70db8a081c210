-- The assets that a member watches. The holder is the e-mail address of the plan in lower case, or
-- 'owner' for the owner of the service.
CREATE TABLE watchlist (
  holder TEXT NOT NULL,
  ticker TEXT NOT NULL,
  added_at INTEGER NOT NULL,
  PRIMARY KEY (holder, ticker)
) STRICT, WITHOUT ROWID;
