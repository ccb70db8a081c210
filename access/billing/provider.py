"""The only plan and its prices, and the providers that sell it without a payment processor.

They are a sandbox for development, and no sale at all.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from schemas.errors import ApiError, HowToGetAccess, OperatorError, unavailable_error
from schemas.purchase import CLAIM_POLL_DURATION_S, CLAIM_POLL_INTERVAL_S
from schemas.vocabulary import DAY_MS, Billing, Clock, Mode
from store.access_rows import ClaimRow, MembershipRow, SandboxSession, SandboxStatus
from store.sql.access_store import AccessStore

RETRY_AFTER_S = 30
# Only the operator can turn billing on.
HOUR_S = 3600


class BillingError(Exception):
    """The processor is unavailable or failed; retrying later loses nothing.

    The message is for the operator's log and contains no key, token or body.
    """


class BillingSetupError(OperatorError):
    """Billing is misconfigured; the message is one line for the operator, without any secret."""


@dataclass(frozen=True, slots=True)
class Order:
    """A requested purchase; `claim_id` identifies it at the processor and is not secret."""

    claim_id: str
    contact_email: str
    billing: Billing
    agent_name: str | None


@dataclass(frozen=True, slots=True)
class SettledPayment:
    """The session is paid as ordered (plan, amount, mode), and its subscription is active."""

    subscription: str
    customer: str
    contact_email: str


@dataclass(frozen=True, slots=True)
class PendingPayment:
    """The payment has not settled."""


@dataclass(frozen=True, slots=True)
class FailedPayment:
    """The session gives no key; `reason` completes the sentence "this checkout ...".

    `is_unpaid`: the processor reports that nothing was paid and that nothing can be paid any more.
    `may_be_paid`: the buyer must not pay again before the operator has looked at it.
    """

    reason: str
    is_unpaid: bool = False
    may_be_paid: bool = False


@dataclass(frozen=True, slots=True)
class HeldPayment:
    """The session opened a subscription that continues but gives no access; `reason` says why."""

    reason: str


Payment = SettledPayment | PendingPayment | FailedPayment | HeldPayment


@dataclass(frozen=True, slots=True)
class SubscriptionStatus:
    """The current status of a membership at the processor; times are epoch ms.

    An active membership renews at `renews_at` or ends at `ends_at`; both are None if the processor
    reports no time. `ended_reason` is None while the membership is active. `is_final` if an ended
    subscription can never be paid again. `due_reason` is why an active one ends at `ends_at`
    unless it is paid. `is_known` is false if the processor knows no such subscription.
    """

    renews_at: int | None = None
    ends_at: int | None = None
    ended_reason: str | None = None
    is_final: bool = False
    due_reason: str | None = None
    is_known: bool = True

    @property
    def is_paid(self) -> bool:
        """Whether the subscription is active and nothing is due."""
        return self.is_known and self.ended_reason is None and self.due_reason is None


class Provider(ABC):
    """A billing provider; any method that queries the processor can raise BillingError.

    `mode` is None if nothing is sold. A payment that is not settled is cached for `pending_ttl_ms`.
    The methods with a body are those of a provider without a payment processor.
    """

    name: str
    mode: Mode | None
    has_portal: bool = False
    no_portal_reason: str = ""
    accepts_special_use_email: bool = True
    pending_ttl_ms: int = 0

    @abstractmethod
    async def open_session(self, order: Order) -> tuple[str, str, int]:
        """Open a checkout; return its id, its URL, and when it expires (epoch ms).

        Repeating the call with the same order opens no second one.
        """

    @abstractmethod
    async def fetch_payment(self, claim: ClaimRow) -> Payment:
        """Return the payment status of a checkout."""

    @abstractmethod
    async def fetch_status(self, member: MembershipRow) -> SubscriptionStatus:
        """Return the status of a membership."""

    async def create_portal_url(self, member: MembershipRow, return_url: str) -> str:
        """Return the URL of the processor's portal, where a member manages a subscription.

        The URL is secret and short-lived: redirect the browser at once. Raise ApiError 404 if this
        provider has no portal.
        """
        raise ApiError(
            "invalid_parameter", f"{self.no_portal_reason}: there is nothing to manage.", 404
        )

    async def verify_event(self, payload: bytes, signature: str | None) -> tuple[str, str | None]:
        """Verify a webhook message; return its id, and whose memberships to check, if anyone's.

        Raise ApiError 400 if its signature is not valid, 404 if this provider sends no messages.
        """
        raise ApiError(
            "invalid_parameter", "This server accepts no webhooks: it does not sell by Stripe.", 404
        )

    async def check_prices(self) -> None:  # noqa: B027
        """Compare the processor's prices to the plan; raise BillingSetupError if they differ."""

    async def check_portal(self) -> None:  # noqa: B027
        """Check that the portal can be opened; raise BillingSetupError with the cause if not."""

    async def close(self) -> None:  # noqa: B027
        """Close connections to the processor; idempotent."""


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


SessionStatus = SandboxStatus | Literal["expired"]

SESSION_LIFETIME_MS = DAY_MS


class SandboxBilling(Provider):
    """A Provider that stores its checkouts in the access store; `clock` returns epoch ms."""

    name = "sandbox"
    mode: Mode | None = "test"
    no_portal_reason = "A sandbox plan costs nothing"

    def __init__(self, store: AccessStore, clock: Clock, base_url: str) -> None:
        self.store = store
        self._clock = clock
        self._base_url = base_url

    async def open_session(self, order: Order) -> tuple[str, str, int]:
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
        return session.id, f"{self._base_url}/sandbox/checkout/{session.id}", session.expires_at

    async def fetch_payment(self, claim: ClaimRow) -> Payment:
        """Return the payment status of a checkout."""
        session = await self.store.find_sandbox_session(claim.session)
        if session is None:
            return FailedPayment("is unknown to the sandbox")
        status = self.get_status(session)
        if status == "open":
            return PendingPayment()
        if status != "paid":
            reason = "expired unpaid" if status == "expired" else "was cancelled"
            return FailedPayment(reason, is_unpaid=True)
        ordered = (claim.id, claim.billing, PRICES_USD[claim.billing])
        if ordered != (session.claim_id, session.billing, session.amount_usd):
            return FailedPayment("was paid for something else", may_be_paid=True)
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


class NoBilling(Provider):
    """A Provider that sells nothing."""

    name = "off"
    mode: Mode | None = None
    no_portal_reason = "Billing is off on this server"

    async def open_session(self, order: Order) -> tuple[str, str, int]:
        """Raise ApiError 503: nothing is sold."""
        raise unavailable_error(
            "This server does not sell keys (billing is off). Request a key from its operator, "
            "for example with POST /api/v1/access-request, or retry later.",
            HOUR_S,
            names_operator=True,
        )

    async def fetch_payment(self, claim: ClaimRow) -> Payment:
        """Raise ApiError 503: no payment can be verified."""
        raise unavailable_error(
            "Billing is off on this server, so no payment can be verified. Keep the token and "
            f"claim again later, or {CONTACT_OPERATOR}.",
            HOUR_S,
            names_operator=True,
        )

    async def fetch_status(self, member: MembershipRow) -> SubscriptionStatus:
        """Raise BillingError: no processor is configured."""
        raise BillingError("billing is off (SIGNALS_BILLING=off)")
