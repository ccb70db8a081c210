"""One of several processes that serve: the app, which opens stores of its own when it starts.

It is sent there by pickle before it starts, so it holds nothing but what it is made from.
"""

import asyncio
import gc
import os
import signal
from multiprocessing import parent_process

from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from mcp_server.tools.registry import TOOLS_BY_NAME
from schemas.clock import Clock
from service.config.logs import log_to_standard_error
from service.config.settings import Settings
from service.http.metrics import Metrics
from service.http.metrics_server import watch_loop
from service.http.resources import app_of, opened_parts
from service.processes.shutdown import beside


class Worker:
    """The ASGI app of a process of its own."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        """`clock` tells epoch milliseconds."""
        self._settings = settings
        self._clock = clock
        self._app: Starlette

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request; of the server's own life hear its start and its end."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        else:
            await self._app(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        log_to_standard_error()
        end_with_parent()
        await receive()
        metrics = Metrics(TOOLS_BY_NAME)
        async with (
            opened_parts(self._settings, self._clock) as parts,
            beside(watch_loop(metrics.lagged)),
        ):
            self._app = app_of(self._settings, parts, self._clock, metrics)
            gc.collect()
            gc.freeze()
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})


def end_with_parent() -> None:
    """Take the end of the process that started this one, however it came, for a SIGTERM."""
    loop, parent = asyncio.get_running_loop(), parent_process()
    assert parent is not None
    ended: int = parent.sentinel

    def end() -> None:
        loop.remove_reader(ended)
        os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(ended, end)
