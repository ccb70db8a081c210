"""Billing turned off: the operator creates every key; open claims stay as they are."""

from access.billing.provider import (
    BillingError,
    CheckoutSession,
    Order,
    Payment,
    SubscriptionStatus,
    WebhookEvent,
)
from access.plan import CONTACT_OPERATOR
from schemas.errors import ApiError, unavailable_error
from schemas.vocabulary import Mode
from store.access_rows import ClaimRow, MembershipRow

# An hour: only the operator can turn billing on.
RETRY_AFTER_S = 3600


class NoBilling:
    """A Provider that sells nothing."""

    name = "off"
    mode: Mode | None = None
    has_portal = False
    accepts_special_use_email = True
    pending_ttl_ms = 0

    async def open_session(self, order: Order) -> CheckoutSession:
        """Raise ApiError 503: nothing is sold."""
        raise unavailable_error(
            "This server does not sell keys (billing is off). Request a key from its operator, "
            "for example with POST /api/v1/access-request, or retry later.",
            RETRY_AFTER_S,
            names_operator=True,
        )

    async def fetch_payment(self, claim: ClaimRow) -> Payment:
        """Raise ApiError 503: no payment can be verified."""
        raise unavailable_error(
            "Billing is off on this server, so no payment can be verified. Keep the token and "
            f"claim again later, or {CONTACT_OPERATOR}.",
            RETRY_AFTER_S,
            names_operator=True,
        )

    async def fetch_status(self, member: MembershipRow) -> SubscriptionStatus:
        """Raise BillingError: no processor is configured."""
        raise BillingError("billing is off (SIGNALS_BILLING=off)")

    async def create_portal_url(self, member: MembershipRow, return_url: str) -> str:
        """Raise ApiError 404: there is no portal."""
        raise ApiError(
            "invalid_parameter", "Billing is off on this server: there is nothing to manage.", 404
        )

    async def verify_event(self, payload: bytes, signature: str | None) -> WebhookEvent:
        """Raise ApiError 404: no processor sends messages."""
        raise ApiError(
            "invalid_parameter", "This server accepts no webhooks: it does not sell by Stripe.", 404
        )

    async def check_prices(self) -> None:
        """Do nothing: there are no prices."""

    async def check_portal(self) -> None:
        """Do nothing: there is no portal."""

    async def close(self) -> None:
        """Do nothing: nothing is open."""
