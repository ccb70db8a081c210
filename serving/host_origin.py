"""Refuses foreign hosts and origins, long heads and ambiguous framing; allows CORS to the others.

CORS lets pages of other origins call the API and read its responses, always without credentials,
so no such page reads what a visitor's cookies give access to.

The host check defends against DNS rebinding, the framing check against request smuggling: a proxy
in front of the service might read such a request as two.
"""

import re
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from schemas.errors import ApiError
from schemas.operator import UNNAMED_OPERATOR, Operator
from serving.arguments import quote_value
from serving.http import (
    CLOSE_CONNECTION,
    HEALTH_PATHS,
    JSON_TYPE,
    MAX_CACHED_VALUES,
    MAX_PATH_BYTES,
    HeaderList,
    HeaderMap,
    find_size_error,
    http_error,
    keep_error,
    list_header_values,
    read_headers,
    respond,
)
from serving.tool_runner import format_error_body
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

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
# This machine, as containers on it name it; no public name server has these names.
CONTAINER_HOSTS = frozenset({"host.docker.internal", "host.containers.internal"})
# The names that are reserved for this machine and for private networks.
PRIVATE_SUFFIXES = (".localhost", ".local", ".internal", ".home.arpa")
AUTHORITY_PATTERN = re.compile(r"(\[[0-9a-f:.]+\]|[^:/@\[\]\s?#]+)(?::[0-9]{0,5})?")


def parse_host(authority: str) -> str | None:
    """Return the lower-case host of `host[:port]` without a final dot, or None if malformed."""
    # `example.org.` is the absolute form of the same name.
    match = AUTHORITY_PATTERN.fullmatch(authority.lower())
    return match.group(1).removesuffix(".") if match else None


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


class HostOriginMiddleware:
    """ASGI middleware that refuses foreign hosts and origins, long heads and ambiguous framing.

    A foreign Host gets 421, a foreign Origin 403, a part of the head that is too long 414 or 431,
    before its route is found. Ambiguous framing gets 400, and the connection is closed.
    `allowed_origins` get CORS for the API, all origins for the public paths. The other ports of our
    own hosts pass, but without CORS: they need not be ours.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        base_url: str,
        docs: str,
        allowed_hosts: Iterable[str] = (),
        allowed_origins: Iterable[str] = (),
        checks_host: bool = True,
        allows_own_address: bool = False,
        api_paths: tuple[str, ...] = (),
        token_paths: tuple[str, ...] = (),
        public_paths: tuple[str, ...] = (),
        open_reads: Collection[str] = (),
        render_page: Callable[[Scope, ApiError], Response | None] = lambda scope, error: None,
        operator: Operator = UNNAMED_OPERATOR,
    ) -> None:
        """Allow local names, the host of `base_url` and the given ones; errors name the operator.

        If `allows_own_address`, also allow the IP address that the client connected to. Without
        `checks_host`, any Host is allowed, and any origin on it: the service listens for other
        machines, under names that it cannot know. The probes of health never need one.

        The paths are prefixes, except `open_reads`, whose GET any origin may read.
        `allowed_origins` get CORS below `api_paths` and `token_paths`, any origin below
        `public_paths`, and below `token_paths` if `base_url` is public. `render_page` returns the
        page of an error, None for a client that is no browser.
        ValueError names an origin that is malformed.
        """
        self._app = app
        self._checks_host = checks_host
        self._open_reads = frozenset(open_reads)
        self._allows_own_address = allows_own_address
        self._docs = docs
        self._operator = operator
        self._render_page = render_page
        names = {parse_host(host) for host in (urlsplit(base_url).netloc, *allowed_hosts)}
        self._allowed_hosts = LOCAL_HOSTS | CONTAINER_HOSTS | {host for host in names if host}
        # Nearly all requests send the same Host, so its check is cached.
        self._is_allowed_host = lru_cache(MAX_CACHED_VALUES)(
            lambda host: parse_host(host.decode("latin-1")) in self._allowed_hosts
        )
        self._allowed_origins = parse_allowed_origins(allowed_origins)
        self._cors_paths = api_paths + token_paths
        # A token protects its paths from foreign pages on the internet. On this machine or in a
        # private network, being able to connect is a privilege that such a page must not borrow.
        self._any_origin_paths = public_paths + (token_paths if is_public(base_url) else ())

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Pass an allowed request on, answer a preflight, or send the error."""
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        headers = read_headers(scope)
        if (too_long := find_size_error(scope, headers)) is not None:
            # Nothing has read the origin yet, and the refusal is about no resource.
            return self._refuse(scope, receive, add_headers(send, ANY_ORIGIN_HEADERS), too_long)
        method, path = scope["method"], scope["path"]
        # Whether any origin may read the response.
        is_open = path.startswith(self._any_origin_paths) or (
            path in self._open_reads and method in ("GET", "HEAD", "OPTIONS")
        )
        cors: HeaderList = ANY_ORIGIN_HEADERS if is_open else []
        origin = headers.get(b"origin")
        foreign_origin: bytes | None = None
        if origin is not None and not is_open:
            host, origins = headers.get(b"host", b""), list_header_values(scope, b"origin")
            foreign = (one for one in origins if not self._is_allowed_origin(one, host))
            # The first one that may not call this path.
            foreign_origin = next(foreign, None)
        if not is_open and foreign_origin is None and path.startswith(self._cors_paths):
            if origin is not None and self._is_listed_origin(origin):
                cors = [(b"access-control-allow-origin", origin), EXPOSE_HEADER, VARY_ORIGIN]
            # A cache must not give a page of a listed origin the response to another request. It
            # never stores a POST.
            elif self._allowed_origins and method in ("GET", "HEAD"):
                cors = [VARY_ORIGIN]
        if cors:
            send = add_headers(send, cors)
        is_preflight = method == "OPTIONS" and origin is not None
        if is_preflight and not cors:
            # No route answers it: the browser would show the page an error that names no cause.
            foreign_origin = origin
        error = self._find_error(scope, headers, foreign_origin)
        if error is not None:
            return self._refuse(scope, receive, send, error)
        if is_preflight:
            return respond(scope, send, 204, [*PREFLIGHT_HEADERS])
        return self._app(scope, receive, send)

    def _refuse(
        self, scope: Scope, receive: Receive, send: Send, error: ApiError
    ) -> Awaitable[None]:
        keep_error(scope, error)
        # The relative links of a page grow with its path.
        is_plain = error.status == 400 or len(scope["raw_path"]) > MAX_PATH_BYTES
        page = None if is_plain else self._render_page(scope, error)
        if page is not None:
            return page(scope, receive, send)
        # After ambiguous framing, the next bytes on the connection may not be a new request.
        headers = [JSON_TYPE, CLOSE_CONNECTION] if error.status == 400 else [JSON_TYPE]
        body = format_error_body(error, self._docs, operator=self._operator)
        return respond(scope, send, error.status, headers, body)

    def _find_error(
        self, scope: Scope, headers: HeaderMap, foreign_origin: bytes | None
    ) -> ApiError | None:
        # A proxy may frame such a request differently from our parser.
        coding = headers.get(b"transfer-encoding", b"chunked").lower()
        if coding != b"chunked":
            quoted = quote_value(coding.decode("latin-1"))
            return http_error(
                400,
                f"Transfer-Encoding {quoted} is not accepted; send chunked or a Content-Length.",
            )
        if b"transfer-encoding" in headers and b"content-length" in headers:
            return http_error(
                400, "Content-Length and Transfer-Encoding are both sent; send one of them."
            )
        version = scope["http_version"]
        if version not in ("1.0", "1.1"):
            return http_error(400, f"HTTP/{version} is not accepted; send HTTP/1.1.")
        # If merging equal names dropped no header, there is at most one Host; only else count them.
        is_plain = len(headers) == len(scope["headers"]) and b"host" in headers
        if version == "1.1" and not is_plain and len(list_header_values(scope, b"host")) != 1:
            return http_error(400, "The request must have one Host header; send exactly one.")
        host = headers.get(b"host", b"")
        if not (
            self._is_allowed_host(host)
            or not self._checks_host
            or scope["path"] in HEALTH_PATHS
            or self._is_own_address(scope, host)
        ):
            quoted = quote_value(host.decode("latin-1"))
            return http_error(
                421,
                f"Host {quoted} is not allowed; the operator can set SIGNALS_BASE_URL to the "
                "address that clients use, for example http://signals.example:8000, or add a name "
                "to SIGNALS_ALLOWED_HOSTS, for example signals.example.",
                names_operator=True,
            )
        if foreign_origin is not None:
            quoted = quote_value(foreign_origin.decode("latin-1"))
            return http_error(
                403,
                f"Origin {quoted} is not allowed; the operator can add it to "
                "SIGNALS_ALLOWED_ORIGINS, for example https://app.example.",
                names_operator=True,
            )
        return None

    def _is_own_address(self, scope: Scope, host: bytes) -> bool:
        # A page of another site reaches this port under a name, never under its bare address.
        if not self._allows_own_address or scope["server"] is None:
            return False
        address = scope["server"][0].removeprefix("::ffff:")
        own = f"[{address}]" if ":" in address else address
        return parse_host(host.decode("latin-1")) == own

    def _is_listed_origin(self, origin: bytes) -> bool:
        return parse_origin(origin.decode("latin-1")) in self._allowed_origins

    def _is_allowed_origin(self, origin: bytes, requested_host: bytes) -> bool:
        if self._is_listed_origin(origin):
            return True
        scheme, separator, authority = origin.decode("latin-1").partition("://")
        is_web = bool(separator) and scheme.lower() in {"http", "https"}
        host = parse_host(authority)
        is_own = not self._checks_host and host == parse_host(requested_host.decode("latin-1"))
        return is_web and host is not None and (is_own or host in self._allowed_hosts)


def is_public(base_url: str) -> bool:
    """Return whether an address is https and, by its host, can be reached from the internet."""
    parts = urlsplit(base_url)
    host = (parts.hostname or "").removesuffix(".")
    try:
        is_reachable = ip_address(host).is_global
    except ValueError:
        is_reachable = host not in LOCAL_HOSTS and not host.endswith(PRIVATE_SUFFIXES)
    return parts.scheme == "https" and is_reachable
