"""CORS: the headers that let pages of other origins call the API and read its responses.

Always without credentials, so no such page reads what a visitor's cookies give access to.
"""

import re
from collections.abc import Iterable
from ipaddress import IPv6Address

from starlette.types import Message, Send

from serving.http import HeaderList
from store.addresses import is_loopback

# Browsers call an API only with the headers listed here, and show a page only the response headers
# that EXPOSED_HEADERS lists.
REQUEST_HEADERS = (
    "Authorization, X-Api-Key, Content-Type, Accept, MCP-Protocol-Version, Mcp-Method, Mcp-Name, "
    "Mcp-Session-Id, Last-Event-ID, If-None-Match, X-Request-Id"
)
EXPOSED_HEADERS = (
    "X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, Retry-After, ETag, "
    "WWW-Authenticate, Allow, MCP-Protocol-Version, Mcp-Session-Id, X-Request-Id"
)
# DELETE, because MCP clients end a session with it. They can only handle the 405 if the browser
# lets them send the request.
METHODS = "GET, HEAD, POST, DELETE"
# Two hours, the longest time that Chromium remembers a preflight.
MAX_AGE_S = 7200
VARY_ORIGIN = (b"vary", b"Origin")
EXPOSE_HEADER = (b"access-control-expose-headers", EXPOSED_HEADERS.encode())
# The same for every request, also without an Origin, so a cache can serve it to any page.
ANY_ORIGIN_HEADERS: HeaderList = [(b"access-control-allow-origin", b"*"), EXPOSE_HEADER]
PREFLIGHT_HEADERS: HeaderList = [
    (b"access-control-allow-methods", METHODS.encode()),
    (b"access-control-allow-headers", REQUEST_HEADERS.encode()),
    (b"access-control-max-age", b"%d" % MAX_AGE_S),
]

# Pages of files, sandboxed frames and `data:` URLs have the origin `null`, so `file` names none.
ORIGIN_PATTERN = re.compile(
    r"(?!file:)(?P<scheme>[a-z][a-z0-9+.-]*)://"
    r"(?P<host>\[(?P<v6>[0-9a-f:.]+)\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*\.?)(?::(?P<port>[0-9]{1,5}))?",
    re.ASCII,
)
DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_PORT = 65535


def parse_origin(text: str) -> str | None:
    """Return an origin as browsers send it, or None if malformed.

    That is lower case, without the default port of its scheme.
    """
    match = ORIGIN_PATTERN.fullmatch(text.lower())
    if match is None:
        return None
    scheme, host, port = match["scheme"], match["host"], int(match["port"] or 0)
    if match["v6"] is not None:
        try:
            host = f"[{IPv6Address(match['v6'])}]"
        except ValueError:
            return None
    if port > MAX_PORT or (match["port"] is not None and port == 0):
        return None
    is_default = port in (0, DEFAULT_PORTS.get(scheme))
    return f"{scheme}://{host}" if is_default else f"{scheme}://{host}:{port}"


def parse_allowed_origins(texts: Iterable[str]) -> frozenset[str]:
    """Parse the origins of a setting; ValueError quotes the first invalid one."""
    origins = set[str]()
    for text in texts:
        # People copy an origin with a slash from the address bar.
        origin = parse_origin(text.removesuffix("/"))
        if origin is None:
            # What precedes an @ may be a password.
            raise ValueError(
                f"{text.rpartition('@')[2]!r} is not an origin; expected scheme and host, such as "
                "https://app.example.com, with the port if it is not the scheme's default, such as "
                "http://localhost:5173, and without path and wildcards; null cannot be allowed"
                f"{_suggest_origin(text)}"
            )
        origins.add(origin)
    return frozenset(origins)


def _suggest_origin(text: str) -> str:
    """Return the hint that names the origin within an address or host name, empty if none."""
    scheme, separator, rest = text.rpartition("://")
    host_port = re.split("[/?#]", rest)[0].rpartition("@")[2]
    is_local = is_loopback(host_port.partition(":")[0])
    # A single word, such as null, names no host.
    if not separator and not is_local and "." not in host_port:
        return ""
    origin = parse_origin(f"{scheme or ('http' if is_local else 'https')}://{host_port}")
    return "" if origin is None else f"; did you mean {origin}?"


def add_headers(send: Send, headers: HeaderList) -> Send:
    """Return a `send` that adds headers to the response."""

    async def send_with_headers(event: Message) -> None:
        if event["type"] == "http.response.start":
            event["headers"] = [*event.get("headers", ()), *headers]
        await send(event)

    return send_with_headers
