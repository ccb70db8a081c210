"""What a serving process holds open, and the app of both faces that the settings put together."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from starlette.applications import Starlette

from access.billing.provider import Provider
from access.mail.mailer import Mailer
from schemas.clock import Clock
from service.config.billing import open_billing
from service.config.mail import open_mailer, outbox_told
from service.config.setting_types import comma_separated
from service.config.settings import Settings
from service.config.stores import open_access, open_market
from service.http.app import create_app
from service.http.health import Readiness
from service.http.metrics import Metrics
from serving.snapshot_cache import Boards
from store.access_protocol import AccessStore
from store.errors import MarketStore


class Parts(NamedTuple):
    """Both stores, who sells, and who sends mail."""

    market: MarketStore
    access: AccessStore
    provider: Provider
    mailer: Mailer


@asynccontextmanager
async def opened_parts(settings: Settings, clock: Clock) -> AsyncIterator[Parts]:
    """Open them for the block; `clock` tells epoch milliseconds."""
    async with AsyncExitStack() as opened:
        market = await open_market(settings)
        opened.push_async_callback(market.close)
        access = await open_access(settings)
        opened.push_async_callback(access.close)
        provider = open_billing(settings, access, clock)
        opened.push_async_callback(provider.close)
        yield Parts(market, access, provider, open_mailer(settings))


def readiness_of(parts: Parts, clock: Clock) -> Readiness:
    """Return what tells whether a process can work that has these open."""
    return Readiness(Boards(parts.market), parts.access, clock)


def app_of(settings: Settings, parts: Parts, clock: Clock, metrics: Metrics) -> Starlette:
    """Return the ASGI app over open parts."""
    return create_app(
        *parts,
        base_url=settings.address,
        clock=clock,
        observed=metrics.called,
        sold=metrics.sold,
        daily_limit=settings.daily_limit,
        checkout_limit=settings.checkout_limit,
        access_request_limit=settings.access_request_limit,
        sign_in_limit=settings.sign_in_limit,
        trusted_proxies=comma_separated(settings.trusted_proxies),
        allowed_hosts=comma_separated(settings.allowed_hosts),
        allowed_origins=comma_separated(settings.allowed_origins),
        outbox=outbox_told(settings),
    )
