"""How the service takes connections: HTTP/1.1 by h11, each exchange and their number bounded.

uvicorn itself waits without end for the rest of a request and for a client that reads no answer.
"""

import asyncio
import resource
from operator import attrgetter
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

EXCHANGE_S = 60.0
# Descriptors that stores, sources and the payment processor need.
RESERVED = 128
MOST_CONNECTIONS = 10_000
UNANSWERED_S = 3


def most_connections() -> int:
    """Return how many connections the process's limit of open files leaves room for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(1, min(MOST_CONNECTIONS, soft - RESERVED))


class BoundedProtocol(H11Protocol):
    """A connection that ends where one exchange, from its wait to its answer, takes too long.

    Where there are too many, the one whose exchange has lasted longest makes room for the newest,
    so idle ones cannot keep others out.
    """

    exchange_s = EXCHANGE_S
    most = staticmethod(most_connections)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, at the cost of the longest waiting one where there are too many."""
        super().connection_made(transport)
        self._begin_exchange()
        taken = [held for held in self.connections if not held.transport.is_closing()]
        if len(taken) > self.most():
            min(taken, key=attrgetter("deadline")).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._expiry.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Begin the next exchange; what the client has not read yet falls under its deadline."""
        self._expiry.cancel()
        self._begin_exchange()
        super().on_response_complete()

    def _begin_exchange(self) -> None:
        self.deadline = self.loop.time() + self.exchange_s
        self._expiry = self.loop.call_at(self.deadline, self.transport.abort)


def server_config(app: Any, protocol: type[BoundedProtocol] = BoundedProtocol) -> uvicorn.Config:
    """Return how an app is served: no other parser, no WebSocket, no banner, no log of requests.

    Malformed requests are answered and not logged: whoever can connect could fill a disk.
    """
    return uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=UNANSWERED_S,
    )
