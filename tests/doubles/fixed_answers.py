"""A service that gives the same answers to everybody, as a hostile or a wrong one may."""

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tests.support.running_service import serve_app

KEY = "ek_" + "k" * 43

Sent = dict[str, str]


@contextmanager
def loopback(status: int, body: bytes = b"", **headers: str) -> Iterator[tuple[str, list[Sent]]]:
    """Return the same response to every request; yield the address and the received headers."""
    asked: list[Sent] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join(10)


@asynccontextmanager
async def answering(*responses: Response) -> AsyncIterator[tuple[str, list[tuple[Sent, bytes]]]]:
    """Return the given responses in turn, then always the last.

    Yield the address, and the headers and bodies received.
    """
    left, received = list(responses), []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        received.append((dict(request.headers), await request.body()))
        await (left.pop(0) if len(left) > 1 else left[0])(scope, receive, send)

    async with serve_app(lambda _: app) as address:
        yield address, received
