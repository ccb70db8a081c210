"""Finds refunds and lost disputes among the charges of a Stripe customer."""

from stripe import V1Services
from stripe.params import ChargeListParams

from access.billing.provider import BillingError
from access.billing.stripe_records import Charge, Charges, Dispute, Disputes
from access.billing.stripe_responses import call_stripe

PAGE_SIZE = 100  # Stripe's maximum


async def find_reversal(api: V1Services, customer: str) -> str | None:
    """Return how a customer's payment was reversed, None if it was not."""
    # Charges no longer name an invoice, so all charges of the customer count. Each checkout creates
    # its own customer, so they belong to one subscription.
    params: ChargeListParams = {"customer": customer, "limit": PAGE_SIZE}
    while True:
        page = await call_stripe(api.charges.list_async(params), Charges)
        for charge in page.data:
            if charge.customer != customer:
                raise BillingError(f"Stripe: charge {charge.id} is not of customer {customer}")
            if charge.refunded:
                return "refunded in full"
            if charge.disputed and await _has_lost_dispute(api, charge):
                return "disputed"
        if not page.has_more:
            return None
        if not page.data:
            raise BillingError(f"Stripe: a page of the charges of {customer} is empty")
        params["starting_after"] = page.data[-1].id


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
