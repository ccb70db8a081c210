"""Exchanges codes and refresh tokens, revokes connections, and finds the key of an access token.

A connection is a key of the member who approved it, whose clear text nobody has. Tokens are random;
only their SHA-256 is stored.
"""

import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from hashlib import sha256

import structlog

from access.keys_and_quota import generate_key, hash_key, invalid_key_error
from access.members import build_limits
from access.oauth.clients import ClientRegistry
from access.oauth.parameters import (
    RESOURCE_PATH,
    SCOPE,
    OAuthError,
    check_resource,
    complete_path,
    matches_challenge,
)
from schemas.errors import rate_limited_error
from schemas.vocabulary import DAY_MS, HOUR_MS, Clock
from store.access_rows import AccessTokenRow, ConnectionRow, NewTokens
from store.sql.access_store import AccessStore

CODE_MS = 60_000
# A host whose answer was lost exchanges its code again, and two processes of a host refresh with
# one token. Each gets tokens of its own, and a later use ends the connection for all.
CODE_GRACE_MS = 10_000
REFRESH_GRACE_MS = 60_000
ACCESS_TOKEN_MS = HOUR_MS
# A connection that is not used for so long ends, and no longer counts as a live key.
REFRESH_TOKEN_MS = 90 * DAY_MS
# Bounds the rows that a client can add by refreshing in a loop.
MAX_LIVE_ACCESS_TOKENS = 20
# Refresh tokens are `rt_`, the family (43 characters), a dot and 43 characters of their own.
FAMILY_CHARS = len("rt_") + 43

log = structlog.get_logger("oauth")


class TokenIssuer:
    """Issues and revokes tokens; `issuer` is the base URL, `clock` returns epoch ms."""

    def __init__(
        self, store: AccessStore, clients: ClientRegistry, clock: Clock, *, issuer: str
    ) -> None:
        self._store = store
        self._clients = clients
        self._clock = clock
        self._resource = f"{issuer}{RESOURCE_PATH}"

    async def exchange(self, form: Mapping[str, str]) -> dict[str, object]:
        """Exchange a code or a refresh token for a response; raise OAuthError if it is refused.

        ApiError 429 if a client refreshes too often.
        """
        grant_type = form.get("grant_type")
        if grant_type not in {"authorization_code", "refresh_token"}:
            raise OAuthError(
                "unsupported_grant_type",
                "grant_type: must be authorization_code or refresh_token",
            )
        check_resource(form.get("resource"), self._resource)
        if grant_type == "authorization_code":
            return await self._exchange_code(form)
        token = form.get("refresh_token", "")
        family = token[:FAMILY_CHARS]
        connection = await self._store.oauth.find_connection(hash_key(family))
        await self._check_client(form, None if connection is None else connection.client_id)
        if connection is None:
            raise _invalid_grant_error("the refresh token is unknown: connect again")
        return await self._renew(connection, token, family, self._clock())

    async def revoke(self, form: Mapping[str, str]) -> None:
        """End the connection of an access or refresh token (RFC 7009); unknown ones are ignored.

        Raise OAuthError if the token is missing or belongs to another client.
        """
        token = form.get("token", "")
        if not token:
            raise OAuthError("invalid_request", "token: missing; send the token to revoke")
        oauth = self._store.oauth
        found = await oauth.find_access_token(hash_key(token))
        connection = found or await oauth.find_connection(hash_key(token[:FAMILY_CHARS]))
        if connection is None:
            return
        key_id, client_id = connection.key_id, connection.client_id
        if form.get("client_id", client_id) != client_id:
            raise OAuthError("invalid_client", "client_id: the token belongs to another client")
        await self._store.revoke_key(key_id, self._clock())
        log.info("connection_revoked", key=key_id, why="revoked_by_client")

    async def _exchange_code(self, form: Mapping[str, str]) -> dict[str, object]:
        code, now = form.get("code", ""), self._clock()
        code_hash = hash_key(code)
        # Made of the code, so that a repeated exchange finds the connection of the first one.
        random = urlsafe_b64encode(hash_key(f"family {code}")).rstrip(b"=").decode()
        family = f"rt_{random}"
        # Only the same client with the same verifier repeats an exchange.
        grant = f"{code} {form.get('client_id')} {form.get('code_verifier')}"
        request = await self._store.oauth.find_code(code_hash)
        if request is not None:
            await self._check_client(form, request.client_id)
            if now >= request.approved_at + CODE_MS:
                raise _invalid_grant_error("the code has expired: connect again")
            # OAuth 2.1 clients no longer send it; PKCE protects the exchange.
            sent_uri = form.get("redirect_uri", request.redirect_uri)
            if complete_path(sent_uri) != complete_path(request.redirect_uri):
                raise _invalid_grant_error(
                    "redirect_uri differs from that of the authorization request"
                )
            if not matches_challenge(form.get("code_verifier", ""), request.code_challenge):
                raise _invalid_grant_error(
                    "code_verifier is missing or does not match the code_challenge"
                )
            # A code of a server at another address, which a changed setting can leave behind.
            check_resource(request.resource, self._resource)
            tokens, stored = create_tokens(family, now)
            outcome = await self._store.oauth.redeem_code(
                code_hash,
                request,
                hash_key(generate_key()),
                hash_key(family),
                (hash_key(grant), now + CODE_GRACE_MS),
                stored,
                now,
                build_limits(now),
            )
            if outcome == "connected":
                return tokens
            if outcome == "full":
                raise _invalid_grant_error(
                    "the membership has ended or has no room for another key: revoke a key under "
                    "Settings, API access, and connect again"
                )
        connection = await self._store.oauth.find_connection(hash_key(family))
        if connection is None:
            await self._check_client(form, None)
            raise _invalid_grant_error("the code is unknown or expired: connect again")
        return await self._renew(connection, grant, family, now)

    async def _renew(
        self, connection: ConnectionRow, grant: str, family: str, now: int
    ) -> dict[str, object]:
        """Return new tokens of a connection for a grant, which may be used again for a moment."""
        check_resource(connection.resource, self._resource)
        tokens, stored = create_tokens(family, now)
        key_id, until = connection.key_id, now + REFRESH_GRACE_MS
        outcome = await self._store.oauth.renew_tokens(
            key_id, hash_key(grant), stored, now, until, MAX_LIVE_ACCESS_TOKENS
        )
        if outcome == "renewed":
            return tokens
        if outcome == "busy":
            raise rate_limited_error(
                "This connection was refreshed too often: use the access token until it expires.",
                ACCESS_TOKEN_MS // 1000,
            )
        if outcome == "ended":
            raise _invalid_grant_error("the connection was revoked or has expired: connect again")
        # Somebody else may have it, so the connection ends for both.
        log.info("connection_revoked", key=key_id, why="grant_replayed")
        raise _invalid_grant_error(
            "it was used before, so the connection was revoked: connect again"
        )

    async def _check_client(self, form: Mapping[str, str], bound_to: str | None) -> None:
        """Raise OAuthError unless the client of a request is the one that a grant is bound to.

        A client that is not known at all gets `invalid_client`, which makes hosts register again.
        """
        client_id = form.get("client_id", "")
        if bound_to is not None and client_id == bound_to:
            return
        if client_id.startswith("https://"):
            # It need not register again, and a stranger must not choose what is fetched.
            is_known = self._clients.documents is not None
        else:
            is_known = await self._clients.find(client_id) is not None
        if not is_known:
            raise OAuthError("invalid_client", "client_id: unknown client: register again")
        if bound_to is not None:
            raise _invalid_grant_error("it was issued to another client: connect again")


def create_tokens(family: str, now: int) -> tuple[dict[str, object], NewTokens]:
    """Return new tokens of a connection as a response (RFC 6749, section 5.1) and as stored."""
    access_token = f"at_{secrets.token_urlsafe(32)}"
    refresh_token = f"{family}.{secrets.token_urlsafe(32)}"
    stored = NewTokens(
        hash_key(refresh_token),
        now + REFRESH_TOKEN_MS,
        hash_key(access_token),
        now + ACCESS_TOKEN_MS,
    )
    response: dict[str, object] = {
        "access_token": access_token,
        "token_type": "Bearer",
        "expires_in": ACCESS_TOKEN_MS // 1000,
        "refresh_token": refresh_token,
        "scope": SCOPE,
    }
    return response, stored


def _invalid_grant_error(reason: str) -> OAuthError:
    return OAuthError("invalid_grant", reason)


MAX_CACHED_TOKENS = 10_000


class AccessTokens:
    """Resolves access tokens; `issuer` is the base URL, `clock` returns epoch ms."""

    # A token's key and expiry never change, so a cached row is never wrong. Whether the key is live
    # is read for each request.

    def __init__(self, store: AccessStore, clock: Clock, *, issuer: str) -> None:
        self._store = store
        self._clock = clock
        self._resource = f"{issuer}{RESOURCE_PATH}"
        self._rows: dict[bytes, AccessTokenRow] = {}

    async def find_key_hash(self, token: bytes) -> bytes:
        """Return the hash of a token's key; ApiError 401 if the token is unknown or expired."""
        token_hash = sha256(token).digest()
        row = self._rows.get(token_hash)
        if row is None:
            row = await self._store.oauth.find_access_token(token_hash)
            if row is None or row.resource != self._resource:
                raise invalid_key_error("The access token is unknown: connect again.")
            # A dict keeps insertion order, so the first row is the oldest.
            if len(self._rows) >= MAX_CACHED_TOKENS:
                self._rows.pop(next(iter(self._rows)))
            self._rows[token_hash] = row
        if row.expires_at <= self._clock():
            raise invalid_key_error("The access token has expired: refresh it.")
        return row.key_hash

    async def is_live(self, key_hash: bytes) -> bool:
        """Return whether a key exists and is neither revoked nor expired."""
        return await self._store.oauth.is_key_live(key_hash, self._clock())
