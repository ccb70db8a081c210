"""What a serving process holds open, and the app of both faces that the settings put together."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from starlette.applications import Starlette

from access.billing.provider import Provider
from access.mail.mailer import Mailer
from schemas.clock import Clock
from service.config.billing import open_provider
from service.config.mail import choose_visible_outbox, open_mailer
from service.config.setting_types import split_commas
from service.config.settings import Settings
from service.config.stores import open_access, open_market
from service.http.app import create_app
from service.http.health import Readiness
from service.http.metrics import Metrics
from serving.snapshot_cache import SnapshotCache
from store.access_protocol import AccessStore
from store.errors import MarketStore


class Resources(NamedTuple):
    """Both stores, who sells, and who sends mail."""

    market: MarketStore
    access: AccessStore
    provider: Provider
    mailer: Mailer


@asynccontextmanager
async def open_resources(settings: Settings, clock: Clock) -> AsyncIterator[Resources]:
    """Open them for the block; `clock` tells epoch milliseconds."""
    async with AsyncExitStack() as stack:
        market = await open_market(settings)
        stack.push_async_callback(market.close)
        access = await open_access(settings)
        stack.push_async_callback(access.close)
        provider = open_provider(settings, access, clock)
        stack.push_async_callback(provider.close)
        yield Resources(market, access, provider, open_mailer(settings))


def build_readiness(resources: Resources, clock: Clock) -> Readiness:
    """Return what tells whether a process can work that has these open."""
    return Readiness(SnapshotCache(resources.market), resources.access, clock)


def build_app(
    settings: Settings, resources: Resources, clock: Clock, metrics: Metrics
) -> Starlette:
    """Return the ASGI app over open parts."""
    return create_app(
        *resources,
        base_url=settings.address,
        clock=clock,
        on_call=metrics.on_call,
        on_sale=metrics.on_sale,
        daily_limit=settings.daily_limit,
        checkout_limit=settings.checkout_limit,
        access_request_limit=settings.access_request_limit,
        sign_in_limit=settings.sign_in_limit,
        trusted_proxies=split_commas(settings.trusted_proxies),
        allowed_hosts=split_commas(settings.allowed_hosts),
        allowed_origins=split_commas(settings.allowed_origins),
        outbox=choose_visible_outbox(settings),
    )
