"""The ASGI app of one serving process, which opens its own stores when it starts.

It is pickled into the process, so until then it holds only settings and a clock.
"""

from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from access.call_log import CallLog
from rest_shim.endpoints import CALL_NAMES
from schemas.clock import Clock
from service.config.logs import log_to_standard_error
from service.config.settings import Settings
from service.http.app import build_app
from service.http.metrics import Metrics
from service.http.metrics_server import sample_loop_lag
from service.http.resources import open_resources
from service.processes.memory import prepare_to_serve
from service.processes.shutdown import run_in_background, terminate_with_parent


class Worker:
    """An ASGI app that opens its resources in its lifespan."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        """Store the arguments; `clock` is the wall clock."""
        self._settings = settings
        self._clock = clock
        self._app: Starlette

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request, or the lifespan events of the server."""
        if scope["type"] == "lifespan":
            await self._run_lifespan(receive, send)
        else:
            await self._app(scope, receive, send)

    async def _run_lifespan(self, receive: Receive, send: Send) -> None:
        log_to_standard_error(self._settings.log_level, self._settings.log_format)
        terminate_with_parent()
        await receive()
        metrics = Metrics(CALL_NAMES)
        async with (
            open_resources(self._settings, self._clock) as resources,
            run_in_background(sample_loop_lag(metrics.on_lag)),
        ):
            call_log = CallLog(resources.access, metrics.on_calls_dropped)
            self._app = build_app(self._settings, resources, metrics, call_log)
            prepare_to_serve()
            async with run_in_background(call_log.run()):
                await send({"type": "lifespan.startup.complete"})
                await receive()
        await send({"type": "lifespan.shutdown.complete"})
