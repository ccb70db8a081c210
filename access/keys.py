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

_API_KEY = "ek_[A-Za-z0-9_-]{43}"
_API_KEY_PATTERN = re.compile(_API_KEY, re.ASCII)
_BEARER_PATTERN = re.compile(rf"[ \t]*(?i:bearer)[ \t]+({_API_KEY})[ \t]*", re.ASCII)
SEND_KEY_HINT = "Send it as `Authorization: Bearer <API_KEY>`."
# The last five are the bytes of typographic quotes, which headers carry as Latin-1.
_QUOTES = "[\"'`<>(){}\\[\\]\xe2\x80\x98\x99\x9c\x9d]"
_MISTAKES = tuple(
    (re.compile(pattern, re.ASCII | re.DOTALL), message)
    for pattern, message in (
        # Some MCP hosts send the placeholder of their configuration file without expanding it.
        (
            r".*\$\{.*",
            "The client sent the text ${SIGNALS_API_KEY} unexpanded instead of a key: set the "
            "environment variable SIGNALS_API_KEY where the client starts, then restart it.",
        ),
        (
            rf"{_QUOTES}+((?i:bearer) +)?{_API_KEY}{_QUOTES}*|{_API_KEY}{_QUOTES}+",
            "The API key has quotes or brackets around it: send it without them. " + SEND_KEY_HINT,
        ),
        (
            r"\$\w+|%\w+%|\{.+\}|<[\w -]+>|(?i:([a-z]+[_ -])*key|undefined|null|none)",
            "The client sent a placeholder instead of a key: write the key in its place, or set "
            "the variable that it stands for where the client starts, then restart it.",
        ),
        (
            "at_[A-Za-z0-9_-]{43}",
            "An OAuth access token works only at the MCP address that it was issued for, /mcp. "
            f"Use that address, or an API key here. {SEND_KEY_HINT}",
        ),
        (
            rf"((?i:bearer) +)+{_API_KEY}",
            "The word Bearer belongs once before the key in Authorization, and not into X-Api-Key. "
            + SEND_KEY_HINT,
        ),
        (
            rf"{_API_KEY} *,.*|.*, *((?i:bearer) +)?{_API_KEY}",
            "The header for the API key has several values: send it once, with one key.",
        ),
    )
)


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
    """Return the key from the headers; raise ApiError 401 if they have none, or two keys.

    A key in one header wins over anything else in the other, such as a proxy's Basic credentials.
    """
    bearer = None if authorization is None else _BEARER_PATTERN.fullmatch(authorization)
    plain = None if x_api_key is None else _API_KEY_PATTERN.fullmatch(x_api_key.strip())
    if bearer is not None and plain is not None and bearer[1] != plain[0]:
        raise invalid_key_error(
            "Authorization and X-Api-Key carry different keys: send one of them."
        )
    if bearer is not None:
        return bearer[1]
    if plain is not None:
        return plain[0]
    if authorization is None and x_api_key is None:
        raise ApiError("missing_key", f"This call needs an API key. {SEND_KEY_HINT}", 401)
    raise invalid_key_error(_find_mistake((authorization or "").strip(), (x_api_key or "").strip()))


def _find_mistake(authorization: str, x_api_key: str) -> str:
    """Return what is wrong with headers that have no key; the message quotes no value."""
    scheme, _, value = authorization.replace("\t", " ").partition(" ")
    is_bearer = scheme.lower() == "bearer"
    # Another scheme may be a proxy's, so the key is more likely to be in the other header.
    if not is_bearer:
        value = x_api_key or authorization
    for pattern, message in _MISTAKES:
        if pattern.fullmatch(value.strip()):
            return message
    if not value:
        return f"The header for the API key is empty. {SEND_KEY_HINT}"
    if not is_bearer and not x_api_key:
        return f"The Authorization header does not use the Bearer scheme. {SEND_KEY_HINT}"
    return (
        "The API key is malformed: a key is ek_ and 43 letters, digits, - or _. "
        "Check that it was copied whole."
    )


def invalid_key_error(message: str) -> ApiError:
    """Return the ApiError 401 for a key that is malformed or unknown."""
    return ApiError("invalid_key", message, 401)
