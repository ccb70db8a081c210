"""`signals serve`: both faces over the stores, and beside them the hourly compute.

The port is taken first and served once the first catch-up is done; where another process computes
on the store, at once. A signal ends the command with status 0, whatever it is doing.
"""

import asyncio
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, closing, contextmanager, nullcontext
from pathlib import Path

import structlog
import uvicorn

from access.keys import Keys
from access.upkeep import Upkeep
from compute.indicators.contract import Indicator
from rest_shim.manifest import manifest
from service.billing import billing_note, unreachable
from service.computing import computing
from service.connections import Listener, server_config
from service.heap import one_heap
from service.lifetime import beside, stoppable
from service.mail import mail_note
from service.parts import Parts, app_of, opened_parts
from service.settings import Settings, SettingsError
from service.telling import tell
from store.access_protocol import AccessStore
from store.addresses import is_loopback

log = structlog.get_logger("service")


class Server(uvicorn.Server):
    """Leaves signals to `Stop`: uvicorn raises them again at its end, before the stores close."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture nothing."""
        yield


async def serve(
    settings: Settings,
    indicators: Sequence[Indicator],
    clock: Callable[[], int],
    *,
    computes: bool = True,
) -> int:
    """Serve and compute until interrupted. `clock` is the wall clock in epoch milliseconds."""
    one_heap()
    async with AsyncExitStack() as opened:
        stop = opened.enter_context(stoppable())
        listener = opened.enter_context(closing(listen(settings)))
        parts = await opened.enter_async_context(opened_parts(settings, clock))
        with stop.ends():
            await check_billing(parts)
            work = computing(settings, parts.market, indicators, clock)
            async with work if computes else nullcontext():
                server = Server(server_config(app_of(settings, parts, clock)))
                tell(await welcome(settings, parts, clock))
                async with beside(Upkeep(parts.access, parts.provider, clock, asyncio.sleep).run()):
                    await _served(server, listener)
    return 0


def listen(settings: Settings) -> Listener:
    """Take the port before any work, so that an occupied one is told at once."""
    listener: Listener | None = None
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
        family, _, _, _, address = min(found, key=lambda place: place[0] != socket.AF_INET)
        # asyncio disables Nagle's delay only on sockets that name their protocol.
        listener = Listener(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as error:
        if listener is not None:
            listener.close()
        raise SettingsError(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror}; "
            "set SIGNALS_PORT or SIGNALS_HOST"
        ) from None
    return listener


async def check_billing(parts: Parts) -> None:
    """Warn where nobody can buy at the moment; BillingSetupError where nobody ever could."""
    if (why := await unreachable(parts.provider)) is not None:
        log.warning("billing_unavailable", why=why)


async def _served(server: Server, listener: socket.socket) -> None:
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await asyncio.shield(serving)
    finally:
        server.should_exit = True
        await serving


async def _first_key(
    settings: Settings, access: AccessStore, clock: Callable[[], int]
) -> str | None:
    """Make a key at the first start, where only the operator's own terminal shows it."""
    keys = Keys(access, clock)
    is_own = is_loopback(settings.host) and settings.base_url is None and sys.stderr.isatty()
    return await keys.create("first start") if is_own and not await keys.list() else None


async def welcome(settings: Settings, parts: Parts, clock: Callable[[], int]) -> str:
    """Return what a newcomer needs; every indented line can be pasted as it stands.

    The first key is made for it: what is returned must be shown.
    """
    mcp = manifest(settings.address, None).mcp
    api_key = await _first_key(settings, parts.access, clock)
    if api_key is None:
        called = sys.argv[0] if Path(sys.argv[0]).name == "signals" else "signals"
        key = f"Make an API key:\n  {called} keys create --label me"
    else:
        key = f"Your API key, shown this once:\n  export SIGNALS_API_KEY={api_key}"
    said = (
        f"Listening on {settings.address}",
        billing_note(parts.provider),
        mail_note(settings),
        f"MCP endpoint:\n  {mcp.url}",
        key,
        f"Register with a client:\n  {mcp.registration}",
    )
    return "\n".join(part for part in said if part)
