"""`signals serve`: both faces over the stores, and beside them the hourly compute.

The port is taken first and served once the first catch-up is done; where another process computes
on the store, at once. A signal ends the command with status 0, whatever it is doing.
"""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing, nullcontext
from pathlib import Path

import structlog

from access.keys import Keys
from access.maintenance import Upkeep
from compute.indicators.contract import Indicator
from mcp_server.tools.registry import TOOLS_BY_NAME
from rest_shim.manifest import manifest
from schemas.clock import Clock
from service.commands.compute_command import computing
from service.commands.console import tell
from service.config.billing import billing_note, unreachable
from service.config.mail import mail_note
from service.config.settings import Settings
from service.http.metrics import Metrics
from service.http.metrics_server import Operations, operations_port
from service.http.resources import Parts, app_of, opened_parts, readiness_of
from service.http.server import listen, served, server_config
from service.processes.memory import one_heap
from service.processes.shutdown import beside, stoppable
from store.access_protocol import AccessStore
from store.addresses import is_loopback

log = structlog.get_logger("service")


async def serve(
    settings: Settings,
    indicators: Sequence[Indicator],
    clock: Clock,
    *,
    computes: bool = True,
) -> int:
    """Serve and compute until interrupted. `clock` is the wall clock in epoch milliseconds."""
    one_heap()
    async with AsyncExitStack() as opened:
        stop = opened.enter_context(stoppable())
        listener = opened.enter_context(closing(listen(settings.host, settings.port)))
        operations = Operations(opened.enter_context(operations_port(settings)))
        parts = await opened.enter_async_context(opened_parts(settings, clock))
        metrics = Metrics(TOOLS_BY_NAME)
        with stop.ends():
            await check_billing(parts)
            work = computing(settings, parts.market, indicators, clock, metrics)
            watching = operations.watching(metrics, readiness_of(parts, clock))
            async with watching, work if computes else nullcontext():
                config = server_config(app_of(settings, parts, clock, metrics))
                upkeep = Upkeep(parts.access, parts.provider, clock, asyncio.sleep)
                tell(await welcome(settings, parts, clock))
                async with beside(upkeep.run()), served(config, listener) as serving:
                    await asyncio.shield(serving)
    return 0


async def check_billing(parts: Parts) -> None:
    """Warn where nobody can buy at the moment; BillingSetupError where nobody ever could."""
    if (why := await unreachable(parts.provider)) is not None:
        log.warning("billing_unavailable", why=why)


async def _first_key(settings: Settings, access: AccessStore, clock: Clock) -> str | None:
    """Make a key at the first start, where only the operator's own terminal shows it."""
    keys = Keys(access, clock)
    is_own = is_loopback(settings.host) and settings.base_url is None and sys.stderr.isatty()
    return await keys.create("first start") if is_own and not await keys.list() else None


async def welcome(settings: Settings, parts: Parts, clock: Clock) -> str:
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
