"""Billing without money, for one machine: its books are in the store, its pay page is our own."""

import secrets
from typing import Literal

from access.billing.provider import (
    CheckoutSession,
    FailedPayment,
    Order,
    Payment,
    PendingPayment,
    SettledPayment,
    SubscriptionStatus,
    WebhookEvent,
)
from access.plan import PRICES_USD
from schemas.clock import Clock
from schemas.errors import ApiError
from schemas.vocabulary import DAY_MS, Mode
from store.access_rows import ClaimRow, MembershipRow, SandboxSession, SandboxStatus
from store.sql.access_store import AccessStore

SessionStatus = SandboxStatus | Literal["expired"]

SESSION_LIFETIME_MS = DAY_MS
FAILURE_REASONS: dict[SessionStatus, str] = {
    "cancelled": "was cancelled",
    "expired": "expired unpaid",
}


class SandboxBilling:
    """A Provider that keeps its books in the access store; `clock` tells epoch ms."""

    name = "sandbox"
    mode: Mode | None = "test"
    has_portal = False
    accepts_special_use_email = True
    pending_ttl_ms = 0

    def __init__(self, store: AccessStore, clock: Clock, base_url: str) -> None:
        self._store = store
        self._clock = clock
        self._base_url = base_url

    async def open_session(self, order: Order) -> CheckoutSession:
        """Open a checkout in the books; whoever has its address can pay it."""
        session = SandboxSession(
            id=f"sb_{secrets.token_urlsafe(24)}",
            claim_id=order.claim_id,
            contact_email=order.contact_email,
            billing=order.billing,
            amount_usd=PRICES_USD[order.billing],
            status="open",
            expires_at=self._clock() + SESSION_LIFETIME_MS,
        )
        await self._store.create_sandbox_session(session)
        url = f"{self._base_url}/sandbox/checkout/{session.id}"
        return CheckoutSession(session.id, url, session.expires_at)

    async def fetch_payment(self, claim: ClaimRow) -> Payment:
        """Return what the books say of a checkout."""
        session = await self.find_session(claim.session)
        if session is None:
            return FailedPayment("is not in the sandbox's books")
        status = self.get_status(session)
        if status == "open":
            return PendingPayment()
        if status != "paid":
            return FailedPayment(FAILURE_REASONS[status])
        ordered = (claim.id, claim.billing, PRICES_USD[claim.billing])
        if ordered != (session.claim_id, session.billing, session.amount_usd):
            return FailedPayment("was paid for something else")
        return SettledPayment(session.id, session.id, session.contact_email)

    async def fetch_status(self, member: MembershipRow) -> SubscriptionStatus:
        """Return that it is in force: a sandbox subscription goes on for ever, unpaid."""
        return SubscriptionStatus()

    async def create_portal_url(self, member: MembershipRow, return_url: str) -> str:
        """Refuse to lead anywhere: there is nothing to manage."""
        raise ApiError(
            "invalid_parameter",
            "Nobody paid for a plan of the sandbox: there is nothing to manage.",
            404,
        )

    async def verify_event(self, payload: bytes, signature: str | None) -> WebhookEvent:
        """Refuse a message: the sandbox sends none."""
        raise ApiError("invalid_parameter", "No payment processor reports here.", 404)

    async def check_prices(self) -> None:
        """Check nothing: the books hold the plan's own prices."""

    async def check_portal(self) -> None:
        """Check nothing: there is none."""

    async def close(self) -> None:
        """Close nothing."""

    async def find_session(self, session_id: str) -> SandboxSession | None:
        """Return a checkout of the books."""
        return await self._store.find_sandbox_session(session_id)

    async def settle(self, session: SandboxSession, target: SandboxStatus) -> SessionStatus:
        """Pay or cancel a checkout that is open; return what it is now, wanted or not."""
        if self.get_status(session) == "open":
            await self._store.settle_sandbox_session(session.id, target)
        settled = await self.find_session(session.id)
        return self.get_status(settled or session)

    def get_status(self, session: SandboxSession) -> SessionStatus:
        """Return what a checkout is at this time."""
        is_expired = session.status == "open" and self._clock() >= session.expires_at
        return "expired" if is_expired else session.status
