"""Billing by Stripe: a Checkout Session opens a subscription, and Stripe's word on both is asked.

Nothing is remembered as paid: session, subscription and charges are read anew whenever it matters.
"""

import re
from collections.abc import Iterable, Mapping

import stripe
import structlog
from stripe.params.checkout import SessionCreateParams, SessionRetrieveParams

from access.billing.provider import (
    BillingError,
    BillingSetupError,
    CheckoutSession,
    Ended,
    Event,
    Order,
    Paid,
    Payment,
    Pending,
    Standing,
)
from access.billing.stripe_events import EVENTS, read_event
from access.billing.stripe_refunds import money_back
from access.billing.stripe_responses import (
    RefusedError,
    UnknownError,
    asked,
    differing,
    id_of,
    in_words,
    renewal,
)
from access.plan import PRICE_USD
from schemas.clock import Clock
from schemas.errors import invalid_parameter
from schemas.vocabulary import Billing, Mode
from store.access_rows import ClaimRow, MembershipRow

TIMEOUT_S = 5.0
RETRIES = 2
INTERVAL: dict[Billing, str] = {"monthly": "month", "yearly": "year"}
IN_FORCE = frozenset({"active", "trialing"})
OVER = frozenset({"canceled", "unpaid", "incomplete_expired", "paused"})
WHOLE: SessionRetrieveParams = {"expand": ["line_items", "subscription"]}

log = structlog.get_logger("billing")


class StripeBilling:
    """A Provider; `prices` are Stripe's ids of the plan's two prices, `clock` tells epoch ms.

    `api_base` stands in for Stripe's own address. BillingSetupError for a key that is none.
    """

    name = "stripe"
    has_portal = True
    takes_special_use_email = False
    pending_holds_ms = 2000

    def __init__(
        self,
        api_key: str,
        webhook_secret: str,
        prices: Mapping[Billing, str],
        clock: Clock,
        base_url: str,
        api_base: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.mode: Mode | None = _mode(api_key)
        stripe.enable_telemetry = False  # It would write a file into the home directory.
        self._http = stripe.HTTPXClient(timeout=timeout_s)
        self._api = stripe.StripeClient(
            api_key,
            base_addresses={} if api_base is None else {"api": api_base.rstrip("/")},
            http_client=self._http,
            max_network_retries=RETRIES,
        ).v1
        self._webhook_secret = webhook_secret
        self._prices = prices
        self._clock = clock
        self._base_url = base_url.rstrip("/")
        self._is_checked = False

    async def close(self) -> None:
        """Close what is open towards Stripe; idempotent."""
        await self._http.close_async()  # type: ignore[no-untyped-call]

    async def check(self) -> None:
        """Hold the plan against Stripe's prices; BillingSetupError names each that differs."""
        wrong = [
            f"{price_id} ({billing}): {', '.join(reasons)}"
            for billing, price_id in self._prices.items()
            if (reasons := await self._differing_price(billing, price_id))
        ]
        if wrong:
            raise BillingSetupError(f"Stripe's prices are not the plan's: {'; '.join(wrong)}")
        self._is_checked = True

    async def check_portal(self) -> None:
        """See that the key may open the customer portal, and that it was set up once."""
        asking = self._api.billing_portal.configurations.list_async(
            {"active": True, "is_default": True}
        )
        try:
            is_set_up = bool((await asked(asking)).data)
        except RefusedError as error:
            if error.status not in {401, 403}:
                raise
            raise BillingSetupError(
                "Stripe keeps SIGNALS_STRIPE_API_KEY from the customer portal (HTTP "
                f"{error.status}): let the restricted key write it"
            ) from None
        if not is_set_up:
            raise BillingSetupError(
                "Stripe's customer portal is not set up: save its settings once, in this mode "
                "(Settings, Billing, Customer portal)"
            )

    async def open_session(self, order: Order) -> CheckoutSession:
        """Open a Checkout Session; ApiError 400 for an e-mail address that Stripe refuses.

        None is opened before the prices have been checked once.
        """
        if not self._is_checked:
            try:
                await self.check()
            except BillingSetupError as error:
                raise BillingError(str(error)) from None
        creating = self._api.checkout.sessions.create_async(
            self._session_params(order), {"idempotency_key": f"checkout-{order.claim_id}"}
        )
        try:
            session = await asked(creating)
        except RefusedError as error:
            if error.param != "customer_email":
                raise
            raise invalid_parameter(
                "contact_email: the payment processor does not take this address; accepted: one "
                "that receives mail, such as agent@example.com."
            ) from None
        if session.url is None:
            raise BillingError(f"Stripe gave session {session.id} no address")
        return CheckoutSession(session.id, session.url, session.expires_at * 1000)

    async def payment(self, claim: ClaimRow) -> Payment:
        """Return what Stripe says of a claim's session, its subscription and its charges."""
        try:
            session = await asked(self._api.checkout.sessions.retrieve_async(claim.session, WHOLE))
        except UnknownError:
            log.error("checkout_unknown", session=claim.session)
            return Ended("is not known to the payment processor")
        ordered = {
            "id": claim.session,
            "client_reference_id": claim.id,
            "mode": "subscription",
        }
        if wrong := differing(session, ordered):
            return _not_as_ordered(claim, wrong)
        if session.status == "expired":
            return Ended("expired unpaid")
        if session.status != "complete" or session.payment_status == "unpaid":
            return Pending()
        if wrong := self._not_the_plan(session, claim.billing):
            return _not_as_ordered(claim, wrong)
        return await self._paid(session, claim)

    async def standing(self, member: MembershipRow) -> Standing:
        """Return Stripe's word on a subscription and on what was paid for it.

        In force too where Stripe does not know the subscription: the operator changed accounts,
        which is no reason to take away what was paid.
        """
        try:
            subscription = await asked(self._api.subscriptions.retrieve_async(member.subscription))
        except UnknownError:
            log.error("subscription_unknown", subscription=member.subscription)
            return Standing()
        if subscription.status in OVER:
            return Standing(over=f"the subscription is {in_words(subscription.status)}")
        if undone := await money_back(self._api, member.customer):
            return Standing(over=f"the payment was {undone}")
        return renewal(subscription)

    async def portal(self, member: MembershipRow, return_url: str) -> str:
        """Return an address of Stripe's customer portal, which is for this one visit."""
        visit = self._api.billing_portal.sessions.create_async(
            {"customer": member.customer, "return_url": return_url}
        )
        return (await asked(visit)).url

    async def event(self, payload: bytes, signature: str | None) -> Event:
        """Return the customer whom a signed webhook is about; ApiError 400 for any other message.

        The customer is None where the message can end nothing.
        """
        now_s = self._clock() // 1000
        event = read_event(payload, signature, self._webhook_secret, now_s)
        if event.type not in EVENTS or event.livemode != self._is_live:
            return Event(event.id, None)
        if event.type.startswith("charge.dispute."):
            charge = await asked(self._api.charges.retrieve_async(event.about["charge"]))
            return Event(event.id, id_of(charge.customer))
        return Event(event.id, event.about["customer"])

    @property
    def _is_live(self) -> bool:
        return self.mode == "live"

    async def _differing_price(self, billing: Billing, price_id: str) -> list[str]:
        try:
            price = await asked(self._api.prices.retrieve_async(price_id))
        except UnknownError:
            return [f"is not known to Stripe in {self.mode} mode"]
        except RefusedError as error:
            if error.status not in {401, 403}:
                raise
            raise BillingSetupError(
                f"Stripe refuses SIGNALS_STRIPE_API_KEY (HTTP {error.status}): expected a secret "
                "key of the account, or a restricted one that may read prices"
            ) from None
        wrong = differing(price, self._plan(billing, "unit_amount") | {"active": True})
        if price.recurring is None:
            return [*wrong, "it is not recurring"]
        every = {"interval": INTERVAL[billing], "interval_count": 1, "usage_type": "licensed"}
        return wrong + differing(price.recurring, every)

    def _plan(self, billing: Billing, amount: str) -> dict[str, object]:
        """Return what a price or a session must say; its amount, in cents, has another name."""
        return {
            "livemode": self._is_live,
            "currency": "usd",
            amount: PRICE_USD[billing] * 100,
        }

    def _session_params(self, order: Order) -> SessionCreateParams:
        metadata = {"claim_id": order.claim_id}
        if order.agent_name is not None:
            metadata["agent_name"] = order.agent_name
        return {
            "mode": "subscription",
            "line_items": [{"price": self._prices[order.billing], "quantity": 1}],
            "adaptive_pricing": {"enabled": False},  # else the buyer's currency is charged
            "client_reference_id": order.claim_id,
            "customer_email": order.contact_email,
            "metadata": metadata,
            "subscription_data": {"metadata": metadata},
            "success_url": f"{self._base_url}/checkout/paid",
            "cancel_url": f"{self._base_url}/checkout/cancelled",
        }

    def _not_the_plan(self, session: stripe.checkout.Session, billing: Billing) -> list[str]:
        """Return how a session that asks for no more money differs from one of the plan."""
        wrong = differing(session, self._plan(billing, "amount_total") | {"payment_status": "paid"})
        items = session.line_items.data if session.line_items else []
        if [id_of(item.price) for item in items] != [self._prices[billing]]:
            wrong.append("the price is not the plan's")
        return wrong

    async def _paid(self, session: stripe.checkout.Session, claim: ClaimRow) -> Payment:
        subscription, customer = session.subscription, id_of(session.customer)
        if not isinstance(subscription, stripe.Subscription) or customer is None:
            raise BillingError(f"Stripe gave session {session.id} no subscription or no customer")
        if subscription.status == "incomplete":
            return Pending()
        if subscription.status not in IN_FORCE:
            return Ended(f"opened a subscription that is {in_words(subscription.status)}")
        if undone := await money_back(self._api, customer):
            return Ended(f"was {undone}")
        details = session.customer_details
        email = (details and details.email) or session.customer_email or claim.contact_email
        return Paid(subscription.id, customer, email)


def _mode(api_key: str) -> Mode:
    match = re.fullmatch(r"[rs]k_(test|live)_\w+", api_key, re.ASCII)
    if match is None:
        raise BillingSetupError(
            "SIGNALS_STRIPE_API_KEY is no secret key of Stripe's: expected one that begins with "
            "sk_test_, rk_test_, sk_live_ or rk_live_"
        )
    return "live" if match[1] == "live" else "test"


def _not_as_ordered(claim: ClaimRow, wrong: Iterable[str]) -> Ended:
    log.error("checkout_differs", session=claim.session, wrong=", ".join(wrong))
    return Ended("is not what was ordered (the operator of this service can look into it)")
