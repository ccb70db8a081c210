"""API keys: format, hashing, request headers, and the operator's commands."""

import re
import secrets
from hashlib import sha256

from schemas.clock import Clock
from schemas.errors import ApiError
from schemas.vocabulary import format_instant
from store.access_rows import KeyRow
from store.sql.access_store import AccessStore

MAX_LABEL_CHARS = 120

_API_KEY_PATTERN = re.compile(r"ek_[A-Za-z0-9_-]{43}", re.ASCII)
_BEARER_PATTERN = re.compile(f"Bearer ({_API_KEY_PATTERN.pattern})", re.ASCII)
SEND_KEY_HINT = "Send it as `Authorization: Bearer <API_KEY>`."


def hash_key(api_key: str) -> bytes:
    """Return the SHA-256 of a key, under which it is stored."""
    # A key is 256 random bits, so a slow password hash would add cost but no security.
    return sha256(api_key.encode()).digest()


def generate_key() -> str:
    """Return a new key: `ek_` and 32 random bytes in URL-safe base64."""
    return f"ek_{secrets.token_urlsafe(32)}"


def is_valid_label(text: str) -> bool:
    """Return whether a label has 1 to MAX_LABEL_CHARS printable characters."""
    return 1 <= len(text) <= MAX_LABEL_CHARS and text.isprintable()


class OperatorKeys:
    """Creates, revokes and lists keys for the operator; `clock` returns epoch milliseconds."""

    def __init__(self, store: AccessStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def create(self, label: str, expires_at: int | None = None) -> str:
        """Create a key and return it, for the only time.

        Raise ValueError for a bad label, and for a time of expiry that has passed.
        """
        now = self._clock()
        if not is_valid_label(label):
            raise ValueError(f"a label must have 1 to {MAX_LABEL_CHARS} printable characters")
        if expires_at is not None and expires_at <= now:
            raise ValueError(f"a key must expire later than now, {format_instant(now)}")
        api_key = generate_key()
        await self._store.create_key(hash_key(api_key), label, now, expires_at)
        return api_key

    async def rotate(self, key_id: int, overlap_ms: int) -> str | None:
        """Replace a key, which works for another `overlap_ms`, and return the new one.

        Return None if the key does not exist, no longer works, or was rotated before.
        """
        api_key, now = generate_key(), self._clock()
        successor = await self._store.rotate_key(key_id, hash_key(api_key), now, now + overlap_ms)
        return None if successor is None else api_key

    async def revoke(self, key_id: int) -> bool:
        """Revoke a key for good; return False if there is no such key."""
        return await self._store.revoke_key(key_id, self._clock())

    async def list(self) -> list[KeyRow]:
        """Return every key, oldest first."""
        return await self._store.list_keys()


def identify_key(authorization: str | None, x_api_key: str | None) -> bytes:
    """Return the hash of the key in the headers; raise ApiError 401 as `read_key_headers` does."""
    # The lookup by hash need not take constant time. Its duration can only reveal how much of a
    # SHA-256 matched, which does not help to find a key.
    return hash_key(read_key_headers(authorization, x_api_key))


def read_key_headers(authorization: str | None, x_api_key: str | None) -> str:
    """Return the key from the headers; raise ApiError 401 if missing, malformed or ambiguous."""
    keys = []
    if authorization is not None:
        keys.append(_parse_bearer(authorization))
    if x_api_key is not None:
        keys.append(_check_key_format(x_api_key.strip()))
    if not keys:
        raise ApiError("missing_key", f"This call needs an API key. {SEND_KEY_HINT}", 401)
    if keys[0] != keys[-1]:
        raise invalid_key_error(
            "Authorization and X-Api-Key carry different keys: send one of them."
        )
    return keys[0]


def _parse_bearer(authorization: str) -> str:
    # The usual form first: it needs one match per call.
    if (match := _BEARER_PATTERN.fullmatch(authorization)) is not None:
        return match[1]
    scheme, _, value = authorization.strip().partition(" ")
    _reject_unexpanded(authorization)
    if scheme.lower() != "bearer":
        raise invalid_key_error(
            f"The Authorization header does not use the Bearer scheme. {SEND_KEY_HINT}"
        )
    return _check_key_format(value.strip())


def _check_key_format(value: str) -> str:
    _reject_unexpanded(value)
    if value.startswith("at_"):
        raise invalid_key_error(
            "An OAuth access token works only at the MCP address that it was issued for, /mcp. "
            f"Use that address, or an API key here. {SEND_KEY_HINT}"
        )
    if not value:
        raise invalid_key_error(f"The header for the API key is empty. {SEND_KEY_HINT}")
    if not _API_KEY_PATTERN.fullmatch(value):
        raise invalid_key_error(
            "The API key is malformed: a key is ek_ and 43 letters, digits, - or _. "
            "Check that it was copied whole."
        )
    return value


def _reject_unexpanded(value: str) -> None:
    # Some MCP hosts send the placeholder of their configuration file without expanding it.
    if "${" in value:
        raise invalid_key_error(
            "The client sent the text ${SIGNALS_API_KEY} unexpanded instead of a key: set the "
            "environment variable SIGNALS_API_KEY where the client starts, then restart it."
        )


def invalid_key_error(message: str) -> ApiError:
    """Return the ApiError 401 for a key that is malformed or unknown."""
    return ApiError("invalid_key", message, 401)
