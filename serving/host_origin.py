"""Refuses foreign hosts and origins, long heads and ambiguous framing; allows CORS to the others.

The host check defends against DNS rebinding, the framing check against request smuggling: a proxy
in front of the service might read such a request as two.
"""

import re
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from schemas.errors import ApiError
from schemas.operator import UNNAMED_OPERATOR, Operator
from serving.arguments import quote_value
from serving.cors import (
    ANY_ORIGIN_HEADERS,
    EXPOSE_HEADER,
    PREFLIGHT_HEADERS,
    VARY_ORIGIN,
    add_headers,
    parse_allowed_origins,
    parse_origin,
)
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


class HostOriginMiddleware:
    """ASGI middleware that refuses foreign hosts and origins, long heads and ambiguous framing.

    A foreign Host gets 421, a foreign Origin 403, a part of the head that is too long 414 or 431,
    before anything else reads it. Ambiguous framing gets 400, and the connection
    is closed. `allowed_origins` get CORS for the API, all origins for what is public. The other
    ports of our own hosts pass, but without CORS: they need not be ours.
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
        self._is_allowed_host = lru_cache(MAX_CACHED_VALUES)(self._check_host)
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
        foreign_origin = self._find_foreign_origin(scope, headers) if b"origin" in headers else None
        cors = self._build_cors_headers(scope, headers) if foreign_origin is None else []
        if cors:
            send = add_headers(send, cors)
        is_preflight = scope["method"] == "OPTIONS" and b"origin" in headers
        if is_preflight and not cors:
            # No route answers it: the browser would show the page an error that names no cause.
            foreign_origin = headers[b"origin"]
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

    def _find_foreign_origin(self, scope: Scope, headers: HeaderMap) -> bytes | None:
        """Return the first origin that may not call this path, None if there is none."""
        if self._is_open(scope):
            return None
        for origin in list_header_values(scope, b"origin"):
            if not self._is_allowed_origin(origin, headers.get(b"host", b"")):
                return origin
        return None

    def _is_open(self, scope: Scope) -> bool:
        """Return whether any origin may read the response."""
        is_read = scope["method"] in ("GET", "HEAD", "OPTIONS")
        is_open_read = is_read and scope["path"] in self._open_reads
        return is_open_read or scope["path"].startswith(self._any_origin_paths)

    def _build_cors_headers(self, scope: Scope, headers: HeaderMap) -> HeaderList:
        """Return the headers with which the origin of a request may read its response."""
        if self._is_open(scope):
            return ANY_ORIGIN_HEADERS
        if not scope["path"].startswith(self._cors_paths):
            return []
        origin = headers.get(b"origin")
        if origin is not None and self._is_listed_origin(origin):
            return [(b"access-control-allow-origin", origin), EXPOSE_HEADER, VARY_ORIGIN]
        # A cache must not give a page of a listed origin the response to another request. It never
        # stores a POST.
        is_cacheable = self._allowed_origins and scope["method"] in ("GET", "HEAD")
        return [VARY_ORIGIN] if is_cacheable else []

    def _check_host(self, host: bytes) -> bool:
        return parse_host(host.decode("latin-1")) in self._allowed_hosts

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
