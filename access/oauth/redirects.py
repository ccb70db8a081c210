"""Redirect URIs: which ones a client may register, and which ones a request may use (RFC 8252)."""

import re
from urllib.parse import parse_qsl, urlsplit

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
    r"\A(http://(?:127\.0\.0\.1|\[::1\]|localhost))(?::[0-9]+)?(?=[/?]|\Z)"
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
    """Compare two addresses exactly, except for the port of a loopback address.

    A program on the user's computer takes any free port (RFC 8252, section 7.3). The path and the
    host have to be the same: a program that registers localhost does not get 127.0.0.1.
    """
    # A registration of an earlier version may be one that is no longer accepted.
    if not is_redirect_uri(requested):
        return False
    if registered == requested:
        return True
    without_port = _LOOPBACK_PATTERN.sub(r"\1", registered)
    return (
        _LOOPBACK_PATTERN.match(registered) is not None
        and _LOOPBACK_PATTERN.sub(r"\1", requested) == without_port
    )


def is_loopback_redirect(uri: str) -> bool:
    """Return whether an address leads to a server on the user's own computer."""
    return _LOOPBACK_PATTERN.match(uri) is not None


def _get_authority(uri: str) -> str:
    """Return the part between `//` and the path, as browsers read it."""
    rest = uri.partition(":")[2]
    return re.split(r"[/?]", rest[2:], maxsplit=1)[0] if rest.startswith("//") else ""
