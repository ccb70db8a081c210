"""Billing by Stripe: a Checkout Session creates a subscription.

No payment is recorded as settled: session, subscription and charges are read from Stripe each time.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager

import stripe
import structlog
from stripe import V1Services
from stripe.params import ChargeListParams
from stripe.params.checkout import SessionCreateParams

from access.billing.provider import (
    PRICES_USD,
    BillingError,
    BillingSetupError,
    FailedPayment,
    HeldPayment,
    Order,
    Payment,
    PendingPayment,
    Provider,
    SettledPayment,
    SubscriptionStatus,
)
from access.billing.stripe_api import (
    MAX_CONNECTIONS,
    BoundedHttpClient,
    Charge,
    Charges,
    Dispute,
    Listing,
    NotFoundError,
    OpenedSession,
    PortalSession,
    Price,
    RefusedError,
    Session,
    Subscription,
    call_stripe,
    diff_fields,
    parse_event,
)
from schemas.errors import invalid_parameter_error
from schemas.vocabulary import DAY_MS, Billing, Clock, Mode
from store.access_rows import ClaimRow, MembershipRow

TIMEOUT_S = 5.0
# For each method with all its requests and retries. Each byte of a response renews TIMEOUT_S, so
# without a deadline a response that drips would hold its caller and its connection for ever.
DEADLINE_S = 10.0

log = structlog.get_logger("billing")


class StripeBilling(Provider):
    """A Provider; `prices` holds Stripe's ids of the plan's two prices, `clock` returns epoch ms.

    Access ends `dunning_days` after the last paid period if Stripe collects no payment.

    Every method that queries Stripe raises BillingError after `deadline_s`. `api_base` replaces
    Stripe's own address in tests. `proxy` is the variable that names a proxy, and its address.
    Raise BillingSetupError if `api_key` is not a secret key.
    """

    name = "stripe"
    has_portal = True
    accepts_special_use_email = False
    pending_ttl_ms = 2000

    def __init__(
        self,
        api_key: str,
        webhook_secret: str,
        prices: Mapping[Billing, str],
        clock: Clock,
        base_url: str,
        api_base: str | None = None,
        timeout_s: float = TIMEOUT_S,
        deadline_s: float = DEADLINE_S,
        dunning_days: int = 30,
        proxy: tuple[str, str] | None = None,
    ) -> None:
        match = re.fullmatch(r"[rs]k_(test|live)_\w+", api_key, re.ASCII)
        if match is None:
            raise BillingSetupError(
                "SIGNALS_STRIPE_API_KEY is not a Stripe secret key: expected one that begins with "
                "sk_test_, rk_test_, sk_live_ or rk_live_"
            )
        self._is_live = match[1] == "live"
        self.mode: Mode | None = "live" if self._is_live else "test"
        stripe.enable_telemetry = False  # it writes a file into the home directory
        self._http = BoundedHttpClient(timeout_s, proxy)
        self._api = stripe.StripeClient(
            api_key,
            base_addresses={} if api_base is None else {"api": api_base.rstrip("/")},
            http_client=self._http,
            max_network_retries=2,
        ).v1
        self._webhook_secret = webhook_secret
        self._prices = prices
        self._clock = clock
        self._base_url = base_url.rstrip("/")
        self._has_checked_prices = False
        self._deadline_s = deadline_s
        self._dunning_ms = dunning_days * DAY_MS
        # Clients can start and abandon any number of claims. The rest of the connections stay free
        # for checkouts, webhooks and members.
        self._payment_fetches = asyncio.Semaphore(MAX_CONNECTIONS // 2)

    async def close(self) -> None:
        """Close connections to Stripe; idempotent."""
        await self._http.close_async()

    async def check_prices(self) -> None:
        """Compare Stripe's prices to the plan; raise BillingSetupError naming each difference."""
        async with self._limit_time():
            mismatches = [
                f"{price_id} ({billing}): {', '.join(reasons)}"
                for billing, price_id in self._prices.items()
                if (reasons := await self._diff_price(billing, price_id))
            ]
        if mismatches:
            raise BillingSetupError(
                f"Stripe's prices do not match the plan: {'; '.join(mismatches)}"
            )
        self._has_checked_prices = True

    async def check_portal(self) -> None:
        """Check that the key can open the customer portal and that the portal is set up."""
        # Stripe creates the default configuration only when its settings are saved for the first
        # time; until then every visit fails.
        request = self._api.billing_portal.configurations.list_async(
            {"active": True, "is_default": True}
        )
        try:
            async with self._limit_time():
                is_set_up = bool((await call_stripe(request, Listing[object])).data)
        except RefusedError as error:
            if error.status not in {401, 403}:
                raise
            raise BillingSetupError(
                "SIGNALS_STRIPE_API_KEY has no access to Stripe's customer portal (HTTP "
                f"{error.status}): give the restricted key write permission for it"
            ) from None
        if not is_set_up:
            raise BillingSetupError(
                "Stripe's customer portal is not set up: save its settings once, in this mode "
                "(Settings, Billing, Customer portal)"
            )

    async def open_session(self, order: Order) -> tuple[str, str, int]:
        """Open a Checkout Session; raise ApiError 400 if Stripe rejects the e-mail address."""
        async with self._limit_time():
            # serve starts even if Stripe is unreachable, so the check at start may not have
            # happened. No buyer may be charged a price that is not the plan's.
            if not self._has_checked_prices:
                try:
                    await self.check_prices()
                except BillingSetupError as error:
                    raise BillingError(str(error)) from None
            metadata = {"claim_id": order.claim_id, PRICE_METADATA: self._prices[order.billing]}
            if order.agent_name is not None:
                metadata["agent_name"] = order.agent_name
            params: SessionCreateParams = {
                "mode": "subscription",
                "line_items": [{"price": self._prices[order.billing], "quantity": 1}],
                "adaptive_pricing": {"enabled": False},  # or Stripe converts the currency
                "client_reference_id": order.claim_id,
                "customer_email": order.contact_email,
                "metadata": metadata,
                "subscription_data": {"metadata": metadata},
                # Stripe writes the session's id into it, by which a buyer in a browser is
                # recognized.
                "success_url": f"{self._base_url}/checkout/paid?session_id={{CHECKOUT_SESSION_ID}}",
                "cancel_url": f"{self._base_url}/checkout/cancelled",
            }
            request = self._api.checkout.sessions.create_async(
                params, {"idempotency_key": f"checkout-{order.claim_id}"}
            )
            try:
                session = await call_stripe(request, OpenedSession)
            except RefusedError as error:
                if error.param != "customer_email":
                    raise
                raise invalid_parameter_error(
                    "contact_email: the payment processor rejects this address; accepted: one "
                    "that receives mail, such as agent@example.com."
                ) from None
            if session.client_reference_id != order.claim_id:
                raise BillingError(f"Stripe: session {session.id} is of another checkout")
            return session.id, session.url, session.expires_at * 1000

    async def fetch_payment(self, claim: ClaimRow) -> Payment:
        """Return the payment status by a claim's session, its subscription and its charges."""
        async with self._limit_time(), self._payment_fetches:
            request = self._api.checkout.sessions.retrieve_async(
                claim.session, {"expand": ["line_items", "subscription"]}
            )
            try:
                session = await call_stripe(request, Session, claim.session)
            except NotFoundError:
                log.error("checkout_unknown", session=claim.session)
                return FailedPayment("is unknown to the payment processor")
            expected = {"client_reference_id": claim.id, "mode": "subscription"}
            if mismatches := diff_fields(session, expected):
                return _reject_mismatch(claim, mismatches)
            if session.status == "expired":
                return FailedPayment("expired unpaid", is_unpaid=True)
            if session.status != "complete" or session.payment_status == "unpaid":
                return PendingPayment()
            ordered = self._build_expected_fields(claim.billing, "amount_total")
            mismatches = diff_fields(session, ordered | {"payment_status": "paid"})
            # The settings may have changed since the checkout was opened.
            price_id = session.metadata.get(PRICE_METADATA, self._prices[claim.billing])
            if [item.price for item in session.line_items.data] != [price_id]:
                mismatches.append("the price is not the plan's")
            if mismatches:
                return _reject_mismatch(claim, mismatches)
            subscription, customer = session.subscription, session.customer
            if subscription is None or customer is None:
                raise BillingError(
                    f"Stripe returned session {session.id} without a subscription or customer"
                )
            # Incomplete means that the first payment is still being confirmed, which takes seconds.
            if subscription.status == "incomplete":
                return PendingPayment()
            status = await self._judge(subscription, customer)
            if status.is_final:
                return FailedPayment(f"is over, because {status.ended_reason}")
            if reason := status.ended_reason or status.due_reason:
                return HeldPayment(reason)
            # Prefer the address that the buyer confirmed at Stripe over the one typed at checkout.
            details = session.customer_details
            email = (details and details.email) or session.customer_email or claim.contact_email
            return SettledPayment(subscription.id, customer, email)

    async def fetch_status(self, member: MembershipRow) -> SubscriptionStatus:
        """Return the status of a subscription, ended if its payment was refunded or disputed."""
        async with self._limit_time():
            request = self._api.subscriptions.retrieve_async(member.subscription)
            try:
                subscription = await call_stripe(request, Subscription, member.subscription)
            except NotFoundError:
                # The operator has changed accounts, which must not take away a plan that was paid.
                # The daily maintenance logs this until the operator acts.
                log.error("subscription_unknown", subscription=member.subscription)
                return SubscriptionStatus(is_known=False)
            return await self._judge(subscription, member.customer)

    async def create_portal_url(self, member: MembershipRow, return_url: str) -> str:
        """Return a URL of Stripe's customer portal for one visit."""
        request = self._api.billing_portal.sessions.create_async(
            {"customer": member.customer, "return_url": return_url}
        )
        async with self._limit_time():
            return (await call_stripe(request, PortalSession)).url

    async def verify_event(self, payload: bytes, signature: str | None) -> tuple[str, str | None]:
        """Verify a webhook and return its customer; raise ApiError 400 if it is not Stripe's.

        The customer is None if the message cannot end a membership.
        """
        now_s = self._clock() // 1000
        event, subject = parse_event(payload, signature, self._webhook_secret, now_s)
        if event.livemode != self._is_live:
            return event.id, None
        # A dispute names its charge, but no customer.
        if subject.charge is None or not event.type.startswith("charge.dispute."):
            return event.id, subject.customer
        request = self._api.charges.retrieve_async(subject.charge)
        async with self._limit_time():
            charge = await call_stripe(request, Charge, subject.charge)
        return event.id, charge.customer

    @asynccontextmanager
    async def _limit_time(self) -> AsyncIterator[None]:
        """Raise BillingError if the block takes longer than the deadline; cancel its requests."""
        try:
            async with asyncio.timeout(self._deadline_s):
                yield
        except TimeoutError:
            raise BillingError(f"Stripe: not done within {self._deadline_s:g} seconds") from None

    async def _judge(self, subscription: Subscription, customer: str) -> SubscriptionStatus:
        last_payment, is_disputed = await find_last_payment(self._api, customer)
        return judge_subscription(
            subscription,
            last_payment,
            is_disputed=is_disputed,
            price_ids=self._prices.values(),
            now=self._clock(),
            dunning_ms=self._dunning_ms,
        )

    async def _diff_price(self, billing: Billing, price_id: str) -> list[str]:
        try:
            price = await call_stripe(self._api.prices.retrieve_async(price_id), Price, price_id)
        except NotFoundError:
            return [f"is unknown to Stripe in {self.mode} mode"]
        except RefusedError as error:
            if error.status not in {401, 403}:
                raise
            raise BillingSetupError(
                f"Stripe rejects SIGNALS_STRIPE_API_KEY (HTTP {error.status}): expected a secret "
                "key of the account, or a restricted key that can read prices"
            ) from None
        mismatches = diff_fields(
            price, self._build_expected_fields(billing, "unit_amount") | {"active": True}
        )
        if price.recurring is None:
            return [*mismatches, "it is not recurring"]
        interval = "month" if billing == "monthly" else "year"
        recurrence = {"interval": interval, "interval_count": 1, "usage_type": "licensed"}
        return mismatches + diff_fields(price.recurring, recurrence)

    def _build_expected_fields(self, billing: Billing, amount_field: str) -> dict[str, object]:
        """Return the expected fields of a price or session; `amount_field` names its cents."""
        return {
            "livemode": self._is_live,
            "currency": "usd",
            amount_field: PRICES_USD[billing] * 100,
        }


def _reject_mismatch(claim: ClaimRow, mismatches: Iterable[str]) -> FailedPayment:
    log.error("checkout_differs", session=claim.session, wrong=", ".join(mismatches))
    return FailedPayment("does not match the order", may_be_paid=True)


# Cents and longest days of a period, by Stripe's name of the period.
PERIODS = {"month": (PRICES_USD["monthly"] * 100, 31), "year": (PRICES_USD["yearly"] * 100, 366)}
# The subscription keeps the price at which the checkout was opened, also if the settings change.
PRICE_METADATA = "price"


def judge_subscription(
    subscription: Subscription,
    last_payment: Charge | None,
    *,
    is_disputed: bool,
    price_ids: Collection[str],
    now: int,
    dunning_ms: int,
) -> SubscriptionStatus:
    """Return whether a subscription gives access at `now` (epoch ms).

    `last_payment` is the customer's newest successful charge, and `is_disputed` if a dispute took
    its money. `price_ids` are those of the settings. Without a payment, access ends `dunning_ms`
    after the last paid period.
    """
    state = f"the subscription is {subscription.status.replace('_', ' ')}"
    # Stripe charges for such a subscription never again. It can leave every other status.
    is_final = subscription.status in {"canceled", "incomplete_expired"}
    if is_final or subscription.status in {"unpaid", "paused"}:
        return SubscriptionStatus(ended_reason=state, is_final=is_final)
    period_days = _find_period_days(subscription, price_ids)
    if period_days is None:
        return SubscriptionStatus(ended_reason="the subscription has another price than the plan")
    if last_payment is not None and last_payment.refunded:
        return SubscriptionStatus(ended_reason="the payment was refunded in full")
    if is_disputed:
        return SubscriptionStatus(ended_reason="the payment was disputed")
    if subscription.pause_collection is not None:
        state = "the collection of payments is paused"
    elif subscription.status in {"active", "trialing"}:
        # Stripe moved the period from the subscription to its items, of which this one has one.
        ends_s = subscription.cancel_at or subscription.items.data[0].current_period_end
        if subscription.cancel_at is not None or subscription.cancel_at_period_end:
            return SubscriptionStatus(ends_at=ends_s * 1000)
        return SubscriptionStatus(renews_at=ends_s * 1000)
    paid_at = 0 if last_payment is None else last_payment.created * 1000
    ends_at = paid_at + period_days * DAY_MS + dunning_ms
    if now >= ends_at:
        return SubscriptionStatus(ended_reason=state)
    return SubscriptionStatus(ends_at=ends_at, due_reason=state)


async def find_last_payment(api: V1Services, customer: str) -> tuple[Charge | None, bool]:
    """Return a customer's newest successful charge, and whether a dispute took its money."""
    # Charges no longer name an invoice, so all charges of the customer count. Each checkout creates
    # its own customer, so they belong to one subscription. Older charges paid for earlier periods:
    # that one of them was refunded does not end a membership whose current period is paid.
    params: ChargeListParams = {"customer": customer, "limit": 100}  # Stripe's maximum
    while True:
        page = await call_stripe(api.charges.list_async(params), Charges)
        for charge in page.data:
            if charge.customer != customer:
                raise BillingError(f"Stripe: charge {charge.id} is not of customer {customer}")
            if charge.paid:
                return charge, charge.disputed and await _has_lost_dispute(api, charge)
        if not page.has_more:
            return None, False
        if not page.data:
            raise BillingError(f"Stripe: a page of the charges of {customer} is empty")
        params["starting_after"] = page.data[-1].id


def _find_period_days(subscription: Subscription, price_ids: Collection[str]) -> int | None:
    """Return the days of a period if the subscription is one of the plan, else None."""
    if len(subscription.items.data) != 1:
        return None
    item = subscription.items.data[0]
    price, recurring = item.price, item.price.recurring
    if recurring is None or recurring.interval not in PERIODS:
        return None
    cents, period_days = PERIODS[recurring.interval]
    found = (price.currency, price.unit_amount, recurring.interval_count, item.quantity)
    # A price's product never changes. Subscriptions of earlier versions do not name their price.
    sold_as = subscription.metadata.get(PRICE_METADATA, price.id)
    is_known = price.id in {sold_as, *price_ids}
    return period_days if found == ("usd", cents, 1, 1) and is_known else None


async def _has_lost_dispute(api: V1Services, charge: Charge) -> bool:
    disputes = await call_stripe(api.disputes.list_async({"charge": charge.id}), Listing[Dispute])
    if any(dispute.charge != charge.id for dispute in disputes.data):
        raise BillingError(f"Stripe: a dispute is not about charge {charge.id}")
    for dispute in disputes.data:
        # Not lost: inquiries ("warning_"), those won, and prevented ones of type "block", which
        # took no money; other kinds of prevention refund the payment.
        details = dispute.payment_method_details
        is_blocked = bool(details and details.card and details.card.case_type == "block")
        is_harmless = dispute.status == "won" or dispute.status.startswith("warning_")
        if not (is_blocked if dispute.status == "prevented" else is_harmless):
            return True
    return False
