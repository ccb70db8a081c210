"""Purchases on one store file, and a provider whose responses a test can hold."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from access.billing.provider import (
    Order,
    Payment,
    PendingPayment,
    Provider,
    SettledPayment,
    SubscriptionStatus,
)
from access.billing.stripe import StripeBilling
from access.purchases import Claims, Purchases
from access.throttle import DEFAULT_LIMIT, Limit, Throttle
from schemas.errors import ApiError
from schemas.purchase import ActiveClaim, CheckoutBody, CheckoutResponse, ClaimBody, PendingClaim
from schemas.vocabulary import DAY_MS, Billing, Clock, Mode
from store.access_rows import ClaimRow, MembershipRow
from store.sql.access_store import AccessStore
from tests.doubles.stripe.records import Object
from tests.doubles.stripe.server import StripeDouble, run_stripe_double
from tests.support.running_service import ManualClock, RunningService, run_service
from tests.support.store_homes import open_access_as, open_and_close

ADDRESS = "192.0.2.7"
BASE_URL = "http://127.0.0.1:8000"


class HeldProvider(Provider):
    """A Provider whose checks wait until `released` is set, and then return `payments`.

    Checks of memberships wait for `status_released` and return `statuses`.
    """

    has_portal = True
    accepts_special_use_email = False
    pending_ttl_ms = 2000

    def __init__(self, clock: Clock, name: str = "held", mode: Mode = "live") -> None:
        self.name = name
        self.mode: Mode | None = mode
        self.orders: list[Order] = []
        self.payments: dict[str, Payment | Exception] = {}
        self.statuses: dict[str, SubscriptionStatus | Exception] = {}
        self.status_checks = 0
        self.status_requested = asyncio.Event()
        self.status_released = asyncio.Event()
        self.status_released.set()
        self.open_error: Exception | None = None
        self.checks: list[str] = []
        self.running = Counter[str]()
        self.released = asyncio.Event()
        self.released.set()
        self._clock = clock

    def set_paid(self, session: str) -> None:
        self.payments[session] = SettledPayment(f"sub_{session}", f"cus_{session}", "a@example.com")

    async def open_session(self, order: Order) -> tuple[str, str, int]:
        if self.open_error is not None:
            raise self.open_error
        if order not in self.orders:
            self.orders.append(order)
        session = f"cs_{self.orders.index(order) + 1}"
        return session, f"https://pay.test/{session}", self._clock() + DAY_MS

    async def fetch_payment(self, claim: ClaimRow) -> Payment:
        self.checks.append(claim.session)
        self.running[claim.session] += 1
        assert self.running[claim.session] == 1, "two checks of one checkout at a time"
        await self.released.wait()
        self.running[claim.session] -= 1
        payment = self.payments.get(claim.session, PendingPayment())
        if isinstance(payment, Exception):
            raise payment
        return payment

    async def fetch_status(self, member: MembershipRow) -> SubscriptionStatus:
        self.status_checks += 1
        self.status_requested.set()
        await self.status_released.wait()
        status = self.statuses.get(member.subscription, SubscriptionStatus())
        if isinstance(status, Exception):
            raise status
        return status

    async def create_portal_url(self, member: MembershipRow, return_url: str) -> str:
        return f"https://pay.test/{member.customer}"


class LookupCountingStore(AccessStore):
    """An access store that counts lookups of claims."""

    lookups = 0

    async def find_claim(self, token_hash: bytes) -> ClaimRow | None:
        claim = await super().find_claim(token_hash)
        self.lookups += 1
        return claim


@dataclass
class SandboxShop:
    """The objects of one serving process."""

    store: LookupCountingStore
    clock: ManualClock
    billing: Provider
    checkout_limit: Limit = DEFAULT_LIMIT
    claims: Claims = field(init=False)
    purchases: Purchases = field(init=False)

    def __post_init__(self) -> None:
        self.restart_with(self.billing)

    def restart_with(self, billing: Provider) -> None:
        self.billing = billing
        self.claims = Claims(self.store, billing, self.clock)
        self.purchases = Purchases(
            self.store,
            billing,
            self.claims,
            Throttle(self.store, self.clock, "checkout", self.checkout_limit),
            self.clock,
            base_url=BASE_URL,
            daily_limit=10_000,
        )

    async def open_checkout(
        self, address: str = ADDRESS, claim_token: str | None = None, **body: str
    ) -> CheckoutResponse:
        given = CheckoutBody.model_validate({"contact_email": "agent@example.com", **body})
        return await self.purchases.create_checkout(given, address, claim_token)

    async def open_paid_checkout(self, billing: HeldProvider) -> str:
        checkout = await self.open_checkout()
        billing.set_paid(checkout.checkout_url.rpartition("/")[2])
        return checkout.claim_token

    async def claim(self, token: str) -> ActiveClaim | PendingClaim:
        return await self.purchases.claim(ClaimBody(claim_token=token), ADDRESS)

    def start_claim(self, token: str) -> "asyncio.Task[ActiveClaim | PendingClaim]":
        return asyncio.create_task(self.claim(token))

    async def wait_for_lookups(self, claims: int) -> None:
        """Wait until so many claims have been looked up and wait for the payment check."""
        async with asyncio.timeout(10):
            while self.store.lookups < claims:
                await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def claim_refused(self, token: str) -> ApiError:
        with pytest.raises(ApiError) as refused:
            await self.claim(token)
        assert token not in refused.value.message
        return refused.value


def open_counting_store(path: Path) -> AbstractAsyncContextManager[LookupCountingStore]:
    return open_and_close(open_access_as(LookupCountingStore, path))


def read_files(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


def parse_sandbox_id(checkout: CheckoutResponse) -> str:
    return checkout.checkout_url.rpartition("/")[2]


async def settle_checkout(shop: SandboxShop, checkout: CheckoutResponse, status: str) -> None:
    session = await shop.billing.store.find_sandbox_session(parse_sandbox_id(checkout))
    assert await shop.billing.settle(session, status) == status


BUYER = "agent@example.com"


@dataclass(frozen=True)
class OpenedCheckout:
    session: str
    claim_token: str


@dataclass(frozen=True)
class Purchase:
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
        return (await self.served.get_api("/usage", x_api_key=api_key)).status_code


def create_billing(stripe: StripeDouble, clock: ManualClock, **changed: Any) -> StripeBilling:
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
    async with open_shop(tmp_path) as running:
        yield running
