"""Decides by Stripe's subscription and its last payment whether a membership gives access."""

from collections.abc import Collection

from stripe import V1Services
from stripe.params import ChargeListParams

from access.billing.provider import BillingError, SubscriptionStatus
from access.billing.stripe_records import Charge, Charges, Dispute, Disputes, Subscription
from access.billing.stripe_responses import call_stripe, format_status, parse_renewal
from access.plan import PRICES_USD
from schemas.vocabulary import DAY_MS

PAGE_SIZE = 100  # Stripe's maximum
# Stripe charges for such a subscription never again. It can leave every other status.
FINAL_STATUSES = frozenset({"canceled", "incomplete_expired"})
STOPPED_STATUSES = frozenset({"unpaid", "paused"})
PAID_STATUSES = frozenset({"active", "trialing"})
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
    state = f"the subscription is {format_status(subscription.status)}"
    if subscription.status in FINAL_STATUSES:
        return SubscriptionStatus(ended_reason=state, is_final=True)
    if subscription.status in STOPPED_STATUSES:
        return SubscriptionStatus(ended_reason=state)
    period_days = _find_period_days(subscription, price_ids)
    if period_days is None:
        return SubscriptionStatus(ended_reason="the subscription has another price than the plan")
    if last_payment is not None and last_payment.refunded:
        return SubscriptionStatus(ended_reason="the payment was refunded in full")
    if is_disputed:
        return SubscriptionStatus(ended_reason="the payment was disputed")
    if subscription.pause_collection is not None:
        state = "the collection of payments is paused"
    elif subscription.status in PAID_STATUSES:
        return parse_renewal(subscription)
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
    params: ChargeListParams = {"customer": customer, "limit": PAGE_SIZE}
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
    disputes = await call_stripe(api.disputes.list_async({"charge": charge.id}), Disputes)
    if any(dispute.charge != charge.id for dispute in disputes.data):
        raise BillingError(f"Stripe: a dispute is not about charge {charge.id}")
    return any(_is_dispute_lost(dispute) for dispute in disputes.data)


def _is_dispute_lost(dispute: Dispute) -> bool:
    """Return whether a dispute took the money: not an inquiry, not won, not blocked."""
    # Statuses that begin with "warning_" are inquiries. A prevented dispute of type "block" took no
    # money; other kinds of prevention refund the payment.
    if dispute.status == "prevented":
        details = dispute.payment_method_details
        return not (details and details.card and details.card.case_type == "block")
    return dispute.status != "won" and not dispute.status.startswith("warning_")
