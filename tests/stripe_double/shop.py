"""The running service selling by the real Stripe library, against a Stripe on loopback."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from access.billing.stripe import StripeBilling
from schemas.vocabulary import Billing
from tests.serving import ManualClock, Served, serving
from tests.stripe_double.books import Object
from tests.stripe_double.double import StripeDouble, stripe_double

BUYER = "agent@example.com"


@dataclass(frozen=True)
class Begun:
    """A checkout that was opened here."""

    session: str
    claim_token: str


@dataclass(frozen=True)
class Bought:
    """A purchase that went through."""

    session: str
    subscription: str
    charge: str
    api_key: str


@dataclass
class Shop:
    """One service, the Stripe that it sells by, and the clock of both."""

    served: Served
    stripe: StripeDouble
    billing: StripeBilling
    clock: ManualClock

    async def checkout(self, **body: str) -> httpx.Response:
        sent = {"contact_email": BUYER} | body
        return await self.served.client.post("/api/v1/access/checkout", json=sent, timeout=30)

    async def claim(self, claim_token: str) -> httpx.Response:
        sent = {"claim_token": claim_token}
        return await self.served.client.post("/api/v1/access/claim", json=sent, timeout=30)

    async def begin(self, billing: Billing = "monthly") -> Begun:
        answer = await self.checkout(billing=billing)
        assert answer.status_code == 201, answer.text
        return Begun(self.stripe.sessions()[0]["id"], answer.json()["claim_token"])

    async def pay(self, billing: Billing = "monthly") -> Begun:
        begun = await self.begin(billing)
        self.stripe.pay(begun.session)
        return begun

    async def buy(self, billing: Billing = "monthly") -> Bought:
        begun = await self.pay(billing)
        answer = await self.claim(begun.claim_token)
        assert answer.json()["status"] == "active", answer.text
        return Bought(
            begun.session,
            self.stripe.subscription_of(begun.session),
            self.stripe.charge_of(begun.session),
            answer.json()["api_key"],
        )

    async def report(self, event: Object, *, at: int | None = None) -> httpx.Response:
        """Let Stripe send an event to the service; `at` in epoch seconds is its stamp."""
        return await self.stripe.send(f"{self.served.base_url}/webhooks/stripe", event, at=at)

    async def status(self, api_key: str) -> int:
        """Return the HTTP status of a call with a key."""
        return (await self.served.rest("/usage", x_api_key=api_key)).status_code


def billing_by(stripe: StripeDouble, clock: ManualClock, **changed: Any) -> StripeBilling:
    """Return the provider that asks a double."""
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
async def shop_on(folder: Path) -> AsyncIterator[Shop]:
    clock = ManualClock()
    async with stripe_double(clock) as stripe:
        billing = billing_by(stripe, clock)
        try:
            async with serving(folder, provider=billing, clock=clock) as served:
                yield Shop(served, stripe, billing, clock)
        finally:
            await billing.close()


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[Shop]:
    """The service selling by Stripe, on an empty market."""
    async with shop_on(tmp_path) as running:
        yield running
