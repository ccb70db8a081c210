"""What OAuth requests and clients may send: parameters, PKCE, metadata and redirect URIs.

Sources: RFC 6749, 7009, 7591, 7636, 8252 and 8707.
"""

import re
import unicodedata
from base64 import urlsafe_b64encode
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from secrets import compare_digest
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

from store.addresses import is_loopback

SCOPE = "read"
RESOURCE_PATH = "/mcp"
# Longer values are refused, because requests are stored. Hosts put signed JSON of some KB into it.
MAX_STATE_CHARS = 8192


def can_serve_oauth(base_url: str) -> bool:
    """Return whether an address may carry tokens: https, or http on this machine."""
    parts = urlsplit(base_url)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")


def find_repeated(pairs: Iterable[tuple[str, str]]) -> set[str]:
    """Return the names of the parameters that are sent more than once."""
    return {name for name, count in Counter(name for name, _ in pairs).items() if count > 1}


def check_resource(requested: str | None, resource: str) -> None:
    """Raise OAuthError `invalid_target` if a request names another resource than ours.

    None is accepted, and so is the address of the server, which some hosts name instead: this
    server has only one resource, to which every token is bound.
    """
    accepted = map(_normalize, (resource, resource.removesuffix(RESOURCE_PATH)))
    if requested is not None and _normalize(requested) not in accepted:
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


def check_state(state: str | None) -> str | None:
    """Return the state of an authorization request; OAuthError if it is too long or not ASCII."""
    if state is None or (len(state) <= MAX_STATE_CHARS and re.fullmatch(r"[\x20-\x7e]*", state)):
        return state
    raise OAuthError(
        "invalid_request",
        f"state: must be at most {MAX_STATE_CHARS} printable ASCII characters",
    )


def matches_challenge(verifier: str, challenge: str) -> bool:
    """Return whether a PKCE verifier is the one that a challenge was made of."""
    if not re.fullmatch(r"[A-Za-z0-9._~-]{43,128}", verifier):
        return False
    digest = urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=")
    return compare_digest(digest, challenge.encode())


OAuthErrorCode = Literal[
    "invalid_client",
    "invalid_client_metadata",
    "invalid_grant",
    "invalid_redirect_uri",
    "invalid_request",
    "invalid_target",
    "unsupported_grant_type",
    "unsupported_response_type",
]


class OAuthError(Exception):
    """A refused OAuth request; `message` says what to do next and contains no secret."""

    def __init__(self, error: OAuthErrorCode, message: str) -> None:
        super().__init__(message)
        self.error = error
        self.message = message

    @property
    def status(self) -> int:
        """The HTTP status at the token endpoint; 401 makes hosts register again."""
        return 401 if self.error == "invalid_client" else 400


class OAuthClientError(OAuthError):
    """A client that cannot be used, or a registration that is refused.

    `error` is the code of RFC 6749 or RFC 7591. The message says what is accepted or what to do
    next, in the characters that `error_description` allows, and repeats no text of the client.
    """


class UnreachableDocumentError(OAuthClientError):
    """A metadata document that could not be fetched, about which the operator may know more."""


MAX_REDIRECT_URIS = 10
MAX_NAME_CHARS = 80


@dataclass(frozen=True, slots=True)
class ClientMetadata:
    """The metadata that the service uses; all other fields are ignored.

    `name` is cleaned, but unverified. `auth_methods` are those that the client offers to use at the
    token endpoint; it is empty if the client does not say.
    """

    name: str
    redirect_uris: tuple[str, ...]
    auth_methods: frozenset[str]


def parse_client_metadata(data: object) -> ClientMetadata:
    """Return the metadata in a decoded JSON document; raise OAuthClientError if it is refused."""
    # The model of the MCP SDK is not used, because it rewrites the redirect URIs that it parses.
    if not isinstance(data, dict):
        raise _metadata_error("the client metadata must be a JSON object")
    for field, needed in (("grant_types", "authorization_code"), ("response_types", "code")):
        if (offered := _read_texts(data, field)) and needed not in offered:
            raise _metadata_error(f"{field} must include {needed}, the only one that is supported")
    uris = _read_texts(data, "redirect_uris")
    is_count_valid = 1 <= len(uris) <= MAX_REDIRECT_URIS
    bad = [
        number for number, uri in enumerate(uris, 1) if is_count_valid and not is_redirect_uri(uri)
    ]
    if not is_count_valid or bad:
        problem = f"redirect_uris must list 1 to {MAX_REDIRECT_URIS} addresses"
        if bad:
            problem = f"Entry {bad[0]} of redirect_uris is not accepted"
        raise OAuthClientError(
            "invalid_redirect_uri", f"{problem}. Accepted is {ACCEPTED_REDIRECTS}."
        )
    methods = _read_texts(data, "token_endpoint_auth_methods_supported")
    method = _read_text(data, "token_endpoint_auth_method")
    return ClientMetadata(
        name=clean_name(_read_text(data, "client_name") or ""),
        redirect_uris=tuple(dict.fromkeys(uris)),
        auth_methods=frozenset(methods if method is None else (*methods, method)),
    )


def clean_name(text: str) -> str:
    """Return a client's name on one line, without characters that hide or reorder others."""
    # Cut first: the work must not grow with the length. The categories that isprintable rejects
    # include control characters, line ends, and the marks that reverse the direction of text.
    characters = unicodedata.normalize("NFC", text[: MAX_NAME_CHARS * 4])
    words = "".join(each if each.isprintable() else " " for each in characters).split()
    return " ".join(words)[:MAX_NAME_CHARS].rstrip() or "Unnamed program"


def _read_text(data: Mapping[str, Any], field: str) -> str | None:
    # Clients also send null or an empty text for a field that they leave out.
    value = data.get(field) or None
    if value is None or isinstance(value, str):
        return value
    raise _metadata_error(f"{field} must be a text")


def _read_texts(data: Mapping[str, Any], field: str) -> tuple[str, ...]:
    value = data.get(field)
    if value is None:
        return ()
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return tuple(value)
    raise _metadata_error(f"{field} must be a list of texts")


def _metadata_error(problem: str) -> OAuthClientError:
    return OAuthClientError("invalid_client_metadata", f"Send other client metadata: {problem}.")


MAX_REDIRECT_URI_CHARS = 512
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})
ACCEPTED_REDIRECTS = (
    "an https address, http on 127.0.0.1, [::1] or localhost, or an address with the private "
    "scheme of an app, such as com.example.app:/callback; at most "
    f"{MAX_REDIRECT_URI_CHARS} ASCII characters, without user name, without fragment, and without "
    "code, state, iss or error in its query"
)
# Without spaces, quotes, backslashes and angle brackets, so that this process and every browser
# read the same host. Clients send other characters percent-encoded.
_URI_PATTERN = re.compile(r"([a-z][a-z0-9+.-]+):[!$%&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~]+", re.I)
_AUTHORITY_PATTERN = re.compile(r"([a-z0-9.-]+|\[[0-9a-f:.]+\])(:[0-9]{1,5})?", re.I)
_LOOPBACK_PATTERN = re.compile(
    r"\A(http://(?:127\.0\.0\.1|\[::1\]|localhost))(:[0-9]+)?(?:/|(?=\?)|\Z)"
)
# An app owns the private scheme that is its domain name in reverse, with a dot (RFC 8252, section
# 7.1). Others belong to browsers, office programs or the system, which run, show or send the rest.
_APP_SCHEME_PATTERN = re.compile(r"[a-z][a-z0-9-]*(?:\.[a-z0-9-]+)+", re.I)
# Hosts whose schemes have no dot, and only what they use for callbacks: other addresses of theirs
# open files or install servers, such as vscode://file/ and cursor://anysphere.cursor-deeplink/.
_HOST_PATTERN = re.compile(
    r"(?:cursor://anysphere\.cursor-mcp|(?:vscode|vscode-insiders|windsurf)://[a-z0-9-]+\.[a-z0-9-]+)/",
    re.I,
)
# What this server adds to the address. A client could take a second one for the server's.
_ANSWER_FIELDS = frozenset({"code", "error", "error_description", "iss", "state"})


def is_redirect_uri(uri: str) -> bool:
    """Return whether a client may register an address; see ACCEPTED_REDIRECTS."""
    matched = _URI_PATTERN.fullmatch(uri)
    if matched is None or len(uri) > MAX_REDIRECT_URI_CHARS:
        return False
    fields = {name for name, _ in parse_qsl(uri.partition("?")[2], keep_blank_values=True)}
    if fields & _ANSWER_FIELDS:
        return False
    scheme = matched[1].lower()
    if scheme not in ("http", "https"):
        is_app = _APP_SCHEME_PATTERN.fullmatch(scheme) or _HOST_PATTERN.match(uri)
        return is_app is not None and "@" not in _get_authority(uri)
    authority = _AUTHORITY_PATTERN.fullmatch(_get_authority(uri))
    if authority is None:
        return False
    try:
        parts = urlsplit(uri)
        is_port_valid = parts.port is None or parts.port > 0
    except ValueError:
        return False
    return is_port_valid and (scheme == "https" or parts.hostname in LOOPBACK_HOSTS)


def matches_redirect_uri(registered: str, requested: str) -> bool:
    """Compare two addresses exactly, except for the port of a loopback address and its empty path.

    A program on the user's computer takes any free port (RFC 8252, section 7.3). The path and the
    host have to be the same: a program that registers localhost does not get 127.0.0.1.
    """
    # A registration of an earlier version may be one that is no longer accepted.
    if not is_redirect_uri(requested):
        return False
    if registered == requested:
        return True
    without_port = _LOOPBACK_PATTERN.sub(r"\1/", registered)
    return (
        _LOOPBACK_PATTERN.match(registered) is not None
        and _LOOPBACK_PATTERN.sub(r"\1/", requested) == without_port
    )


def complete_path(uri: str) -> str:
    """Return an address with the path `/` if it is a loopback one without a path."""
    return _LOOPBACK_PATTERN.sub(r"\1\2/", uri)


def is_loopback_redirect(uri: str) -> bool:
    """Return whether an address leads to a server on the user's own computer."""
    return _LOOPBACK_PATTERN.match(uri) is not None


def _get_authority(uri: str) -> str:
    """Return the part between `//` and the path, as browsers read it."""
    rest = uri.partition(":")[2]
    return re.split(r"[/?]", rest[2:], maxsplit=1)[0] if rest.startswith("//") else ""
