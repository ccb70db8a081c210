"""The only plan and its prices, and the base of the providers that sell it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from schemas.errors import ApiError, HowToGetAccess, OperatorError
from schemas.purchase import CLAIM_POLL_DURATION_S, CLAIM_POLL_INTERVAL_S
from schemas.vocabulary import Billing, Mode
from store.access_rows import ClaimRow, MembershipRow

RETRY_AFTER_S = 30


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
class CheckoutSession:
    """A checkout that the processor opened; `expires_at` is epoch ms."""

    id: str
    url: str
    expires_at: int


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
    """

    reason: str
    is_unpaid: bool = False


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


@dataclass(frozen=True, slots=True)
class WebhookEvent:
    """A verified webhook; `customer` is whose memberships to check, None if there are none."""

    id: str
    customer: str | None


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
    async def open_session(self, order: Order) -> CheckoutSession:
        """Open a checkout; repeating the call with the same order opens no second one."""

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

    async def verify_event(self, payload: bytes, signature: str | None) -> WebhookEvent:
        """Verify a webhook message and return its event.

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
