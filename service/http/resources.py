"""The resources that a process holds open: both stores, the billing provider, the mailer."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from access.billing.provider import Provider
from access.mail import Mailer
from access.oauth.clients import ClientDocuments
from schemas.vocabulary import Clock
from service.config.billing import open_provider
from service.config.mail import open_mailer
from service.config.settings import Settings
from service.config.stores import open_both
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
