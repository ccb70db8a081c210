"""API keys: how they are made, stored as a hash alone, sent and revoked."""

import re
import secrets
from hashlib import sha256

from schemas.clock import Clock
from schemas.errors import ApiError
from store.access_protocol import AccessStore
from store.access_rows import KeyRow

MAX_LABEL = 120

_API_KEY = re.compile(r"ek_[A-Za-z0-9_-]{43}", re.ASCII)
_BEARER = re.compile(f"Bearer ({_API_KEY.pattern})", re.ASCII)
SEND = "Send it as `Authorization: Bearer <API_KEY>`."
BUY = "To get a key: POST /api/v1/access/checkout, pay, then POST /api/v1/access/claim."


def hash_key(api_key: str) -> bytes:
    """Return the SHA-256 of a key; a key is 256 random bits, so a slow hash would add nothing."""
    return sha256(api_key.encode()).digest()


def new_key() -> str:
    """Return a fresh key: `ek_` and 32 random bytes."""
    return f"ek_{secrets.token_urlsafe(32)}"


def is_label(text: str) -> bool:
    """Tell whether a key may have this label: 1 to MAX_LABEL printable characters."""
    return 1 <= len(text) <= MAX_LABEL and text.isprintable()


class Keys:
    """The operator's hand on the keys of one access store; `clock` tells epoch milliseconds."""

    def __init__(self, store: AccessStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def create(self, label: str) -> str:
        """Make a key and return it, the only time it is shown; ValueError for a bad label."""
        if not is_label(label):
            raise ValueError(f"a label has 1 to {MAX_LABEL} printable characters")
        api_key = new_key()
        await self._store.create_key(hash_key(api_key), label, self._clock())
        return api_key

    async def revoke(self, key_id: int) -> bool:
        """Revoke a key for good; False where no such key exists."""
        return await self._store.revoke_key(key_id, self._clock())

    async def list(self) -> list[KeyRow]:
        """Return every key, oldest first."""
        return await self._store.list_keys()


def sent_key(authorization: str | None, x_api_key: str | None) -> str:
    """Return the well-formed key that the two headers agree on; ApiError where there is none."""
    sent = []
    if authorization is not None:
        sent.append(_bearer_key(authorization))
    if x_api_key is not None:
        sent.append(_well_formed(x_api_key.strip()))
    if not sent:
        raise ApiError("missing_key", f"This call needs an API key. {SEND} {BUY}", 401)
    if sent[0] != sent[-1]:
        raise invalid_key("Authorization and X-Api-Key carry different keys: send one of them.")
    return sent[0]


def _bearer_key(authorization: str) -> str:
    if (plain := _BEARER.fullmatch(authorization)) is not None:
        return plain[1]
    scheme, _, value = authorization.strip().partition(" ")
    _refuse_unexpanded(authorization)
    if scheme.lower() != "bearer":
        raise invalid_key(f"The Authorization header is not of the scheme Bearer. {SEND} {BUY}")
    return _well_formed(value.strip())


def _well_formed(value: str) -> str:
    _refuse_unexpanded(value)
    if not value:
        raise invalid_key(f"The header that should carry the API key is empty. {SEND} {BUY}")
    if not _API_KEY.fullmatch(value):
        raise invalid_key(
            "The API key is malformed: a key is ek_ and 43 letters, digits, - or _. "
            f"Check that it was copied whole. {BUY}"
        )
    return value


def _refuse_unexpanded(value: str) -> None:
    if "${" in value:
        raise invalid_key(
            "The client sent the text ${SIGNALS_API_KEY} unexpanded instead of a key: set the "
            "environment variable SIGNALS_API_KEY where the client starts, then restart it. "
            f"{BUY}"
        )


def invalid_key(message: str) -> ApiError:
    """Return the refusal of a key that is none."""
    return ApiError("invalid_key", message, 401)
