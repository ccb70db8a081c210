"""The fields that are read of Stripe's objects, and their documented values.

A response that does not fit is not Stripe's, or is newer than this code: nothing follows from it.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

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


class LineItems(Record):
    """The lines of an order."""

    object: Literal["list"]
    data: list[LineItem]


class SubscriptionItem(Record):
    """A priced part of a subscription."""

    current_period_end: EpochS
    price: Price
    quantity: int | None = None


class SubscriptionItems(Record):
    """The priced parts of a subscription."""

    data: list[SubscriptionItem]


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
    items: SubscriptionItems
    metadata: dict[str, str]
    pause_collection: dict[str, Any] | None = None


class BuyerDetails(Record):
    """What the buyer entered at Stripe."""

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
    line_items: LineItems
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


class Charges(Record):
    """A page of charges, newest first."""

    object: Literal["list"]
    data: list[Charge]
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


class Disputes(Record):
    """The disputes of a charge."""

    object: Literal["list"]
    data: list[Dispute]


class PortalConfigurations(Record):
    """The settings of the customer portal."""

    object: Literal["list"]
    data: list[Any]


class PortalSession(Record):
    """A visit to the customer portal."""

    object: Literal["billing_portal.session"]
    url: Url


class EventSubject(Record):
    """The object of a webhook; disputes name a charge, the other handled types a customer."""

    charge: Reference | None = None
    customer: Reference | None = None


class EventData(Record):
    """The part of a webhook that contains its object, an `EventSubject` if the type is handled."""

    object: dict[str, Any]


class StripeEvent(Record):
    """One webhook; its data are as of the time when Stripe sent it."""

    id: Text
    type: Text
    livemode: bool
    data: EventData
