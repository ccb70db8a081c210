"""Which redirect URIs a client may register, and which one a request may use (RFC 8252, 9700)."""

import re
from urllib.parse import SplitResult, urlsplit

MAX_REDIRECT_URIS = 20
MAX_REDIRECT_URI_CHARS = 512
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "::1", "localhost"})
# A scheme that a browser handles itself would run or show what an attacker wrote.
BROWSER_SCHEMES = frozenset(
    """about blob chrome data ext feed file filesystem ftp ftps intent javascript jar mailto
    ms-appdata res resource sms tel urn vbscript view-source ws wss""".split()
)
ACCEPTED = (
    "accepted: an https address, http on 127.0.0.1, [::1] or localhost, or a private scheme such "
    "as com.example.app:/callback, without user name or fragment"
)


def check_redirect_uri(uri: str) -> None:
    """Raise ValueError, naming what is accepted, if no client may register the address."""
    if not is_redirect_uri(uri):
        raise ValueError(
            f"a redirect URI of at most {MAX_REDIRECT_URI_CHARS} characters; {ACCEPTED}"
        )


def is_redirect_uri(uri: str) -> bool:
    """Return whether a client may register the address."""
    # ASCII without spaces, quotes and backslashes: the parsers of browsers and of this process
    # then agree about the host. A client sends other characters percent-encoded.
    if len(uri) > MAX_REDIRECT_URI_CHARS or not re.fullmatch(
        r"[!$%&'()*+,\-./:;=?@\[\]_~\w]+", uri, re.A
    ):
        return False
    try:
        parts = urlsplit(uri)
        host, port = parts.hostname, parts.port
    except ValueError:
        return False
    del port
    raise NotImplementedError


def is_loopback(uri: str) -> bool:
    """Return whether a redirect URI leads to a program on the user's own computer."""
    parts = urlsplit(uri)
    return parts.scheme == "http" and parts.hostname in LOOPBACK_HOSTS


def matches_redirect_uri(registered: str, requested: str) -> bool:
    """Compare exactly, except for the port of a loopback address (RFC 8252, section 7.3)."""
    if registered == requested:
        return True
    return is_loopback(registered) and _without_port(registered) == _without_port(requested)


def _without_port(uri: str) -> SplitResult:
    parts = urlsplit(uri)
    return parts._replace(netloc=re.sub(r":[0-9]*\Z", "", parts.netloc))
