"""SQL statements of the access store that are longer than a line, for both engines."""

# A count that a rotation carried over has 0 as the time of its last call.
_KEY_COLUMNS = """id, label, created_at, revoked_at, mode, membership_id, expires_at,
  (SELECT nullif(max(last_at), 0) FROM usage WHERE key_id = keys.id) AS last_used_at,
  (SELECT id FROM keys AS successor WHERE successor.replaces = keys.id) AS replaced_by,
  (SELECT client_id FROM oauth_connections WHERE key_id = keys.id) AS client_id"""
LIST_KEYS = f"SELECT {_KEY_COLUMNS} FROM keys ORDER BY id"
INSERT_OPERATOR_KEY = """
INSERT INTO keys (key_hash, label, created_at, expires_at) VALUES (?, ?, ?, ?) RETURNING id
"""
_SELECT_CLAIMS = """
SELECT id, token_hash, provider, mode, session, contact_email, billing, agent_name, created_at,
  expires_at, checkout_url, redeemed_at
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
DELETE_CLAIM = "DELETE FROM claims WHERE redeemed_at IS NULL AND id = ? RETURNING 1"
INSERT_CLAIM = """
INSERT INTO claims (id, token_hash, provider, mode, session, contact_email, billing, agent_name,
  created_at, expires_at, checkout_url)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING
"""
REDEEM_CLAIM = "UPDATE claims SET redeemed_at = ? WHERE id = ? AND redeemed_at IS NULL RETURNING 1"
FIND_REDEMPTION = """
SELECT memberships.ended_why AS ended_reason, memberships.closed_at
FROM claims JOIN keys ON keys.id = claims.key_id
  JOIN memberships ON memberships.id = keys.membership_id
WHERE claims.id = ?
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
_SELECT_MEMBERSHIPS = """
SELECT id, ended_at, ended_why AS ended_reason, closed_at, provider, mode, subscription, customer,
  contact_email, billing, created_at
FROM memberships
"""
LIST_OPEN_MEMBERSHIPS = f"""
{_SELECT_MEMBERSHIPS} WHERE provider = ? AND closed_at IS NULL ORDER BY id
"""
LIST_OPEN_MEMBERSHIPS_OF_CUSTOMER = f"""
{_SELECT_MEMBERSHIPS} WHERE provider = ? AND closed_at IS NULL AND customer = ? ORDER BY id
"""
LIST_MEMBERSHIPS_BY_EMAIL = f"{_SELECT_MEMBERSHIPS} WHERE lower(contact_email) = ? ORDER BY id"
LIST_NEWEST_MEMBERSHIPS = f"{_SELECT_MEMBERSHIPS} ORDER BY id DESC LIMIT ?"
END_MEMBERSHIP = """
UPDATE memberships SET ended_at = coalesce(ended_at, ?), ended_why = ?, closed_at = ?
WHERE provider = ? AND subscription = ? AND closed_at IS NULL RETURNING id
"""
RESUME_MEMBERSHIP = """
UPDATE memberships SET ended_at = NULL, ended_why = NULL
WHERE provider = ? AND subscription = ? AND closed_at IS NULL RETURNING 1
"""
# The membership stays if its member has created another key meanwhile, and then the claim too.
UNDO_REDEMPTION = """
UPDATE claims SET redeemed_at = NULL, key_id = NULL
WHERE id = ? AND NOT EXISTS (
  SELECT 1 FROM keys JOIN memberships ON memberships.id = keys.membership_id
  WHERE provider = ? AND subscription = ? AND keys.id <> coalesce(claims.key_id, 0)
) RETURNING 1
"""
DELETE_CLAIMED_KEY = """
DELETE FROM keys WHERE membership_id = (
  SELECT id FROM memberships WHERE provider = ? AND subscription = ?) RETURNING 1
"""
DELETE_MEMBERSHIP = "DELETE FROM memberships WHERE provider = ? AND subscription = ? RETURNING 1"
REVOKE_KEYS_OF_MEMBERSHIP = """
UPDATE keys SET revoked_at = ? WHERE membership_id = ? AND revoked_at IS NULL RETURNING id
"""
_SELECT_USED_KEYS = f"""
SELECT coalesce((SELECT used FROM usage WHERE key_id = keys.id AND day = ?), 0) AS used,
  {_KEY_COLUMNS}
FROM keys
"""
FIND_KEY_BY_ID = f"{_SELECT_USED_KEYS} WHERE id = ?"
LIST_BUSIEST_KEYS = f"""
SELECT * FROM ({_SELECT_USED_KEYS}) AS listed
ORDER BY CASE WHEN revoked_at IS NULL THEN 0 ELSE 1 END,
  coalesce(last_used_at, created_at) DESC, id DESC
LIMIT ?
"""
LIST_MEMBER_KEYS = f"{_SELECT_USED_KEYS} WHERE membership_id = ? ORDER BY id"
# The limits are part of the INSERT, so that no second request can pass between check and insert.
# CAST fixes the type of a parameter that PostgreSQL cannot infer in a SELECT list.
# A key with a working successor is about to end and is not counted as live. If the successor is
# revoked, the key is live again, so a membership never has more than twice `max_live` working keys.
INSERT_MEMBER_KEY = """
INSERT INTO keys (key_hash, label, created_at, mode, membership_id, expires_at)
SELECT :key_hash, :label, CAST(:created_at AS BIGINT), mode, id, CAST(:expires_at AS BIGINT)
FROM memberships
WHERE id = :membership_id AND ended_at IS NULL
  AND (SELECT count(*) FROM keys AS held
       WHERE membership_id = :membership_id AND revoked_at IS NULL
         AND (expires_at IS NULL OR expires_at > :created_at)
         AND NOT EXISTS (
           SELECT 1 FROM keys AS successor
           WHERE successor.replaces = held.id AND successor.revoked_at IS NULL
             AND (successor.expires_at IS NULL OR successor.expires_at > :created_at)
         )) < :max_live
  AND (SELECT count(*) FROM keys
       WHERE membership_id = :membership_id AND replaces IS NULL
         AND created_at > :created_since) < :max_created
RETURNING id
"""
# The successor lives as long as the key was meant to live when it was created.
INSERT_SUCCESSOR = """
INSERT INTO keys (key_hash, label, created_at, mode, membership_id, expires_at, replaces)
SELECT :key_hash, label, CAST(:at AS BIGINT), mode, membership_id,
  CAST(:at AS BIGINT) + (expires_at - created_at), id
FROM keys AS rotated
WHERE id = :key_id AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > :at)
  AND NOT EXISTS (SELECT 1 FROM keys WHERE replaces = :key_id)
  AND NOT EXISTS (SELECT 1 FROM oauth_connections WHERE key_id = :key_id)
  AND (SELECT count(made.replaces) FROM keys AS made
       WHERE made.membership_id = rotated.membership_id
         AND made.created_at > :created_since) < :max_rotated
RETURNING id
"""
# Rotating twice leaves two working keys, not three.
EXPIRE_PREDECESSOR = """
UPDATE keys SET expires_at = CASE WHEN expires_at < :at THEN expires_at ELSE :at END
WHERE id = (SELECT replaces FROM keys WHERE id = :key_id) RETURNING id
"""
EXPIRE_KEY = """
UPDATE keys SET expires_at = CASE WHEN expires_at < :at THEN expires_at ELSE :at END
WHERE id = :key_id RETURNING id
"""
# Without this each rotation would give the plan another daily quota. With it, the keys of a chain
# make at most twice the quota: the counts of every second one add up to at most one quota.
CARRY_USAGE_OVER = """
INSERT INTO usage (key_id, day, used, last_at)
SELECT CAST(:successor_id AS BIGINT), CAST(:day AS INTEGER), max(used), 0 FROM usage
WHERE day = CAST(:day AS INTEGER)
  AND key_id IN (:key_id, (SELECT replaces FROM keys WHERE id = :key_id))
HAVING count(*) > 0
RETURNING used
"""
LIST_CALLS = """
SELECT at, request_id, tool, transport, outcome, status
FROM calls WHERE key_id = ? ORDER BY id DESC LIMIT ?
"""
TRIM_CALLS = """
DELETE FROM calls WHERE key_id = :key_id
  AND id <= (SELECT id FROM calls WHERE key_id = :key_id ORDER BY id DESC LIMIT 1 OFFSET :kept)
RETURNING 1
"""
ADD_TOOL_USAGE = """
INSERT INTO tool_usage AS t (key_id, day, tool, used) VALUES {rows}
ON CONFLICT (key_id, day, tool) DO UPDATE SET used = t.used + excluded.used
"""
LIST_TOOL_USAGE = """
SELECT u.day, u.tool, u.used FROM keys AS k JOIN tool_usage AS u ON u.key_id = k.id
WHERE k.membership_id = ? AND u.day >= ?
"""
RELABEL_KEY = """
UPDATE keys SET label = ? WHERE id = ? AND membership_id = ? AND revoked_at IS NULL RETURNING id
"""
REVOKE_MEMBER_KEY = """
UPDATE keys SET revoked_at = coalesce(revoked_at, ?) WHERE id = ? AND membership_id = ? RETURNING id
"""
USE_SIGN_IN_LINK = """
UPDATE sign_in_links SET used_at = :at
WHERE token_hash = :token_hash AND used_at IS NULL AND expires_at > :at
RETURNING contact_email, is_owner
"""
INSERT_SIGN_IN_LINK = """
INSERT INTO sign_in_links (token_hash, contact_email, expires_at, is_owner) VALUES (?, ?, ?, ?)
"""
INSERT_SESSION = """
INSERT INTO sessions (token_hash, contact_email, expires_at, is_owner) VALUES (?, ?, ?, ?)
"""
# Signing out ends every session of the mailbox: a member can end one on a lost device.
END_SESSIONS = """
DELETE FROM sessions
WHERE lower(contact_email) = (SELECT lower(contact_email) FROM sessions WHERE token_hash = ?)
RETURNING 1
"""
FIND_SESSION = """
SELECT token_hash, contact_email, expires_at, is_owner FROM sessions
WHERE token_hash = :token_hash AND expires_at > :at
"""
# Attempts more than a window ahead were dated by a clock that was wrong. They do not count,
# because they would lock their clients out until that time.
FIND_BLOCKING_ATTEMPT = """
SELECT at FROM attempts WHERE kind = ? AND address = ? AND at > ? AND at < ?
ORDER BY at DESC LIMIT 1 OFFSET ? - 1
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
PRUNE_CALLS = "DELETE FROM calls WHERE at < ? RETURNING 1"
PRUNE_TOOL_USAGE = """
DELETE FROM tool_usage WHERE day < CAST(? AS BIGINT) / 86400000 RETURNING 1
"""
PRUNE_SESSIONS = "DELETE FROM sessions WHERE expires_at < ? RETURNING 1"
# A claim with this id is inserted and deleted in one transaction, and these write the newest key
# and membership again, unchanged. So a test write reaches all tables that a purchase writes to.
TEST_CLAIM = ("test write", bytes(32), "", "test", "", "", "monthly", None, 0, 0, None)
TEST_WRITES = (
    "DELETE FROM claims WHERE id = 'test write'",
    "UPDATE keys SET label = label WHERE id = (SELECT max(id) FROM keys)",
    "UPDATE memberships SET billing = billing WHERE id = (SELECT max(id) FROM memberships)",
)
