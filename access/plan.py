"""How a caller gets a key: the only plan, its prices and the steps of a purchase."""

from schemas.errors import HowToGetAccess
from schemas.purchase import CLAIM_POLL_DURATION_S, CLAIM_POLL_INTERVAL_S
from schemas.vocabulary import Billing

PRICES_USD: dict[Billing, int] = {"monthly": 129, "yearly": 1199}
BUY_KEY_HINT = "To get a key: POST /api/v1/access/checkout, pay, then POST /api/v1/access/claim."
# Works on every deployment, also if its operator has published no contact.
CONTACT_OPERATOR = "contact the operator, for example with POST /api/v1/access-request"
# With billing off, the operator creates every key, and nothing may offer a sale.
ASK_OPERATOR_HINT = (
    "This server sells no keys: request one from its operator, for example with "
    "POST /api/v1/access-request."
)


def describe_purchase(base_url: str) -> HowToGetAccess:
    """Return the purchase flow and its prices, with absolute addresses."""
    base = base_url.rstrip("/")
    return HowToGetAccess(
        steps=[
            f'POST {base}/api/v1/access/checkout with {{"contact_email": "<EMAIL>"}}: returns '
            "checkout_url and a one-time claim_token.",
            "Pay at checkout_url.",
            f"POST {base}/api/v1/access/claim with the claim_token: returns api_key; "
            f"while status is pending, retry every {CLAIM_POLL_INTERVAL_S} seconds for up to "
            f"{CLAIM_POLL_DURATION_S // 60} minutes.",
        ],
        plan="premium",
        price_usd=dict(PRICES_USD),
    )
