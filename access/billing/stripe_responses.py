"""Translates Stripe's errors, and reads fields of its objects."""

from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

import stripe

from access.billing.provider import BillingError, SubscriptionStatus

ResponseT = TypeVar("ResponseT")


class RefusedError(BillingError):
    """Stripe responded with an error; `param` is the rejected parameter, if there is one."""

    def __init__(self, message: str, status: int, param: str | None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param


class NotFoundError(RefusedError):
    """Stripe does not know the requested object."""


async def call_stripe(request: Awaitable[ResponseT]) -> ResponseT:
    """Return Stripe's response; raise BillingError with type, status, code and request id only."""
    try:
        return await request
    except stripe.StripeError as error:
        # Without the cause: Stripe's messages quote e-mail addresses, which must not be logged.
        raise _to_billing_error(error) from None
    # The library fails with these on JSON that is not Stripe's, such as a proxy's.
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise BillingError(f"Stripe: unreadable response, {type(error).__name__}") from None


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
    """Return a description of each field that differs from its expected value."""
    return [
        f"{name} is {actual}, expected {value}"
        for name, value in expected.items()
        if (actual := getattr(found, name, None)) != value
    ]


def parse_renewal(subscription: stripe.Subscription) -> SubscriptionStatus:
    """Return when an active subscription renews or ends."""
    ends_s = subscription.cancel_at
    if ends_s is None:
        # Stripe moved the period from the subscription to its items.
        periods = [item.current_period_end for item in subscription["items"].data]
        ends_s = min(periods, default=None)
    at = None if ends_s is None else ends_s * 1000
    is_last = subscription.cancel_at is not None or subscription.cancel_at_period_end
    return SubscriptionStatus(ends_at=at) if is_last else SubscriptionStatus(renews_at=at)


def get_id(reference: Any) -> str | None:
    """Return the id of a reference, which Stripe returns as an id or an expanded object."""
    return reference if isinstance(reference, str) or reference is None else str(reference.id)


def format_status(status: str) -> str:
    """Return a Stripe status in words, for use in a sentence."""
    return status.replace("_", " ")
