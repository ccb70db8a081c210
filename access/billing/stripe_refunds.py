"""Whether money that a customer of Stripe's paid went back."""

import stripe
from stripe import V1Services

from access.billing.stripe_responses import asked

PAGE = 100  # the most charges that Stripe lists at a time


async def money_back(api: V1Services, customer: str) -> str | None:
    """Tell how money of a customer's went back, None where none did."""
    for charge in await _charges(api, customer):
        if charge.refunded:
            return "refunded in full"
        if charge.disputed and await _is_lost(api, charge):
            return "disputed"
    return None


async def _charges(api: V1Services, customer: str) -> list[stripe.Charge]:
    page = await asked(api.charges.list_async({"customer": customer, "limit": PAGE}))
    charges = page.data
    while page.has_more:
        page = await asked(page.next_page_async())
        charges += page.data
    return charges


async def _is_lost(api: V1Services, charge: stripe.Charge) -> bool:
    disputes = await asked(api.disputes.list_async({"charge": charge.id}))
    return any(_takes_money(dispute) for dispute in disputes.data)


def _takes_money(dispute: stripe.Dispute) -> bool:
    """Tell whether a dispute is more than a question, and was neither won nor blocked."""
    if dispute.status == "prevented":
        details = dispute.payment_method_details
        return not (details and details.card and details.card.case_type == "block")
    return dispute.status != "won" and not dispute.status.startswith("warning_")
