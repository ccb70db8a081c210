"""Keeps foreign hosts and origins out of both faces (the defence against DNS rebinding), and
requests that a proxy before the service may have read as two.
"""

import re
from collections.abc import Awaitable, Iterable
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from schemas.errors import ApiError
from serving.arguments import shown
from serving.http import (
    CLOSE,
    JSON_TYPE,
    KEPT_VALUES,
    Fields,
    fields,
    refused,
    respond,
    values,
)
from serving.tool_runner import error_text

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[^:/@\[\]\s?#]+)(?::[0-9]{0,5})?")


def host_name(authority: str) -> str | None:
    """Return the lower-case host of `host[:port]`, None where it is not one."""
    match = AUTHORITY.fullmatch(authority.lower())
    return match.group(1) if match else None


class Gate:
    """ASGI middleware: Host must be ours (421), Origin absent or ours (403), a body's length sent
    in one way (400, and the connection is closed).
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        base_url: str,
        docs: str,
        allowed_hosts: Iterable[str] = (),
        allowed_origins: Iterable[str] = (),
    ) -> None:
        self._app = app
        self._docs = docs
        named = {host_name(host) for host in (urlsplit(base_url).netloc, *allowed_hosts)}
        self._hosts = LOCAL_HOSTS | {host for host in named if host}
        self._serves = lru_cache(KEPT_VALUES)(self._is_served)
        self._origins = {origin.lower().rstrip("/") for origin in allowed_origins}

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Pass on what is ours and refuse the rest."""
        error = self._refusal(scope) if scope["type"] == "http" else None
        if error is None:
            return self._app(scope, receive, send)
        headers = [JSON_TYPE, CLOSE] if error.status == 400 else [JSON_TYPE]
        return respond(scope, send, error.status, headers, error_text(error, self._docs))

    def _refusal(self, scope: Scope) -> ApiError | None:
        given = fields(scope)
        if (error := _misframed(scope, given)) is not None:
            return error
        host = given.get(b"host", b"")
        if not self._serves(host):
            named = shown(host.decode("latin-1"))
            return refused(421, f"Host {named} is not served here; the operator can allow it.")
        for origin in values(scope, b"origin") if b"origin" in given else ():
            if not self._is_ours(origin.decode("latin-1")):
                named = shown(origin.decode("latin-1"))
                return refused(403, f"Origin {named} is foreign; the operator can allow it.")
        return None

    def _is_served(self, host: bytes) -> bool:
        return host_name(host.decode("latin-1")) in self._hosts

    def _is_ours(self, origin: str) -> bool:
        if origin.lower() in self._origins:
            return True
        scheme, separator, authority = origin.partition("://")
        is_web = bool(separator) and scheme.lower() in {"http", "https"}
        return is_web and host_name(authority) in self._hosts


def _misframed(scope: Scope, given: Fields) -> ApiError | None:
    """Return why a proxy may have read a request otherwise than the parser did, None where not."""
    coding = given.get(b"transfer-encoding", b"chunked").lower()
    if coding != b"chunked":
        named = shown(coding.decode("latin-1"))
        return refused(400, f"Transfer-Encoding {named} is refused; send chunked, or a length.")
    if b"transfer-encoding" in given and b"content-length" in given:
        return refused(400, "Content-Length and Transfer-Encoding are both sent; send one of them.")
    version = scope["http_version"]
    if version not in ("1.0", "1.1"):
        return refused(400, f"HTTP/{version} is refused; send HTTP/1.1.")
    is_plain = len(given) == len(scope["headers"]) and b"host" in given
    if version == "1.1" and not is_plain and len(values(scope, b"host")) != 1:
        return refused(400, "A request names one Host; send exactly one such header.")
    return None
