"""The serving side put together from parts that are handed in; it opens and closes nothing."""

from collections.abc import Callable, Sequence

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Route

from access.keys import Keys
from mcp_server.calls import Calls
from mcp_server.context import Boards, Context
from mcp_server.endpoint import PATHS, McpEndpoint
from mcp_server.gate import Gate
from rest_shim.failures import NoStore, failure_handlers
from rest_shim.routes import routes
from store.protocol import MarketStore


def create_app(
    market: MarketStore,
    keys: Keys,
    *,
    base_url: str,
    clock: Callable[[], int],
    allowed_hosts: Sequence[str] = (),
    allowed_origins: Sequence[str] = (),
) -> Starlette:
    """Return the ASGI app of both faces; `clock` gives the wall clock in epoch ms."""
    base_url = base_url.rstrip("/")
    docs = f"{base_url}/api/v1"
    calls = Calls(keys, Context(Boards(market), base_url, docs, clock))
    gate = Middleware(
        Gate,
        base_url=base_url,
        docs=docs,
        allowed_hosts=allowed_hosts,
        allowed_origins=allowed_origins,
    )
    endpoint = McpEndpoint(calls)
    app = Starlette(
        routes=[*(Route(path, endpoint) for path in PATHS), *routes(calls)],
        middleware=[Middleware(NoStore), gate],
        exception_handlers=failure_handlers(calls),
    )
    app.router.redirect_slashes = False
    return app
