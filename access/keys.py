"""API keys: how they are made, stored as a hash alone, checked and revoked; and how to buy one."""

import re
import secrets
from collections.abc import Callable
from hashlib import sha256

from schemas.errors import ApiError, HowToGetAccess
from schemas.vocabulary import Billing
from store.protocol import AccessStore
from store.rows import KeyRow

MAX_LABEL = 120
PRICE_USD: dict[Billing, int] = {"monthly": 129, "yearly": 1199}

_API_KEY = re.compile(r"ek_[A-Za-z0-9_-]{43}", re.ASCII)
_SEND = "Send it as `Authorization: Bearer <API_KEY>`."
_BUY = "To get a key: POST /api/v1/access/checkout, pay, then POST /api/v1/access/claim."


def hash_key(api_key: str) -> bytes:
    """Return the SHA-256 of a key; a key is 256 random bits, so a slow hash would add nothing."""
    return sha256(api_key.encode()).digest()


def how_to_get_access(base_url: str) -> HowToGetAccess:
    """Return the purchase flow and its prices, with absolute addresses."""
    base = base_url.rstrip("/")
    return HowToGetAccess(
        steps=[
            f"POST {base}/api/v1/access/checkout: returns checkout_url and a one-time claim_token.",
            "Pay at checkout_url.",
            f"POST {base}/api/v1/access/claim with the claim_token: returns api_key once; "
            "while status is pending, retry every 10 seconds for up to 5 minutes.",
        ],
        plan="premium",
        price_usd=dict(PRICE_USD),
    )


class Keys:
    """The keys of one access store; `clock` tells epoch milliseconds."""

    def __init__(self, store: AccessStore, clock: Callable[[], int]) -> None:
        self._store = store
        self._clock = clock

    async def create(self, label: str) -> str:
        """Make a key and return it, the only time it is shown; ValueError for a bad label."""
        if not 1 <= len(label) <= MAX_LABEL or not label.isprintable():
            raise ValueError(f"a label has 1 to {MAX_LABEL} printable characters")
        api_key = f"ek_{secrets.token_urlsafe(32)}"
        await self._store.create_key(hash_key(api_key), label, self._clock())
        return api_key

    async def revoke(self, key_id: int) -> bool:
        """Revoke a key for good; False where no such key exists."""
        return await self._store.revoke_key(key_id, self._clock())

    async def list(self) -> list[KeyRow]:
        """Return every key, oldest first."""
        return await self._store.list_keys()

    async def authenticate(self, authorization: str | None, x_api_key: str | None) -> KeyRow:
        """Return the key that the two headers carry; ApiError where they carry no live one.

        The lookup compares hashes: its timing tells at most how much of a SHA-256 matched, from
        which nobody can steer towards a key, so it needs no constant-time comparison.
        """
        key = await self._store.find_key(hash_key(_sent_key(authorization, x_api_key)))
        if key is None:
            raise _invalid(f"The API key is unknown: check that it was copied whole. {_BUY}")
        if key.revoked_at is not None:
            message = f"This API key was revoked and stays so: use another key. {_BUY}"
            raise ApiError("revoked_key", message, 403)
        return key


def _sent_key(authorization: str | None, x_api_key: str | None) -> str:
    """Return the well-formed key that the headers agree on."""
    if authorization is None and x_api_key is None:
        raise ApiError("missing_key", f"This call needs an API key. {_SEND} {_BUY}", 401)
    sent = []
    if authorization is not None:
        sent.append(_bearer_key(authorization))
    if x_api_key is not None:
        sent.append(_well_formed(x_api_key.strip()))
    if len(set(sent)) > 1:
        raise _invalid("Authorization and X-Api-Key carry different keys: send one of them.")
    return sent[0]


def _bearer_key(authorization: str) -> str:
    scheme, _, value = authorization.strip().partition(" ")
    _refuse_unexpanded(authorization)
    if scheme.lower() != "bearer":
        raise _invalid(f"The Authorization header is not of the scheme Bearer. {_SEND} {_BUY}")
    return _well_formed(value.strip())


def _well_formed(value: str) -> str:
    _refuse_unexpanded(value)
    if not value:
        raise _invalid(f"The header that should carry the API key is empty. {_SEND} {_BUY}")
    if not _API_KEY.fullmatch(value):
        raise _invalid(
            "The API key is malformed: a key is ek_ and 43 letters, digits, - or _. "
            f"Check that it was copied whole. {_BUY}"
        )
    return value


def _refuse_unexpanded(value: str) -> None:
    if "${" in value:
        raise _invalid(
            "The client sent the text ${SIGNALS_API_KEY} unexpanded instead of a key: set the "
            "environment variable SIGNALS_API_KEY where the client starts, then restart it. "
            f"{_BUY}"
        )


def _invalid(message: str) -> ApiError:
    return ApiError("invalid_key", message, 401)
