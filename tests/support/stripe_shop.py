"""The running service, selling by the real Stripe library and a Stripe on loopback."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from access.billing.stripe import StripeBilling
from schemas.vocabulary import Billing
from tests.doubles.stripe.records import Object
from tests.doubles.stripe.server import StripeDouble, run_stripe_double
from tests.support.running_service import ManualClock, RunningService, run_service

BUYER = "agent@example.com"


@dataclass(frozen=True)
class OpenedCheckout:
    """An open checkout and its claim token."""

    session: str
    claim_token: str


@dataclass(frozen=True)
class Purchase:
    """A completed purchase."""

    session: str
    subscription: str
    charge: str
    api_key: str


@dataclass
class StripeShop:
    """A service, its Stripe, and the clock of both."""

    served: RunningService
    stripe: StripeDouble
    billing: StripeBilling
    clock: ManualClock

    async def post_checkout(self, **body: str) -> httpx.Response:
        sent = {"contact_email": BUYER} | body
        return await self.served.client.post("/api/v1/access/checkout", json=sent, timeout=30)

    async def post_claim(self, claim_token: str) -> httpx.Response:
        sent = {"claim_token": claim_token}
        return await self.served.client.post("/api/v1/access/claim", json=sent, timeout=30)

    async def open_checkout(self, billing: Billing = "monthly") -> OpenedCheckout:
        answer = await self.post_checkout(billing=billing)
        assert answer.status_code == 201, answer.text
        return OpenedCheckout(self.stripe.sessions()[0]["id"], answer.json()["claim_token"])

    async def open_and_pay(self, billing: Billing = "monthly") -> OpenedCheckout:
        opened = await self.open_checkout(billing)
        self.stripe.pay(opened.session)
        return opened

    async def buy(self, billing: Billing = "monthly") -> Purchase:
        opened = await self.open_and_pay(billing)
        answer = await self.post_claim(opened.claim_token)
        assert answer.json()["status"] == "active", answer.text
        return Purchase(
            opened.session,
            self.stripe.subscription_of(opened.session),
            self.stripe.charge_of(opened.session),
            answer.json()["api_key"],
        )

    async def send_event(self, event: Object, *, at: int | None = None) -> httpx.Response:
        """Send an event from Stripe to the service, signed `at` (epoch seconds)."""
        return await self.stripe.send(f"{self.served.base_url}/webhooks/stripe", event, at=at)

    async def status(self, api_key: str) -> int:
        """Return the HTTP status of a call with a key."""
        return (await self.served.get_api("/usage", x_api_key=api_key)).status_code


def create_billing(stripe: StripeDouble, clock: ManualClock, **changed: Any) -> StripeBilling:
    """Return a StripeBilling for a Stripe double."""
    usual: dict[str, Any] = {
        "api_key": stripe.api_key,
        "webhook_secret": stripe.webhook_secret,
        "prices": stripe.prices,
        "clock": clock,
        "base_url": "https://signals.example",
        "api_base": stripe.base_url,
    }
    return StripeBilling(**usual | changed)


@asynccontextmanager
async def open_shop(folder: Path, **changed: Any) -> AsyncIterator[StripeShop]:
    """Run a service whose StripeBilling has some of its arguments changed."""
    clock = ManualClock()
    async with run_stripe_double(clock) as stripe:
        billing = create_billing(stripe, clock, **changed)
        try:
            async with run_service(folder, provider=billing, clock=clock) as served:
                yield StripeShop(served, stripe, billing, clock)
        finally:
            await billing.close()


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[StripeShop]:
    """The service selling by Stripe, with an empty market."""
    async with open_shop(tmp_path) as running:
        yield running
