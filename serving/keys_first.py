"""Lets requests of live keys pass at once, and starts all others one after another."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable
from hashlib import sha256

from starlette.types import ASGIApp, Receive, Scope, Send

from access.throttle import find_client
from serving.fair_share import FairShare
from serving.host_origin import HEALTH_PATHS
from serving.http import IS_KEY_LIVE, ON_DISCONNECT_KEY, HeaderMap, read_headers

MAX_LIVE_KEYS = 10_000


class KeysFirstMiddleware:
    """ASGI middleware: a request waits for its turn to start, unless a call has shown its key live.

    Networks take turns, and so does each health check, as if it came from a network of its own.
    """

    def __init__(self, app: ASGIApp, fair_share: FairShare) -> None:
        self._app = app
        self._fair_share = fair_share
        # The hashes of headers with a live key, the last used last.
        self._live_keys: OrderedDict[bytes, None] = OrderedDict()

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Pass the request on, now or when it is its turn."""
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        key = _hash_key_headers(read_headers(scope))
        if key in self._live_keys:
            self._live_keys.move_to_end(key)
            self._fair_share.favour()
            return self._app(scope, receive, send)
        return self._start_in_turn(key, scope, receive, send)

    async def _start_in_turn(self, key: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        if (waiting := asyncio.current_task()) is not None:
            scope[ON_DISCONNECT_KEY] = waiting.cancel
        caller = find_client((scope.get("client") or ("", 0))[0])
        if scope["path"] in HEALTH_PATHS:
            caller = scope["path"]
            self._fair_share.favour()
        try:
            await self._fair_share.start_stranger(caller)
        except asyncio.CancelledError:
            return
        scope[ON_DISCONNECT_KEY] = None
        await self._app(scope, receive, send)
        if scope.get(IS_KEY_LIVE):
            self._live_keys[key] = None
            if len(self._live_keys) > MAX_LIVE_KEYS:
                self._live_keys.popitem(last=False)


def _hash_key_headers(headers: HeaderMap) -> bytes:
    """Return the hash of the headers that can carry a key, which says nothing of the key."""
    parts = headers.get(b"authorization", b""), headers.get(b"x-api-key", b"")
    return sha256(b"\n".join(parts)).digest()
