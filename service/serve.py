"""`signals serve`: both faces over the stores, and beside them the hourly compute.

The port is taken first and served once the first catch-up is done; where another process computes
on the store, at once. A signal ends the command with status 0, whatever it is doing.
"""

import asyncio
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, closing, contextmanager
from pathlib import Path

import structlog
import uvicorn

from access.billing.provider import Provider
from access.keys import Keys
from access.upkeep import Upkeep
from compute.indicators.contract import Indicator
from rest_shim.manifest import manifest
from service.app import create_app
from service.billing import billing_note, open_billing, unreachable
from service.commands import tell
from service.computing import computing
from service.connections import server_config
from service.lifetime import beside, stoppable
from service.settings import Settings, SettingsError, comma_separated, is_loopback
from store.sqlite import SqliteMarketStore
from store.sqlite_access import SqliteAccessStore

log = structlog.get_logger("service")


class Server(uvicorn.Server):
    """Leaves signals to `Stop`: uvicorn raises them again at its end, before the stores close."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture nothing."""
        yield


async def serve(
    settings: Settings, indicators: Sequence[Indicator], clock: Callable[[], int]
) -> int:
    """Serve and compute until interrupted. `clock` is the wall clock in epoch milliseconds."""
    async with AsyncExitStack() as opened:
        stop = opened.enter_context(stoppable())
        listener = opened.enter_context(closing(_listen(settings)))
        market = await SqliteMarketStore.open(settings.market_path)
        opened.push_async_callback(market.close)
        access = await SqliteAccessStore.open(settings.access_path)
        opened.push_async_callback(access.close)
        provider = open_billing(settings, access, clock)
        opened.push_async_callback(provider.close)
        with stop.ends():
            if (why := await unreachable(provider)) is not None:
                log.warning("billing_unavailable", why=why)
            async with computing(settings, market, indicators, clock):
                server = _server(settings, market, access, provider, clock)
                tell(_welcome(settings, provider, await _first_key(settings, access, clock)))
                async with beside(Upkeep(access, provider, clock, asyncio.sleep).run()):
                    await _served(server, listener)
    return 0


def _listen(settings: Settings) -> socket.socket:
    """Take the port before any work, so that an occupied one is told at once.

    Who connects before it is served waits in the queue.
    """
    listener: socket.socket | None = None
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
        family, _, _, _, address = min(found, key=lambda place: place[0] != socket.AF_INET)
        # asyncio disables Nagle's delay only on sockets that name their protocol.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise SettingsError(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror}; "
            "set SIGNALS_PORT or SIGNALS_HOST"
        ) from None
    return listener


def _server(
    settings: Settings,
    market: SqliteMarketStore,
    access: SqliteAccessStore,
    provider: Provider,
    clock: Callable[[], int],
) -> Server:
    app = create_app(
        market,
        access,
        provider,
        base_url=settings.address,
        clock=clock,
        daily_limit=settings.daily_limit,
        checkout_limit=settings.checkout_limit,
        access_request_limit=settings.access_request_limit,
        trusted_proxies=comma_separated(settings.trusted_proxies),
        allowed_hosts=comma_separated(settings.allowed_hosts),
        allowed_origins=comma_separated(settings.allowed_origins),
    )
    return Server(server_config(app))


async def _served(server: Server, listener: socket.socket) -> None:
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await asyncio.shield(serving)
    finally:
        server.should_exit = True
        await serving


async def _first_key(
    settings: Settings, access: SqliteAccessStore, clock: Callable[[], int]
) -> str | None:
    """Make a key at the first start, where only the operator's own terminal shows it."""
    keys = Keys(access, clock)
    is_own = is_loopback(settings.host) and settings.base_url is None and sys.stderr.isatty()
    return await keys.create("first start") if is_own and not await keys.list() else None


def _welcome(settings: Settings, provider: Provider, api_key: str | None) -> str:
    """Return what a newcomer needs; every indented line can be pasted as it stands."""
    mcp = manifest(settings.address, None).mcp
    if api_key is None:
        called = sys.argv[0] if Path(sys.argv[0]).name == "signals" else "signals"
        key = f"Make an API key:\n  {called} keys create --label me"
    else:
        key = f"Your API key, shown this once:\n  export SIGNALS_API_KEY={api_key}"
    parts = (
        f"Listening on {settings.address}",
        billing_note(provider),
        f"MCP endpoint:\n  {mcp.url}",
        key,
        f"Register with a client:\n  {mcp.registration}",
    )
    return "\n".join(part for part in parts if part)
