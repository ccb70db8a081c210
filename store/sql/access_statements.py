"""SQL statements of the access store that are longer than a line, for both engines."""

LIST_KEYS = """
SELECT id, label, created_at, revoked_at, mode, membership_id,
  (SELECT max(last_at) FROM usage WHERE key_id = keys.id) AS last_used_at
FROM keys ORDER BY id
"""
_SELECT_CLAIMS = """
SELECT id, token_hash, provider, mode, session, contact_email, billing, agent_name, created_at,
  expires_at, redeemed_at
FROM claims
"""
FIND_CLAIM = f"{_SELECT_CLAIMS} WHERE token_hash = ?"
LIST_UNREDEEMED_CLAIMS = f"""
{_SELECT_CLAIMS}
WHERE lower(contact_email) = ? AND provider = ? AND mode = ? AND redeemed_at IS NULL
ORDER BY created_at DESC LIMIT ?
"""
# In random order, so that claims that stay do not keep the others from their turn.
LIST_LAPSED_CLAIMS = f"""
{_SELECT_CLAIMS}
WHERE redeemed_at IS NULL AND expires_at < ? AND provider = ? AND mode = ?
ORDER BY random() LIMIT ?
"""
DELETE_CLAIM = "DELETE FROM claims WHERE id = ? AND redeemed_at IS NULL RETURNING 1"
INSERT_CLAIM = """
INSERT INTO claims (id, token_hash, provider, mode, session, contact_email, billing, agent_name,
  created_at, expires_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
REDEEM_CLAIM = """
UPDATE claims SET redeemed_at = ? WHERE id = ? AND redeemed_at IS NULL RETURNING 1
"""
INSERT_MEMBERSHIP = """
INSERT INTO memberships
  (provider, mode, subscription, customer, contact_email, billing, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (provider, subscription) DO NOTHING RETURNING id
"""
INSERT_PURCHASED_KEY = """
INSERT INTO keys (key_hash, label, created_at, mode, membership_id) VALUES (?, ?, ?, ?, ?)
RETURNING id
"""
_SELECT_ACTIVE_MEMBERSHIPS = """
SELECT provider, mode, subscription, customer, contact_email, billing, created_at
FROM memberships WHERE provider = ? AND ended_at IS NULL
"""
LIST_ACTIVE_MEMBERSHIPS = f"{_SELECT_ACTIVE_MEMBERSHIPS} ORDER BY id"
LIST_ACTIVE_MEMBERSHIPS_OF_CUSTOMER = f"{_SELECT_ACTIVE_MEMBERSHIPS} AND customer = ? ORDER BY id"
END_MEMBERSHIP = """
UPDATE memberships SET ended_at = ?, ended_why = ?
WHERE provider = ? AND subscription = ? AND ended_at IS NULL RETURNING id
"""
REVOKE_KEYS_OF_MEMBERSHIP = """
UPDATE keys SET revoked_at = ? WHERE membership_id = ? AND revoked_at IS NULL RETURNING id
"""
LIST_MEMBERSHIPS_BY_EMAIL = """
SELECT id, ended_at, ended_why AS ended_reason, provider, mode, subscription, customer,
  contact_email, billing, created_at
FROM memberships WHERE lower(contact_email) = ? ORDER BY id
"""
LIST_MEMBER_KEYS = """
SELECT coalesce((SELECT used FROM usage WHERE key_id = keys.id AND day = ?), 0) AS used,
  id, label, created_at, revoked_at, mode, membership_id,
  (SELECT max(last_at) FROM usage WHERE key_id = keys.id) AS last_used_at
FROM keys WHERE membership_id = ? ORDER BY id
"""
# The limits are part of the INSERT, so that no second request can pass between check and insert.
# CAST fixes the type of ?3, which PostgreSQL cannot infer in a SELECT list.
INSERT_MEMBER_KEY = """
INSERT INTO keys (key_hash, label, created_at, mode, membership_id)
SELECT ?1, ?2, CAST(?3 AS BIGINT), mode, id FROM memberships
WHERE id = ?4 AND ended_at IS NULL
  AND (SELECT count(*) FROM keys WHERE membership_id = ?4 AND revoked_at IS NULL) < ?5
  AND (SELECT count(*) FROM keys WHERE membership_id = ?4 AND created_at > ?7) < ?6
RETURNING id
"""
RELABEL_KEY = """
UPDATE keys SET label = ? WHERE id = ? AND membership_id = ? AND revoked_at IS NULL RETURNING id
"""
REVOKE_MEMBER_KEY = """
UPDATE keys SET revoked_at = coalesce(revoked_at, ?) WHERE id = ? AND membership_id = ? RETURNING id
"""
USE_SIGN_IN_LINK = """
UPDATE sign_in_links SET used_at = ?1 WHERE token_hash = ?2 AND used_at IS NULL AND expires_at > ?1
RETURNING contact_email
"""
INSERT_SESSION = "INSERT INTO sessions (token_hash, contact_email, expires_at) VALUES (?, ?, ?)"
# Signing out ends every session of the mailbox: a member can end one on a lost device.
END_SESSIONS = """
DELETE FROM sessions
WHERE lower(contact_email) = (SELECT lower(contact_email) FROM sessions WHERE token_hash = ?)
RETURNING 1
"""
FIND_SESSION = """
SELECT token_hash, contact_email, expires_at FROM sessions WHERE token_hash = ? AND expires_at > ?
"""
# Attempts more than a window ahead were dated by a clock that was wrong. They do not count,
# because they would lock their clients out until that time.
FIND_BLOCKING_ATTEMPT = """
SELECT at FROM attempts WHERE kind = ?1 AND address = ?2 AND at > ?3 AND at < ?4
ORDER BY at DESC LIMIT 1 OFFSET ?5 - 1
"""
INSERT_ATTEMPT = "INSERT INTO attempts (kind, address, at) VALUES (?, ?, ?)"
FIND_ACCESS_REQUEST = "SELECT 1 FROM access_requests WHERE contact_email = ?"
# Reads the index up to a position, so it counts no more rows than the limit.
FIND_ACCESS_REQUEST_AT = """
SELECT 1 FROM access_requests WHERE contact_email > '' ORDER BY contact_email LIMIT 1 OFFSET ?
"""
PUT_ACCESS_REQUEST = """
INSERT INTO access_requests
  (contact_email, agent_name, operator, use_case, expected_volume, created_at, updated_at)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (contact_email) DO UPDATE SET agent_name = excluded.agent_name,
  operator = excluded.operator, use_case = excluded.use_case,
  expected_volume = excluded.expected_volume, updated_at = excluded.updated_at
"""
LIST_ACCESS_REQUESTS = """
SELECT contact_email, agent_name, operator, use_case, expected_volume, created_at, updated_at
FROM access_requests ORDER BY created_at, contact_email
"""
# Keeps the newest day of each key, which `last_used_at` is read from.
PRUNE_USAGE = """
DELETE FROM usage
WHERE last_at < ? AND day < (SELECT max(day) FROM usage AS all_days WHERE key_id = usage.key_id)
RETURNING 1
"""
# A session whose claim is not redeemed is kept, because it says whether the claim was paid.
PRUNE_SANDBOX = """
DELETE FROM sandbox_sessions WHERE expires_at < ?
  AND NOT EXISTS (SELECT 1 FROM claims WHERE id = claim_id AND redeemed_at IS NULL)
RETURNING 1
"""
PRUNE_EVENTS = "DELETE FROM events WHERE handled_at < ? RETURNING 1"
PRUNE_ATTEMPTS = "DELETE FROM attempts WHERE at < ? RETURNING 1"
PRUNE_ACCESS_REQUESTS = "DELETE FROM access_requests WHERE updated_at < ? RETURNING 1"
PRUNE_SIGN_IN_LINKS = "DELETE FROM sign_in_links WHERE expires_at < ? RETURNING 1"
PRUNE_SESSIONS = "DELETE FROM sessions WHERE expires_at < ? RETURNING 1"
