"""Keeps foreign hosts and origins out of both faces (the defence against DNS rebinding), and
requests that a proxy before the service may have read as two.
"""

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_server.arguments import shown
from mcp_server.calls import error_text
from mcp_server.transport import refused
from schemas.errors import ApiError

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
        self._origins = {origin.lower().rstrip("/") for origin in allowed_origins}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on what is ours and refuse the rest."""
        error = self._refusal(Headers(scope=scope)) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
            return
        body = error_text(error, self._docs)
        close = {"Connection": "close"} if error.status == 400 else None
        response = Response(body, error.status, close, media_type="application/json")
        await response(scope, receive, send)

    def _refusal(self, headers: Headers) -> ApiError | None:
        if "content-length" in headers and "transfer-encoding" in headers:
            return refused(
                400, "Content-Length and Transfer-Encoding are both sent; send one of them."
            )
        hosts = headers.getlist("host")
        if len(hosts) != 1 or host_name(hosts[0]) not in self._hosts:
            given = shown(", ".join(hosts))
            return refused(421, f"Host {given} is not served here; the operator can allow it.")
        for origin in headers.getlist("origin"):
            if not self._is_ours(origin):
                return refused(
                    403, f"Origin {shown(origin)} is foreign; the operator can allow it."
                )
        return None

    def _is_ours(self, origin: str) -> bool:
        if origin.lower() in self._origins:
            return True
        scheme, separator, authority = origin.partition("://")
        is_web = bool(separator) and scheme.lower() in {"http", "https"}
        return is_web and host_name(authority) in self._hosts
