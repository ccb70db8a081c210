"""OAuth in the access store: clients, authorization requests, connections and tokens."""

import json
from typing import Any

from store.access_rows import KeyLimits
from store.oauth_rows import (
    AccessTokenRow,
    ApprovedAuthorization,
    ConnectionRow,
    NewTokens,
    OAuthClientRow,
    PendingAuthorization,
    RedeemOutcome,
    RenewOutcome,
)
from store.sql.access_statements import INSERT_MEMBER_KEY, INSERT_OPERATOR_KEY
from store.sql.database import Database, Engine, fetch_value

# The limit is part of the INSERT. It reads the index up to a position, so it counts no more rows
# than the limit.
INSERT_CLIENT = """
INSERT INTO oauth_clients (client_id, name, redirect_uris, created_at, used_at)
SELECT :client_id, :name, :redirect_uris, CAST(:created_at AS BIGINT), CAST(:created_at AS BIGINT)
WHERE NOT EXISTS (SELECT 1 FROM oauth_clients WHERE used_at > 0 ORDER BY used_at
                  LIMIT 1 OFFSET :max_clients - 1)
RETURNING 1
"""
FIND_CLIENT = """
SELECT client_id, name, redirect_uris, created_at FROM oauth_clients WHERE client_id = ?
"""
INSERT_REQUEST = """
INSERT INTO oauth_requests
  (id_hash, client_id, client_name, redirect_uri, state, resource, code_challenge, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
"""
FIND_REQUEST = """
SELECT client_id, client_name, redirect_uri, state, resource, code_challenge, created_at
FROM oauth_requests WHERE id_hash = ? AND created_at > ? AND code_hash IS NULL
"""
# Decisions are conditional on `code_hash IS NULL`, so that one of several at once takes effect.
APPROVE_REQUEST = """
UPDATE oauth_requests SET code_hash = ?, approved_at = ?, membership_id = ?
WHERE id_hash = ? AND created_at > ? AND code_hash IS NULL RETURNING 1
"""
DENY_REQUEST = "DELETE FROM oauth_requests WHERE id_hash = ? AND code_hash IS NULL RETURNING 1"
FIND_CODE = """
SELECT client_id, client_name, redirect_uri, resource, code_challenge, approved_at, membership_id
FROM oauth_requests WHERE code_hash = ?
"""
TAKE_CODE = "DELETE FROM oauth_requests WHERE code_hash = ? RETURNING 1"
INSERT_CONNECTION = """
INSERT INTO oauth_connections (key_id, client_id, resource, family_hash) VALUES (?, ?, ?, ?)
"""
INSERT_GRANT = """
INSERT INTO oauth_grants (grant_hash, key_id, issued_at, reusable_until) VALUES (?, ?, ?, ?)
"""
INSERT_ACCESS_TOKEN = """
INSERT INTO oauth_access_tokens (token_hash, key_id, expires_at) VALUES (?, ?, ?)
"""
FIND_CONNECTION = """
SELECT key_id, client_id, resource FROM oauth_connections WHERE family_hash = ?
"""
EXTEND_KEY = """
UPDATE keys SET expires_at = ? WHERE id = ? AND revoked_at IS NULL AND expires_at > ? RETURNING 1
"""
DELETE_EXPIRED_TOKENS = "DELETE FROM oauth_access_tokens WHERE key_id = ? AND expires_at <= ?"
COUNT_TOKENS = "SELECT count(*) FROM oauth_access_tokens WHERE key_id = ?"
# The later end excludes times that a clock stored that was wrong.
_USABLE = "(reusable_until IS NULL OR reusable_until BETWEEN :at AND :until)"
USE_GRANT = f"""
UPDATE oauth_grants SET reusable_until = coalesce(reusable_until, :until)
WHERE grant_hash = :grant_hash AND key_id = :key_id AND {_USABLE} RETURNING 1
"""
TRIM_GRANTS = f"""
DELETE FROM oauth_grants WHERE key_id = :key_id AND grant_hash NOT IN (
  SELECT grant_hash FROM oauth_grants WHERE key_id = :key_id AND {_USABLE}
  ORDER BY issued_at DESC LIMIT :kept)
"""
FIND_ACCESS_TOKEN = """
SELECT key_id, key_hash, client_id, resource, tokens.expires_at AS expires_at
FROM oauth_access_tokens AS tokens JOIN oauth_connections USING (key_id)
  JOIN keys ON keys.id = key_id
WHERE token_hash = ?
"""
IS_KEY_LIVE = """
SELECT 1 FROM keys WHERE key_hash = ? AND revoked_at IS NULL
  AND (expires_at IS NULL OR expires_at > ?)
"""
PRUNE_REQUESTS = "DELETE FROM oauth_requests WHERE created_at < ? RETURNING 1"
PRUNE_GRANTS = """
DELETE FROM oauth_grants WHERE EXISTS (
  SELECT 1 FROM keys WHERE id = key_id AND (revoked_at IS NOT NULL OR expires_at < ?)) RETURNING 1
"""
PRUNE_ACCESS_TOKENS = "DELETE FROM oauth_access_tokens WHERE expires_at < ? RETURNING 1"
# A client with a live connection stays: it uses its id at each refresh. The grants of connections
# that have ended are pruned before.
PRUNE_CLIENTS = """
DELETE FROM oauth_clients WHERE used_at < ?
  AND NOT EXISTS (SELECT 1 FROM oauth_connections JOIN oauth_grants USING (key_id)
                    JOIN keys ON keys.id = key_id
                  WHERE oauth_connections.client_id = oauth_clients.client_id
                    AND revoked_at IS NULL)
RETURNING 1
"""


class OAuthStore:
    """The part of `AccessStore` that stores OAuth; every secret only as SHA-256."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def add_client(self, client: OAuthClientRow, max_clients: int, unused_since: int) -> bool:
        """Store a client; False if there are `max_clients` already.

        If so, delete those without a live connection that were last used before `unused_since`.
        """
        values = {
            "client_id": client.client_id,
            "name": client.name,
            "redirect_uris": json.dumps(client.redirect_uris),
            "created_at": client.created_at,
            "max_clients": max_clients,
        }
        async with self._engine.begin_durable_write() as db:
            await db.acquire_named_lock("oauth clients")
            if await db.execute_named(INSERT_CLIENT, values):
                return True
            await db.execute(PRUNE_CLIENTS, unused_since)
            return bool(await db.execute_named(INSERT_CLIENT, values))

    async def find_client(self, client_id: str) -> OAuthClientRow | None:
        """Return a client that registered itself, or None."""
        async with self._engine.acquire_connection() as db:
            rows = await db.execute(FIND_CLIENT, client_id)
        return _parse_client(**rows[0]) if rows else None

    async def add_request(
        self, request: PendingAuthorization, id_hash: bytes, expired_before: int
    ) -> None:
        """Store a request that waits for consent, and delete those created before a time."""
        row = (
            id_hash,
            request.client_id,
            request.client_name,
            request.redirect_uri,
            request.state,
            request.resource,
            request.code_challenge,
            request.created_at,
        )
        used_sql = "UPDATE oauth_clients SET used_at = ? WHERE client_id = ?"
        async with self._engine.begin_write() as db:
            await db.execute(PRUNE_REQUESTS, expired_before)
            await db.execute(used_sql, request.created_at, request.client_id)
            await db.execute(INSERT_REQUEST, *row)

    async def find_request(
        self, request_id: str, id_hash: bytes, after: int
    ) -> PendingAuthorization | None:
        """Return a pending request created after a time, or None; `request_id` is its clear id."""
        async with self._engine.acquire_connection() as db:
            rows = await db.execute(FIND_REQUEST, id_hash, after)
        return PendingAuthorization(id=request_id, **rows[0]) if rows else None

    async def approve_request(
        self, id_hash: bytes, code_hash: bytes, at: int, membership_id: int | None, after: int
    ) -> bool:
        """Give a pending request, created after a time, its code; False if it is not pending."""
        async with self._engine.begin_durable_write() as db:
            return bool(
                await db.execute(APPROVE_REQUEST, code_hash, at, membership_id, id_hash, after)
            )

    async def deny_request(self, id_hash: bytes) -> bool:
        """Delete a pending request; False if it is not pending."""
        async with self._engine.begin_durable_write() as db:
            return bool(await db.execute(DENY_REQUEST, id_hash))

    async def find_code(self, code_hash: bytes) -> ApprovedAuthorization | None:
        """Return the request of a code that was not exchanged, however old, or None."""
        async with self._engine.acquire_connection() as db:
            rows = await db.execute(FIND_CODE, code_hash)
        return ApprovedAuthorization(**rows[0]) if rows else None

    async def redeem_code(
        self,
        code_hash: bytes,
        request: ApprovedAuthorization,
        key_hash: bytes,
        family_hash: bytes,
        repeat: tuple[bytes, int],
        tokens: NewTokens,
        at: int,
        limits: KeyLimits,
    ) -> RedeemOutcome:
        """Exchange a code for a connection: a key of the membership, and its first tokens.

        `repeat` is a grant with which `renew_tokens` repeats the exchange, and until when. Return
        `spent` if the code was exchanged before, `full` if the membership has ended or reached a
        limit on keys. The code is spent in each case.
        """
        async with self._engine.begin_durable_write() as db:
            if not await db.execute(TAKE_CODE, code_hash):
                return "spent"
            key_id = await _insert_key(db, request, key_hash, tokens.refresh_expires_at, at, limits)
            if key_id is None:
                return "full"
            connection = key_id, request.client_id, request.resource, family_hash
            await db.execute(INSERT_CONNECTION, *connection)
            grant_hash, reusable_until = repeat
            await db.execute(INSERT_GRANT, grant_hash, key_id, at, reusable_until)
            await _insert_tokens(db, key_id, tokens, at)
        return "connected"

    async def find_connection(self, family_hash: bytes) -> ConnectionRow | None:
        """Return the connection of a family of tokens, which may have ended, or None."""
        async with self._engine.acquire_connection() as db:
            rows = await db.execute(FIND_CONNECTION, family_hash)
        return ConnectionRow(**rows[0]) if rows else None

    async def renew_tokens(
        self, key_id: int, grant_hash: bytes, tokens: NewTokens, at: int, until: int, max_live: int
    ) -> RenewOutcome:
        """Add tokens to a live connection for a grant, which can be used again `until` a time.

        Return `ended` if the key of the connection does not work, and `busy` if the connection has
        `max_live` live access tokens. Return `replayed` for a grant that was used longer ago or is
        not known; the key is then revoked.
        """
        async with self._engine.begin_durable_write() as db:
            await db.acquire_named_lock("tokens of a connection", str(key_id))
            if not await db.execute(EXTEND_KEY, tokens.refresh_expires_at, key_id, at):
                return "ended"
            await db.execute(DELETE_EXPIRED_TOKENS, key_id, at)
            if await fetch_value(db, COUNT_TOKENS, key_id) >= max_live:
                return "busy"
            times = {"key_id": key_id, "at": at, "until": until}
            if not await db.execute_named(USE_GRANT, {**times, "grant_hash": grant_hash}):
                await db.execute("UPDATE keys SET revoked_at = ? WHERE id = ?", at, key_id)
                return "replayed"
            # Each use makes an access token, so these are all that can still be used again, and as
            # many that were not used.
            await db.execute_named(TRIM_GRANTS, {**times, "kept": 2 * max_live})
            await _insert_tokens(db, key_id, tokens, at)
        return "renewed"

    async def find_access_token(self, token_hash: bytes) -> AccessTokenRow | None:
        """Return an access token, which may have expired, or None."""
        async with self._engine.acquire_connection() as db:
            rows = await db.execute(FIND_ACCESS_TOKEN, token_hash)
        return AccessTokenRow(**rows[0]) if rows else None

    async def is_key_live(self, key_hash: bytes, at: int) -> bool:
        """Return whether a key exists and is neither revoked nor expired."""
        async with self._engine.acquire_connection() as db:
            return bool(await db.execute(IS_KEY_LIVE, key_hash, at))


async def _insert_key(
    db: Database,
    request: ApprovedAuthorization,
    key_hash: bytes,
    expires_at: int,
    at: int,
    limits: KeyLimits,
) -> int | None:
    """Insert the key of a connection and return its id; None if the membership gets none."""
    if request.membership_id is None:
        key = key_hash, request.client_name, at, expires_at
        rows = await db.execute(INSERT_OPERATOR_KEY, *key)
    else:
        await db.acquire_named_lock("keys of a membership", str(request.membership_id))
        values = {
            "key_hash": key_hash,
            "label": request.client_name,
            "created_at": at,
            "membership_id": request.membership_id,
            "expires_at": expires_at,
            **limits._asdict(),
        }
        rows = await db.execute_named(INSERT_MEMBER_KEY, values)
    return int(rows[0]["id"]) if rows else None


async def _insert_tokens(db: Database, key_id: int, tokens: NewTokens, at: int) -> None:
    await db.execute(INSERT_GRANT, tokens.refresh_hash, key_id, at, None)
    await db.execute(INSERT_ACCESS_TOKEN, tokens.access_hash, key_id, tokens.access_expires_at)


def _parse_client(*, redirect_uris: str, **client: Any) -> OAuthClientRow:
    return OAuthClientRow(redirect_uris=tuple(json.loads(redirect_uris)), **client)
