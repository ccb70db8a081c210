"""The resources that a process holds open: both stores, the billing provider, the mailer.

And the daily maintenance of both stores, with a look at the certificate.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from access.billing.provider import Provider
from access.mail import Mailer
from access.maintenance import MaintenanceJob
from access.oauth.clients import ClientDocuments
from schemas.vocabulary import Clock
from service.config.billing import open_provider
from service.config.mail import open_mailer
from service.config.settings import Settings
from service.config.stores import open_both, refuse_wrong_clock
from service.http.notices import NoticeKeeper, watch_certificate
from service.processes.lifecycle import run_in_background
from service.processes.steady_clock import DELETE_HOLD_MS, make_steady
from store.sql.access_store import AccessStore
from store.sql.market_store import MarketStore


@dataclass(frozen=True, slots=True)
class Resources:
    """Both stores, the billing provider, the mailer, the wall clock (epoch ms) and a sleep (s).

    `client_documents` fetches the documents of OAuth clients, None if none are accepted. `source`
    is the source of the bars that the market store remembers, None if it has none yet.
    """

    market: MarketStore
    access: AccessStore
    provider: Provider
    mailer: Mailer
    clock: Clock
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    client_documents: ClientDocuments | None = None
    source: str | None = None


@asynccontextmanager
async def open_resources(settings: Settings, clock: Clock) -> AsyncIterator[Resources]:
    """Open the resources that the settings name, creating missing stores; close them at the end."""
    async with AsyncExitStack() as stack:
        market, access = await stack.enter_async_context(open_both(settings))
        provider = open_provider(settings, access, clock)
        stack.push_async_callback(provider.close)
        client_documents = None
        if settings.oauth_client_documents == "on":
            client_documents = ClientDocuments(clock)
            stack.push_async_callback(client_documents.close)
        mailer = open_mailer(settings)
        source = (await market.progress()).source
        yield Resources(
            market,
            access,
            provider,
            mailer,
            clock,
            client_documents=client_documents,
            source=source,
        )


async def run_maintenance(
    settings: Settings,
    resources: Resources,
    clock: Clock,
    elapsed: Clock | None,
    on_open: Callable[[], None] = lambda: None,
) -> None:
    """Delete old rows of the access store every day, until cancelled.

    `clock` is the wall clock, `elapsed` as for `make_steady`. `on_open` is called when nothing is
    left to refuse.
    """
    # It would delete by it, before or without a run.
    await refuse_wrong_clock(settings, resources.market, clock())
    if settings.is_sqlite:
        from store.sqlite.copies import keep_spare

        await asyncio.to_thread(keep_spare, settings.market_path)
    on_open()
    steady_clock = make_steady(clock, elapsed, DELETE_HOLD_MS)
    job = MaintenanceJob(resources.access, resources.provider, steady_clock, asyncio.sleep)
    async with AsyncExitStack() as stack:
        if settings.address.startswith("https://"):
            watching = watch_certificate(settings.address, NoticeKeeper(resources.access, clock))
            await stack.enter_async_context(run_in_background(watching))
        await job.run()
