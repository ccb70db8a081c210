"""Stripe as this service reads it: HTTP client, fields of its objects, errors and webhooks.

A response that does not fit is not Stripe's, or is newer than this code: nothing follows from it.
"""

import ssl
from collections.abc import Awaitable, Mapping
from typing import Annotated, Any, Generic, Literal, TypeVar

import anyio
import httpx2
import stripe
from pydantic import AliasPath, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from access.billing.provider import BillingError
from schemas.errors import invalid_parameter_error

Text = Annotated[str, Field(max_length=500)]
Url = Annotated[str, Field(max_length=5000, pattern=r"^https?://[!-~]+$")]
EpochS = Annotated[int, Field(ge=0, le=32_503_680_000)]  # until the year 3000
# Stripe returns a reference as an id or as the expanded object.
Reference = Annotated[
    str,
    Field(min_length=1, max_length=500),
    BeforeValidator(lambda value: value.get("id") if isinstance(value, dict) else value),
]


class Record(BaseModel):
    """Part of a Stripe object; other fields are ignored."""

    model_config = ConfigDict(frozen=True, strict=True)


ItemT = TypeVar("ItemT")


class Listing(Record, Generic[ItemT]):
    """A page of objects, newest first."""

    object: Literal["list"]
    data: list[ItemT]


class Recurrence(Record):
    """How often a price is charged."""

    interval: Text
    interval_count: int
    usage_type: Text


class Price(Record):
    """A price of the account."""

    object: Literal["price"]
    id: Text
    livemode: bool
    active: bool
    currency: Text
    unit_amount: int | None
    recurring: Recurrence | None


class OpenedSession(Record):
    """A Checkout Session as Stripe returns it to the request that creates it."""

    object: Literal["checkout.session"]
    id: Text
    client_reference_id: Text
    url: Url
    expires_at: EpochS


class LineItem(Record):
    """A line of an order."""

    price: Reference | None


class SubscriptionItem(Record):
    """A priced part of a subscription."""

    current_period_end: EpochS
    price: Price
    quantity: int | None = None


class Subscription(Record):
    """A subscription; `pause_collection` is None unless Stripe makes no attempts to charge."""

    object: Literal["subscription"]
    id: Text
    status: Literal[
        "active",
        "canceled",
        "incomplete",
        "incomplete_expired",
        "past_due",
        "paused",
        "trialing",
        "unpaid",
    ]
    cancel_at: EpochS | None
    cancel_at_period_end: bool
    items: Listing[SubscriptionItem]
    metadata: dict[str, str]
    pause_collection: dict[str, Any] | None = None


class BuyerDetails(Record):
    """The fields that a buyer filled in at Stripe."""

    email: Text | None = None


class Session(Record):
    """A Checkout Session with its line items and its subscription expanded."""

    object: Literal["checkout.session"]
    id: Text
    client_reference_id: Text | None
    livemode: bool
    mode: Literal["payment", "setup", "subscription"]
    status: Literal["complete", "expired", "open"]
    payment_status: Literal["no_payment_required", "paid", "unpaid"]
    currency: Text | None
    amount_total: int | None
    line_items: Listing[LineItem]
    subscription: Subscription | None
    metadata: dict[str, str]
    customer: Reference | None
    customer_details: BuyerDetails | None = None
    customer_email: Text | None = None


class Charge(Record):
    """A charge of a customer; `paid` if it succeeded."""

    object: Literal["charge"]
    id: Text
    created: EpochS
    paid: bool
    customer: Reference | None
    refunded: bool
    disputed: bool


class Charges(Listing[Charge]):
    """A page of charges, which may not be the last one."""

    has_more: bool


class DisputedCard(Record):
    """The card of a disputed charge."""

    case_type: Text | None = None


class DisputeDetails(Record):
    """The payment method of a disputed charge."""

    card: DisputedCard | None = None


class Dispute(Record):
    """A dispute or an inquiry about a charge."""

    object: Literal["dispute"]
    charge: Reference
    status: Literal[
        "lost",
        "needs_response",
        "prevented",
        "under_review",
        "warning_closed",
        "warning_needs_response",
        "warning_under_review",
        "won",
    ]
    payment_method_details: DisputeDetails | None = None


class PortalSession(Record):
    """A visit to the customer portal."""

    object: Literal["billing_portal.session"]
    url: Url


class EventSubject(Record):
    """The object of a webhook; disputes name a charge, the other handled types a customer."""

    charge: Reference | None = None
    customer: Reference | None = None


class StripeEvent(Record):
    """One webhook; its object is an `EventSubject` if the type is handled, as it was then."""

    id: Text
    type: Text
    livemode: bool
    object: dict[str, Any] = Field(validation_alias=AliasPath("data", "object"))


MAX_CONNECTIONS = 100
# The longest response is a page of 100 charges, about 400 KB.
MAX_RESPONSE_BYTES = 1_000_000


class BoundedHttpClient(stripe.HTTPClient):
    """Sends requests without following redirects; `timeout_s` bounds each wait for the network.

    A slow response can take any number of such waits, so callers need a deadline of their own.
    """

    name = "httpx2"

    def __init__(self, timeout_s: float, proxy: tuple[str, str] | None = None) -> None:
        """`proxy` is the variable that names a proxy, and its address."""
        super().__init__()
        self._proxy_variable = None if proxy is None else proxy[0]
        transport = httpx2.AsyncHTTPTransport(
            verify=ssl.create_default_context(cafile=stripe.ca_bundle_path),
            limits=httpx2.Limits(max_connections=MAX_CONNECTIONS, max_keepalive_connections=20),
            proxy=None if proxy is None else proxy[1],
        )
        self._client = httpx2.AsyncClient(
            transport=transport, timeout=timeout_s, follow_redirects=False
        )

    def sleep_async(self, secs: float) -> Awaitable[None]:
        """Wait before a retry."""
        return anyio.sleep(secs)

    async def request_async(
        self, method: str, url: str, headers: Mapping[str, str], post_data: Any = None
    ) -> tuple[bytes, int, Mapping[str, str]]:
        """Return body, status and headers; raise BillingError if the body exceeds its bound."""
        # A few compressed bytes can expand to any length, so compression is declined.
        sent = {**headers, "Accept-Encoding": "identity"}
        try:
            async with self._client.stream(
                method, url, headers=sent, content=post_data or b""
            ) as response:
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    raise BillingError(
                        "Stripe: the response is compressed, which the request declined"
                    )
                body = bytearray()
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > MAX_RESPONSE_BYTES:
                        raise BillingError(
                            f"Stripe: the response exceeds {MAX_RESPONSE_BYTES} bytes"
                        )
        except httpx2.HTTPError as error:
            # Its code is logged.
            failure = stripe.APIConnectionError(  # type: ignore[no-untyped-call]
                "",
                code=self._proxy_variable
                and f"through the proxy that {self._proxy_variable} names",
                should_retry=True,
            )
            raise failure from error
        return bytes(body), response.status_code, response.headers

    async def close_async(self) -> None:
        """Close all connections; idempotent."""
        await self._client.aclose()


RecordT = TypeVar("RecordT", bound=Record)


class RefusedError(BillingError):
    """Stripe responded with an error; `param` is the rejected parameter, if there is one."""

    def __init__(self, message: str, status: int, param: str | None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


class NotFoundError(RefusedError):
    """Stripe does not know the requested object."""


async def call_stripe(
    request: Awaitable[stripe.StripeObject], kind: type[RecordT], id_: str | None = None
) -> RecordT:
    """Return Stripe's response, which must be of a kind and have the id, if one is given.

    Raise BillingError, with type, status, code and request id only, for any other response.
    """
    try:
        record = kind.model_validate((await request).to_dict())
    except stripe.StripeError as error:
        status, cause = error.http_status, error.__cause__
        facts = [
            type(error).__name__,
            cause and type(cause).__name__,
            status and f"HTTP {status}",
            error.code,
            error.request_id,
        ]
        message = f"Stripe: {', '.join(_shorten(fact) for fact in facts if fact)}"
        # Without the cause: Stripe's messages quote e-mail addresses, which must not be logged.
        if status is None:
            raise BillingError(message) from None
        body = error.json_body.get("error") if isinstance(error.json_body, dict) else None
        # Reported by Stripe itself, and not by a proxy before it.
        is_unknown = (
            status == 404
            and isinstance(body, dict)
            and (body.get("type"), body.get("code"))
            == ("invalid_request_error", "resource_missing")
        )
        refusal = NotFoundError if is_unknown else RefusedError
        raise refusal(message, status, getattr(error, "param", None)) from None
    except BillingError:
        raise
    except ValidationError as error:
        # The kind and path of the first field that does not fit, without its value.
        detail = error.errors(include_url=False, include_context=False, include_input=False)[0]
        path = ".".join(map(str, detail["loc"]))
        raise BillingError(
            f"Stripe: unreadable response, {error.title} {path}: {detail['type']}"
        ) from None
    # The library fails with almost anything on JSON that is not Stripe's, such as a proxy's.
    except Exception as error:
        raise BillingError(f"Stripe: unreadable response, {type(error).__name__}") from None
    if id_ is not None and getattr(record, "id", None) != id_:
        raise BillingError(f"Stripe: the response is another {kind.__name__}, not {id_}")
    return record


def _shorten(fact: object) -> str:
    """Return a part of a foreign response as one short line for the log."""
    text = str(fact)[:80]
    return text if text.isprintable() else ascii(text)


def diff_fields(found: BaseModel, expected: Mapping[str, object]) -> list[str]:
    """Return a description of each field that differs from its expected value."""
    return [
        f"{name} is {_shorten(actual)}, expected {value}"
        for name, value in expected.items()
        if (actual := getattr(found, name)) != value
    ]


TOLERANCE_S = 300
EVENT_TYPES = (
    "charge.dispute.closed",
    "charge.dispute.created",
    "charge.dispute.funds_withdrawn",
    "charge.dispute.updated",
    "charge.refunded",
    "customer.subscription.deleted",
    "customer.subscription.paused",
    "customer.subscription.resumed",
    "customer.subscription.updated",
)


def parse_event(
    payload: bytes, signature: str | None, secret: str, now_s: int
) -> tuple[StripeEvent, EventSubject]:
    """Return the event of a signed webhook and its object, empty unless it is of EVENT_TYPES.

    Raise ApiError 400 unless Stripe signed the payload within TOLERANCE_S of now.
    """
    if not signature:
        raise invalid_parameter_error(
            "The header Stripe-Signature is missing: only webhooks that Stripe signed are accepted."
        )
    try:
        stripe.WebhookSignature.verify_header(payload, signature, secret)
        signed_at_s = next(part[2:] for part in signature.split(",") if part.startswith("t="))
        age_s = now_s - int(signed_at_s)
    # The library raises ValueError or TypeError if the payload is not UTF-8 text.
    except (stripe.SignatureVerificationError, ValueError, TypeError):
        raise invalid_parameter_error(
            "Stripe-Signature does not sign this body: SIGNALS_STRIPE_WEBHOOK_SECRET must be the "
            "signing secret of this endpoint."
        ) from None
    # The library's own tolerance accepts timestamps in the future.
    if abs(age_s) > TOLERANCE_S:
        direction = "ago" if age_s > 0 else "in the future"
        raise invalid_parameter_error(
            f"The message was signed {abs(age_s)} seconds {direction}; at most {TOLERANCE_S} are "
            "accepted: check the clock of this server, then resend the event."
        )
    try:
        event = StripeEvent.model_validate_json(payload)
        is_handled = event.type in EVENT_TYPES
        return event, EventSubject.model_validate(event.object if is_handled else {})
    except ValueError:
        raise invalid_parameter_error(
            "The body is not a Stripe event: register the endpoint for snapshot events, such as "
            f"{EVENT_TYPES[0]}."
        ) from None
