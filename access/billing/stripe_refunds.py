"""Finds refunds and lost disputes among the charges of a Stripe customer."""

import stripe
from stripe import V1Services

from access.billing.stripe_responses import call_stripe

PAGE_SIZE = 100  # Stripe's maximum


async def find_reversal(api: V1Services, customer: str) -> str | None:
    """Return how a customer's payment was reversed, None if it was not."""
    # Charges no longer name an invoice, so all charges of the customer count. Each checkout creates
    # its own customer, so they belong to one subscription.
    for charge in await _list_charges(api, customer):
        if charge.refunded:
            return "refunded in full"
        if charge.disputed and await _has_lost_dispute(api, charge):
            return "disputed"
    return None


async def _list_charges(api: V1Services, customer: str) -> list[stripe.Charge]:
    page = await call_stripe(api.charges.list_async({"customer": customer, "limit": PAGE_SIZE}))
    charges = page.data
    while page.has_more:
        page = await call_stripe(page.next_page_async())
        charges += page.data
    return charges


async def _has_lost_dispute(api: V1Services, charge: stripe.Charge) -> bool:
    disputes = await call_stripe(api.disputes.list_async({"charge": charge.id}))
    return any(_is_dispute_lost(dispute) for dispute in disputes.data)


def _is_dispute_lost(dispute: stripe.Dispute) -> bool:
    """Return whether a dispute took the money: not an inquiry, not won, not blocked."""
    # Statuses that begin with "warning_" are inquiries. A prevented dispute of type "block" took no
    # money; other kinds of prevention refund the payment.
    if dispute.status == "prevented":
        details = dispute.payment_method_details
        return not (details and details.card and details.card.case_type == "block")
    return dispute.status != "won" and not dispute.status.startswith("warning_")
