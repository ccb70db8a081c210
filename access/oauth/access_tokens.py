"""Finds the key that an access token stands for."""

from access.keys import hash_key, invalid_key_error
from access.oauth.parameters import RESOURCE_PATH
from schemas.clock import Clock
from store.oauth_rows import AccessTokenRow
from store.sql.access_store import AccessStore

MAX_CACHED_TOKENS = 10_000


class AccessTokens:
    """Resolves access tokens; `issuer` is the base URL, `clock` returns epoch ms.

    Whether the key is live is not checked here: counting its call does that.
    """

    # A token's key and expiry never change, so a cached row is never wrong. With the cache, a call
    # with a token costs no statement more than a call with a key.

    def __init__(self, store: AccessStore, clock: Clock, *, issuer: str) -> None:
        self._store = store
        self._clock = clock
        self._resource = f"{issuer}{RESOURCE_PATH}"
        self._rows: dict[bytes, AccessTokenRow] = {}

    async def find_key_hash(self, token: str) -> bytes:
        """Return the hash of a token's key; ApiError 401 if the token is unknown or expired."""
        token_hash = hash_key(token)
        row = self._rows.get(token_hash) or await self._load(token_hash)
        if row is None:
            raise invalid_key_error("The access token is unknown: connect again.")
        if row.expires_at <= self._clock():
            raise invalid_key_error("The access token has expired: refresh it.")
        return row.key_hash

    async def is_live(self, key_hash: bytes) -> bool:
        """Return whether a key exists and is neither revoked nor expired."""
        return await self._store.oauth.is_key_live(key_hash, self._clock())

    async def _load(self, token_hash: bytes) -> AccessTokenRow | None:
        row = await self._store.oauth.find_access_token(token_hash)
        if row is None or row.resource != self._resource:
            return None
        # A dict keeps insertion order, so the first row is the oldest.
        if len(self._rows) >= MAX_CACHED_TOKENS:
            self._rows.pop(next(iter(self._rows)))
        self._rows[token_hash] = row
        return row
