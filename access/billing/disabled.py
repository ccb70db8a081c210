"""No billing: the operator makes every key; what was begun with another provider waits."""

from access.billing.provider import (
    BillingError,
    CheckoutSession,
    Order,
    Payment,
    SubscriptionStatus,
    WebhookEvent,
)
from schemas.errors import ApiError, unavailable_error
from schemas.vocabulary import Mode
from store.access_rows import ClaimRow, MembershipRow

RETRY_AFTER_S = 3600


class NoBilling:
    """A Provider that sells nothing."""

    name = "off"
    mode: Mode | None = None
    has_portal = False
    accepts_special_use_email = True
    pending_ttl_ms = 0

    async def open_session(self, order: Order) -> CheckoutSession:
        """Refuse to open a checkout."""
        raise unavailable_error(
            "This server sells no keys (its billing is off): its operator makes them. Ask there, "
            "or come back later.",
            RETRY_AFTER_S,
        )

    async def fetch_payment(self, claim: ClaimRow) -> Payment:
        """Refuse to tell: nobody can be asked."""
        raise unavailable_error(
            "Billing is off on this server, so no payment can be verified. The token stays as it "
            "is: claim again later, or ask the operator.",
            RETRY_AFTER_S,
        )

    async def fetch_status(self, member: MembershipRow) -> SubscriptionStatus:
        """Refuse to tell: nobody can be asked."""
        raise BillingError("billing is off (SIGNALS_BILLING=off)")

    async def create_portal_url(self, member: MembershipRow, return_url: str) -> str:
        """Refuse to lead anywhere: there is nothing to manage."""
        raise ApiError(
            "invalid_parameter", "Nothing is sold here: there is nothing to manage.", 404
        )

    async def verify_event(self, payload: bytes, signature: str | None) -> WebhookEvent:
        """Refuse a message: no processor sends any."""
        raise ApiError("invalid_parameter", "No payment processor reports here.", 404)

    async def check_prices(self) -> None:
        """Check nothing."""

    async def check_portal(self) -> None:
        """Check nothing: there is none."""

    async def close(self) -> None:
        """Close nothing."""
