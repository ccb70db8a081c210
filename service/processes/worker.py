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
from service.http.app import build_app
from service.http.metrics import Metrics
from service.http.metrics_server import sample_loop_lag
from service.http.resources import open_resources
from service.processes.shutdown import run_in_background


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
            await self._run_lifespan(receive, send)
        else:
            await self._app(scope, receive, send)

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        log_to_standard_error()
        terminate_with_parent()
        await receive()
        metrics = Metrics(TOOLS_BY_NAME)
        async with (
            open_resources(self._settings, self._clock) as resources,
            run_in_background(sample_loop_lag(metrics.on_lag)),
        ):
            self._app = build_app(self._settings, resources, metrics)
            gc.collect()
            gc.freeze()
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})


def terminate_with_parent() -> None:
    """Take the end of the process that started this one, however it came, for a SIGTERM."""
    loop, parent = asyncio.get_running_loop(), parent_process()
    assert parent is not None
    parent_sentinel: int = parent.sentinel

    def on_parent_exit() -> None:
        loop.remove_reader(parent_sentinel)
        os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(parent_sentinel, on_parent_exit)
