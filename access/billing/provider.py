"""What a billing provider must do: open a checkout, and give the processor's word on it later."""

from dataclasses import dataclass
from typing import Protocol

from schemas.operator_error import OperatorError
from schemas.vocabulary import Billing, Mode
from store.access_rows import ClaimRow, MembershipRow

RETRY_AFTER_S = 30


class BillingError(Exception):
    """The processor cannot be asked at the moment; nothing is lost, come back later.

    The text is for the operator's log: no key, token or body stands in it.
    """


class BillingSetupError(OperatorError):
    """A mistake of the operator's about billing, told in one line without any secret."""


@dataclass(frozen=True, slots=True)
class Order:
    """What somebody wants to buy; `claim_id` names it towards the processor, it is no secret."""

    claim_id: str
    contact_email: str
    billing: Billing
    agent_name: str | None


@dataclass(frozen=True, slots=True)
class CheckoutSession:
    """A checkout as the processor opened it; `expires_at` is epoch ms."""

    id: str
    url: str
    expires_at: int


@dataclass(frozen=True, slots=True)
class SettledPayment:
    """This very session is paid, for the plan, amount and mode ordered, and still in force."""

    subscription: str
    customer: str
    contact_email: str


@dataclass(frozen=True, slots=True)
class PendingPayment:
    """The payment has not settled."""


@dataclass(frozen=True, slots=True)
class FailedPayment:
    """No payment will ever come of this session; `reason` goes into a sentence, for the buyer."""

    reason: str


Payment = SettledPayment | PendingPayment | FailedPayment


@dataclass(frozen=True, slots=True)
class SubscriptionStatus:
    """The processor's word on a membership now; times are epoch ms.

    While it is in force it is paid for anew at `renews_at`, or ends at `ends_at`; both are None
    where the processor names no time. `ended_reason` is why it is over, None while it is in force.
    """

    renews_at: int | None = None
    ends_at: int | None = None
    ended_reason: str | None = None


@dataclass(frozen=True, slots=True)
class WebhookEvent:
    """A verified message of the processor's, and whose standing to ask for because of it."""

    id: str
    customer: str | None


class Provider(Protocol):
    """One way of billing; every verb that asks the processor may raise BillingError."""

    name: str
    mode: Mode | None
    has_portal: bool
    accepts_special_use_email: bool
    pending_ttl_ms: int

    async def open_session(self, order: Order) -> CheckoutSession:
        """Open a checkout; asked again with the same order, the processor opens no second one."""

    async def fetch_payment(self, claim: ClaimRow) -> Payment:
        """Return the processor's word on a checkout."""

    async def fetch_status(self, member: MembershipRow) -> SubscriptionStatus:
        """Return the processor's word on a membership."""

    async def create_portal_url(self, member: MembershipRow, return_url: str) -> str:
        """Return an address at the processor's where a member manages what was bought.

        It is the member's alone and short-lived: send the browser there at once. ApiError 404 where
        this provider has no portal.
        """

    async def verify_event(self, payload: bytes, signature: str | None) -> WebhookEvent:
        """Return what a message that claims to come from the processor tells.

        ApiError 400 where its signature is not the processor's, 404 where this provider sends none.
        """

    async def check_prices(self) -> None:
        """Hold the plan against the processor's prices; BillingSetupError names what differs."""

    async def check_portal(self) -> None:
        """See that members get into the portal; BillingSetupError says what keeps them out."""

    async def close(self) -> None:
        """Close what is open towards the processor; idempotent."""
