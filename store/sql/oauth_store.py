"""OAuth in the access store: clients, authorization requests, connections and tokens."""

import json
from functools import partial
from typing import Any

from store.access_rows import (
    AccessTokenRow,
    ApprovedAuthorization,
    ConnectionRow,
    KeyLimits,
    NewTokens,
    OAuthClient,
    PendingAuthorization,
    RedeemOutcome,
    RenewOutcome,
)
from store.sql.database import Database, fetch_value
from store.sql.key_store import INSERT_MEMBER_KEY, INSERT_OPERATOR_KEY, StorePart

INSERT_GRANT = """
INSERT INTO oauth_grants (grant_hash, key_id, issued_at, reusable_until) VALUES (?, ?, ?, ?)
"""
# The later end excludes times that a clock stored that was wrong.
_USABLE = "(reusable_until IS NULL OR reusable_until BETWEEN :at AND :until)"
PRUNE_REQUESTS = "DELETE FROM oauth_requests WHERE created_at < ? RETURNING 1"
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


class OAuthStore(StorePart):
    """The part of `AccessStore` that stores OAuth; every secret only as SHA-256."""

    async def add_client(self, client: OAuthClient, max_clients: int, unused_since: int) -> bool:
        """Store a client; False if there are `max_clients` already.

        If so, delete those without a live connection that were last used before `unused_since`.
        """
        # The limit is part of the INSERT. It reads the index up to a position, so it counts no more
        # rows than the limit.
        sql = """
INSERT INTO oauth_clients (client_id, name, redirect_uris, created_at, used_at)
SELECT :client_id, :name, :redirect_uris, CAST(:created_at AS BIGINT), CAST(:created_at AS BIGINT)
WHERE NOT EXISTS (SELECT 1 FROM oauth_clients WHERE used_at > 0 ORDER BY used_at
                  LIMIT 1 OFFSET :max_clients - 1)
RETURNING 1
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
            if await db.execute_named(sql, values):
                return True
            await db.execute(PRUNE_CLIENTS, unused_since)
            return bool(await db.execute_named(sql, values))

    async def find_client(self, client_id: str) -> OAuthClient | None:
        """Return a client that registered itself, or None."""
        sql = (
            "SELECT client_id, name, redirect_uris, created_at FROM oauth_clients "
            "WHERE client_id = ?"
        )

        def build(*, redirect_uris: str, **client: Any) -> OAuthClient:
            return OAuthClient(redirect_uris=tuple(json.loads(redirect_uris)), **client)

        return await self._find(build, sql, client_id)

    async def add_request(
        self, request: PendingAuthorization, id_hash: bytes, expired_before: int
    ) -> None:
        """Store a request that waits for consent, and delete those created before a time."""
        async with self._engine.begin_write() as db:
            await db.execute(PRUNE_REQUESTS, expired_before)
            used_sql = "UPDATE oauth_clients SET used_at = ? WHERE client_id = ?"
            await db.execute(used_sql, request.created_at, request.client_id)
            await db.execute(
                """
INSERT INTO oauth_requests
  (id_hash, client_id, client_name, redirect_uri, state, resource, code_challenge, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?)
""",
                *(id_hash, request.client_id, request.client_name, request.redirect_uri),
                *(request.state, request.resource, request.code_challenge, request.created_at),
            )

    async def find_request(
        self, request_id: str, id_hash: bytes, after: int
    ) -> PendingAuthorization | None:
        """Return a pending request created after a time, or None; `request_id` is its clear id."""
        sql = """
SELECT client_id, client_name, redirect_uri, state, resource, code_challenge, created_at
FROM oauth_requests WHERE id_hash = ? AND created_at > ? AND code_hash IS NULL
"""
        return await self._find(partial(PendingAuthorization, id=request_id), sql, id_hash, after)

    # Decisions are conditional on `code_hash IS NULL`, so that one of several at once takes effect.

    async def approve_request(
        self, id_hash: bytes, code_hash: bytes, at: int, membership_id: int | None, after: int
    ) -> bool:
        """Give a pending request, created after a time, its code; False if it is not pending."""
        sql = """
UPDATE oauth_requests SET code_hash = ?, approved_at = ?, membership_id = ?
WHERE id_hash = ? AND created_at > ? AND code_hash IS NULL RETURNING 1
"""
        return bool(await self._write(sql, code_hash, at, membership_id, id_hash, after))

    async def deny_request(self, id_hash: bytes) -> bool:
        """Delete a pending request; False if it is not pending."""
        sql = "DELETE FROM oauth_requests WHERE id_hash = ? AND code_hash IS NULL RETURNING 1"
        return bool(await self._write(sql, id_hash))

    async def find_code(self, code_hash: bytes) -> ApprovedAuthorization | None:
        """Return the request of a code that was not exchanged, however old, or None."""
        columns = ", ".join(ApprovedAuthorization._fields)
        sql = f"SELECT {columns} FROM oauth_requests WHERE code_hash = ?"
        return await self._find(ApprovedAuthorization, sql, code_hash)

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
            take_sql = "DELETE FROM oauth_requests WHERE code_hash = ? RETURNING 1"
            if not await db.execute(take_sql, code_hash):
                return "spent"
            if request.membership_id is None:
                key = key_hash, request.client_name, at, tokens.refresh_expires_at
                rows = await db.execute(INSERT_OPERATOR_KEY, *key)
            else:
                await db.acquire_named_lock("keys of a membership", str(request.membership_id))
                values = {
                    "key_hash": key_hash,
                    "label": request.client_name,
                    "created_at": at,
                    "membership_id": request.membership_id,
                    "expires_at": tokens.refresh_expires_at,
                    **limits._asdict(),
                }
                rows = await db.execute_named(INSERT_MEMBER_KEY, values)
            if not rows:
                return "full"
            key_id = int(rows[0]["id"])
            await db.execute(
                "INSERT INTO oauth_connections (key_id, client_id, resource, family_hash) "
                "VALUES (?, ?, ?, ?)",
                *(key_id, request.client_id, request.resource, family_hash),
            )
            grant_hash, reusable_until = repeat
            await db.execute(INSERT_GRANT, grant_hash, key_id, at, reusable_until)
            await _insert_tokens(db, key_id, tokens, at)
        return "connected"

    async def find_connection(self, family_hash: bytes) -> ConnectionRow | None:
        """Return the connection of a family of tokens, which may have ended, or None."""
        sql = "SELECT key_id, client_id, resource FROM oauth_connections WHERE family_hash = ?"
        return await self._find(ConnectionRow, sql, family_hash)

    async def renew_tokens(
        self, key_id: int, grant_hash: bytes, tokens: NewTokens, at: int, until: int, max_live: int
    ) -> RenewOutcome:
        """Add tokens to a live connection for a grant, which can be used again `until` a time.

        Return `ended` if the key of the connection does not work, and `busy` if the connection has
        `max_live` live access tokens. Return `replayed` for a grant that was used longer ago or is
        not known; the key is then revoked.
        """
        extend_sql = (
            "UPDATE keys SET expires_at = ? "
            "WHERE id = ? AND revoked_at IS NULL AND expires_at > ? RETURNING 1"
        )
        expire_sql = "DELETE FROM oauth_access_tokens WHERE key_id = ? AND expires_at <= ?"
        count_sql = "SELECT count(*) FROM oauth_access_tokens WHERE key_id = ?"
        use_sql = f"""
UPDATE oauth_grants SET reusable_until = coalesce(reusable_until, :until)
WHERE grant_hash = :grant_hash AND key_id = :key_id AND {_USABLE} RETURNING 1
"""
        trim_sql = f"""
DELETE FROM oauth_grants WHERE key_id = :key_id AND grant_hash NOT IN (
  SELECT grant_hash FROM oauth_grants WHERE key_id = :key_id AND {_USABLE}
  ORDER BY issued_at DESC LIMIT :kept)
"""
        async with self._engine.begin_durable_write() as db:
            await db.acquire_named_lock("tokens of a connection", str(key_id))
            if not await db.execute(extend_sql, tokens.refresh_expires_at, key_id, at):
                return "ended"
            await db.execute(expire_sql, key_id, at)
            if await fetch_value(db, count_sql, key_id) >= max_live:
                return "busy"
            times = {"key_id": key_id, "at": at, "until": until}
            if not await db.execute_named(use_sql, {**times, "grant_hash": grant_hash}):
                await db.execute("UPDATE keys SET revoked_at = ? WHERE id = ?", at, key_id)
                return "replayed"
            # Each use makes an access token, so these are all that can still be used again, and as
            # many that were not used.
            await db.execute_named(trim_sql, {**times, "kept": 2 * max_live})
            await _insert_tokens(db, key_id, tokens, at)
        return "renewed"

    async def find_access_token(self, token_hash: bytes) -> AccessTokenRow | None:
        """Return an access token, which may have expired, or None."""
        sql = """
SELECT key_id, key_hash, client_id, resource, tokens.expires_at AS expires_at
FROM oauth_access_tokens AS tokens JOIN oauth_connections USING (key_id)
  JOIN keys ON keys.id = key_id
WHERE token_hash = ?
"""
        return await self._find(AccessTokenRow, sql, token_hash)

    async def is_key_live(self, key_hash: bytes, at: int) -> bool:
        """Return whether a key exists and is neither revoked nor expired."""
        sql = (
            "SELECT 1 FROM keys WHERE key_hash = ? AND revoked_at IS NULL "
            "AND (expires_at IS NULL OR expires_at > ?)"
        )
        return bool(await self._read(sql, key_hash, at))


async def _insert_tokens(db: Database, key_id: int, tokens: NewTokens, at: int) -> None:
    await db.execute(INSERT_GRANT, tokens.refresh_hash, key_id, at, None)
    sql = "INSERT INTO oauth_access_tokens (token_hash, key_id, expires_at) VALUES (?, ?, ?)"
    await db.execute(sql, tokens.access_hash, key_id, tokens.access_expires_at)
