"""Billing without a payment processor: a sandbox for development, and no sale at all."""

from typing import Literal

from access.billing.provider import (
    CONTACT_OPERATOR,
    PRICES_USD,
    BillingError,
    CheckoutSession,
    FailedPayment,
    Order,
    Payment,
    PendingPayment,
    Provider,
    SettledPayment,
    SubscriptionStatus,
)
from schemas.errors import unavailable_error
from schemas.vocabulary import DAY_MS, Clock, Mode
from store.access_rows import ClaimRow, MembershipRow, SandboxSession, SandboxStatus
from store.sql.access_store import AccessStore

SessionStatus = SandboxStatus | Literal["expired"]

SESSION_LIFETIME_MS = DAY_MS
FAILURE_REASONS: dict[SessionStatus, str] = {
    "cancelled": "was cancelled",
    "expired": "expired unpaid",
}


class SandboxBilling(Provider):
    """A Provider that stores its checkouts in the access store; `clock` returns epoch ms."""

    name = "sandbox"
    mode: Mode | None = "test"
    no_portal_reason = "A sandbox plan costs nothing"

    def __init__(self, store: AccessStore, clock: Clock, base_url: str) -> None:
        self.store = store
        self._clock = clock
        self._base_url = base_url

    async def open_session(self, order: Order) -> CheckoutSession:
        """Open a checkout; any client that has its URL can pay it."""
        # The id follows from the order, so that a repeated order opens no second checkout.
        session = SandboxSession(
            id=f"sb_{order.claim_id}",
            claim_id=order.claim_id,
            contact_email=order.contact_email,
            billing=order.billing,
            amount_usd=PRICES_USD[order.billing],
            status="open",
            expires_at=self._clock() + SESSION_LIFETIME_MS,
        )
        await self.store.create_sandbox_session(session)
        session = await self.store.find_sandbox_session(session.id) or session
        url = f"{self._base_url}/sandbox/checkout/{session.id}"
        return CheckoutSession(session.id, url, session.expires_at)

    async def fetch_payment(self, claim: ClaimRow) -> Payment:
        """Return the payment status of a checkout."""
        session = await self.store.find_sandbox_session(claim.session)
        if session is None:
            return FailedPayment("is unknown to the sandbox")
        status = self.get_status(session)
        if status == "open":
            return PendingPayment()
        if status != "paid":
            return FailedPayment(FAILURE_REASONS[status], is_unpaid=True)
        ordered = (claim.id, claim.billing, PRICES_USD[claim.billing])
        if ordered != (session.claim_id, session.billing, session.amount_usd):
            return FailedPayment("was paid for something else")
        return SettledPayment(session.id, session.id, session.contact_email)

    async def fetch_status(self, member: MembershipRow) -> SubscriptionStatus:
        """Return an active status: a sandbox subscription never ends."""
        return SubscriptionStatus()

    async def settle(self, session: SandboxSession, target: SandboxStatus) -> SessionStatus:
        """Pay or cancel an open checkout; return its status, which may differ from `target`."""
        if self.get_status(session) == "open":
            await self.store.settle_sandbox_session(session.id, target)
        # Read it again: another request may have settled it first.
        settled = await self.store.find_sandbox_session(session.id)
        return self.get_status(settled or session)

    def get_status(self, session: SandboxSession) -> SessionStatus:
        """Return the status of a checkout now: an open one past its end is expired."""
        is_expired = session.status == "open" and self._clock() >= session.expires_at
        return "expired" if is_expired else session.status


# An hour: only the operator can turn billing on.
RETRY_AFTER_S = 3600


class NoBilling(Provider):
    """A Provider that sells nothing."""

    name = "off"
    mode: Mode | None = None
    no_portal_reason = "Billing is off on this server"

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
