"""Checks the parameters of OAuth requests: repeated names, resource, PKCE (RFC 7636)."""

import re
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Iterable, Mapping
from hashlib import sha256
from secrets import compare_digest
from urllib.parse import urlsplit

from access.oauth.errors import OAuthError
from store.addresses import is_loopback

SCOPE = "read"
RESOURCE_PATH = "/mcp"
# Longer values are refused, because requests are stored.
MAX_STATE_CHARS = 2048

_CHALLENGE_PATTERN = re.compile(r"[A-Za-z0-9_-]{43}", re.ASCII)
_VERIFIER_PATTERN = re.compile(r"[A-Za-z0-9._~-]{43,128}", re.ASCII)
_STATE_PATTERN = re.compile(r"[\x20-\x7e]*", re.ASCII)


def can_serve_oauth(base_url: str) -> bool:
    """Return whether an address may carry tokens: https, or http on this machine."""
    parts = urlsplit(base_url)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")


def find_repeated(pairs: Iterable[tuple[str, str]]) -> set[str]:
    """Return the names of the parameters that are sent more than once."""
    return {name for name, count in Counter(name for name, _ in pairs).items() if count > 1}


def check_resource(requested: str | None, resource: str) -> None:
    """Raise OAuthError `invalid_target` if a request names another resource than ours.

    None is accepted: this server has only one resource, to which every token is bound.
    """
    if requested is not None and _normalize(requested) != _normalize(resource):
        raise OAuthError("invalid_target", f"resource: this server's only resource is {resource}")


def _normalize(address: str) -> tuple[str, str | None, int | None, str]:
    """Return the parts of an address that count, so that equal ones compare equal."""
    try:
        parts = urlsplit(address)
        port = parts.port or {"https": 443, "http": 80}.get(parts.scheme)
        rest = f"{parts.path.removesuffix('/')}?{parts.query}#{parts.fragment}"
        return parts.scheme, parts.hostname, port, rest if parts.username is None else address
    except ValueError:
        return "", None, None, address


def check_challenge(parameters: Mapping[str, str]) -> str:
    """Return the PKCE challenge of an authorization request; OAuthError without a valid one."""
    if parameters.get("code_challenge_method") != "S256":
        raise OAuthError("invalid_request", "code_challenge_method: must be S256 (PKCE)")
    challenge = parameters.get("code_challenge", "")
    if not _CHALLENGE_PATTERN.fullmatch(challenge):
        raise OAuthError(
            "invalid_request",
            "code_challenge: must be the SHA-256 of the verifier in base64url, 43 characters",
        )
    return challenge


def check_state(state: str | None) -> str | None:
    """Return the state of an authorization request; OAuthError if it is too long or not ASCII."""
    if state is None or (len(state) <= MAX_STATE_CHARS and _STATE_PATTERN.fullmatch(state)):
        return state
    raise OAuthError(
        "invalid_request",
        f"state: must be at most {MAX_STATE_CHARS} printable ASCII characters",
    )


def matches_challenge(verifier: str, challenge: str) -> bool:
    """Return whether a PKCE verifier is the one that a challenge was made of."""
    if not _VERIFIER_PATTERN.fullmatch(verifier):
        return False
    digest = urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=")
    return compare_digest(digest, challenge.encode())
