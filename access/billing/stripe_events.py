"""Stripe's webhooks: the handled event types, and verification of signature and age."""

from collections.abc import Callable
from typing import TypeVar

import stripe

from access.billing.stripe_records import EventSubject, Record, StripeEvent
from schemas.errors import invalid_parameter_error

RecordT = TypeVar("RecordT", bound=Record)

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


def parse_event(payload: bytes, signature: str | None, secret: str, now_s: int) -> StripeEvent:
    """Return the event of a signed webhook; raise ApiError 400 for any other message."""
    _verify_signature(payload, signature, secret, now_s)
    return _read_event(lambda: StripeEvent.model_validate_json(payload))


def parse_subject(event: StripeEvent) -> EventSubject:
    """Return the object of an event of EVENT_TYPES; raise ApiError 400 if it is not a snapshot."""
    return _read_event(lambda: EventSubject.model_validate(event.data.object))


def _read_event(parse: Callable[[], RecordT]) -> RecordT:
    try:
        return parse()
    except ValueError:
        raise invalid_parameter_error(
            "The body is not a Stripe event: register the endpoint for snapshot events, such as "
            f"{EVENT_TYPES[0]}."
        ) from None


def _verify_signature(payload: bytes, signature: str | None, secret: str, now_s: int) -> None:
    """Raise ApiError 400 unless Stripe signed the payload within TOLERANCE_S of now."""
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
