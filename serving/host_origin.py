"""Refuses foreign hosts and origins, and ambiguously framed requests.

The host check defends against DNS rebinding, the framing check against request smuggling: a proxy
in front of the service might read such a request as two.
"""

import re
from collections.abc import Awaitable, Iterable
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from schemas.errors import ApiError
from schemas.operator import UNNAMED_OPERATOR, Operator
from serving.arguments import quote_value
from serving.http import (
    CLOSE_CONNECTION,
    ERROR_KEY,
    JSON_TYPE,
    MAX_CACHED_VALUES,
    HeaderMap,
    http_error,
    list_header_values,
    read_headers,
    respond,
)
from serving.tool_runner import format_error_body

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
AUTHORITY_PATTERN = re.compile(r"(\[[0-9a-f:.]+\]|[^:/@\[\]\s?#]+)(?::[0-9]{0,5})?")


def parse_host(authority: str) -> str | None:
    """Return the lower-case host of `host[:port]` without a final dot, or None if malformed."""
    # `example.org.` is the absolute form of the same name.
    match = AUTHORITY_PATTERN.fullmatch(authority.lower())
    return match.group(1).removesuffix(".") if match else None


class HostOriginMiddleware:
    """ASGI middleware that refuses foreign hosts and origins, and ambiguously framed requests.

    A foreign Host gets 421, a foreign Origin 403. Ambiguous framing gets 400, and the connection
    is closed.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        base_url: str,
        docs: str,
        allowed_hosts: Iterable[str] = (),
        allowed_origins: Iterable[str] = (),
        allows_own_address: bool = False,
        operator: Operator = UNNAMED_OPERATOR,
    ) -> None:
        """Allow local names, the host of `base_url` and the given ones; errors name the operator.

        If `allows_own_address`, also allow the IP address that the client connected to.
        """
        self._app = app
        self._allows_own_address = allows_own_address
        self._docs = docs
        self._operator = operator
        names = {parse_host(host) for host in (urlsplit(base_url).netloc, *allowed_hosts)}
        self._allowed_hosts = LOCAL_HOSTS | {host for host in names if host}
        # Nearly all requests send the same Host, so its check is cached.
        self._is_allowed_host = lru_cache(MAX_CACHED_VALUES)(self._check_host)
        self._allowed_origins = {origin.lower().rstrip("/") for origin in allowed_origins}

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Pass an allowed request on, or send the error."""
        error = self._find_error(scope) if scope["type"] == "http" else None
        if error is None:
            return self._app(scope, receive, send)
        scope[ERROR_KEY] = error
        # After ambiguous framing, the next bytes on the connection may not be a new request.
        headers = [JSON_TYPE, CLOSE_CONNECTION] if error.status == 400 else [JSON_TYPE]
        body = format_error_body(error, self._docs, operator=self._operator)
        return respond(scope, send, error.status, headers, body)

    def _find_error(self, scope: Scope) -> ApiError | None:
        headers = read_headers(scope)
        if (error := _find_framing_error(scope, headers)) is not None:
            return error
        host = headers.get(b"host", b"")
        if not self._is_allowed_host(host) and not self._is_own_address(scope, host):
            quoted = quote_value(host.decode("latin-1"))
            return http_error(
                421,
                f"Host {quoted} is not allowed; the operator can set SIGNALS_BASE_URL to the "
                "address that clients use, for example http://signals.example:8000, or add a name "
                "to SIGNALS_ALLOWED_HOSTS, for example signals.example.",
                names_operator=True,
            )
        for origin in list_header_values(scope, b"origin") if b"origin" in headers else ():
            if not self._is_allowed_origin(origin.decode("latin-1")):
                quoted = quote_value(origin.decode("latin-1"))
                return http_error(
                    403,
                    f"Origin {quoted} is not allowed; the operator can add it to "
                    "SIGNALS_ALLOWED_ORIGINS, for example https://app.example.",
                    names_operator=True,
                )
        return None

    def _check_host(self, host: bytes) -> bool:
        return parse_host(host.decode("latin-1")) in self._allowed_hosts

    def _is_own_address(self, scope: Scope, host: bytes) -> bool:
        # A page of another site reaches this port under a name, never under its bare address.
        if not self._allows_own_address or scope["server"] is None:
            return False
        address = scope["server"][0].removeprefix("::ffff:")
        own = f"[{address}]" if ":" in address else address
        return parse_host(host.decode("latin-1")) == own

    def _is_allowed_origin(self, origin: str) -> bool:
        if origin.lower() in self._allowed_origins:
            return True
        scheme, separator, authority = origin.partition("://")
        is_web = bool(separator) and scheme.lower() in {"http", "https"}
        return is_web and parse_host(authority) in self._allowed_hosts


def _find_framing_error(scope: Scope, headers: HeaderMap) -> ApiError | None:
    """Return an error if a proxy may frame the request differently from our parser, else None."""
    coding = headers.get(b"transfer-encoding", b"chunked").lower()
    if coding != b"chunked":
        quoted = quote_value(coding.decode("latin-1"))
        return http_error(
            400, f"Transfer-Encoding {quoted} is not accepted; send chunked or a Content-Length."
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
    return None
