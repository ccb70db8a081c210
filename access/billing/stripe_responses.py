"""Stripe's answers as billing reads them: what is right, what differs, what failed and how."""

from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

import stripe

from access.billing.provider import BillingError, SubscriptionStatus

ResponseT = TypeVar("ResponseT")


class RefusedError(BillingError):
    """Stripe answers with a failure; `param` names what it refuses, where it refuses something."""

    def __init__(self, message: str, status: int, param: str | None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


class NotFoundError(RefusedError):
    """Stripe does not know the object that was asked for."""


async def call_stripe(request: Awaitable[ResponseT]) -> ResponseT:
    """Return Stripe's answer; BillingError, without Stripe's own words: they quote addresses."""
    try:
        return await request
    except stripe.StripeError as error:
        raise _to_billing_error(error) from None
    # The library stumbles over JSON that is not Stripe's, such as a proxy's.
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise BillingError(f"Stripe: no answer of its own, {type(error).__name__}") from None


def _to_billing_error(error: stripe.StripeError) -> BillingError:
    status = error.http_status
    cause = error.__cause__ and type(error.__cause__).__name__
    http = status and f"HTTP {status}"
    facts = [type(error).__name__, cause, http, error.code, error.request_id]
    message = f"Stripe: {', '.join(str(fact) for fact in facts if fact)}"
    if status is None:
        return BillingError(message)
    kind = NotFoundError if error.code == "resource_missing" else RefusedError
    return kind(message, status, getattr(error, "param", None))


def diff_fields(found: stripe.StripeObject, expected: Mapping[str, object]) -> list[str]:
    """Return each field of an object that is not as expected, in words."""
    return [
        f"{name} is {actual}, expected {value}"
        for name, value in expected.items()
        if (actual := getattr(found, name, None)) != value
    ]


def parse_renewal(subscription: stripe.Subscription) -> SubscriptionStatus:
    """Return when a subscription that is in force is paid for anew, or ends."""
    ends_s = subscription.cancel_at
    if ends_s is None:
        periods = [item.current_period_end for item in subscription["items"].data]
        ends_s = min(periods, default=None)
    at = None if ends_s is None else ends_s * 1000
    is_last = subscription.cancel_at is not None or subscription.cancel_at_period_end
    return SubscriptionStatus(ends_at=at) if is_last else SubscriptionStatus(renews_at=at)


def get_id(reference: Any) -> str | None:
    """Return the id of what Stripe gives as an id or as the whole object."""
    return reference if isinstance(reference, str) or reference is None else str(reference.id)


def format_status(status: str) -> str:
    """Return a status of Stripe's for a sentence."""
    return status.replace("_", " ")
