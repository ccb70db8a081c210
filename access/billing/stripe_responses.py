"""Translates Stripe's errors, and reads fields of its objects."""

from collections.abc import Awaitable, Mapping
from typing import TypeVar

import stripe
from pydantic import BaseModel, ValidationError

from access.billing.provider import BillingError, SubscriptionStatus
from access.billing.stripe_records import Record, Subscription

RecordT = TypeVar("RecordT", bound=Record)

MAX_FACT_CHARS = 80


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
        # Without the cause: Stripe's messages quote e-mail addresses, which must not be logged.
        raise _to_billing_error(error) from None
    except BillingError:
        raise
    except ValidationError as error:
        raise BillingError(f"Stripe: unreadable response, {_locate(error)}") from None
    # The library fails with almost anything on JSON that is not Stripe's, such as a proxy's.
    except Exception as error:
        raise BillingError(f"Stripe: unreadable response, {type(error).__name__}") from None
    if id_ is not None and getattr(record, "id", None) != id_:
        raise BillingError(f"Stripe: the response is another {kind.__name__}, not {id_}")
    return record


def _locate(error: ValidationError) -> str:
    """Return kind and path of the first field that does not fit, without its value."""
    detail = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{error.title} {'.'.join(map(str, detail['loc']))}: {detail['type']}"


def _to_billing_error(error: stripe.StripeError) -> BillingError:
    status = error.http_status
    cause = error.__cause__ and type(error.__cause__).__name__
    http = status and f"HTTP {status}"
    facts = [type(error).__name__, cause, http, error.code, error.request_id]
    message = f"Stripe: {', '.join(_shorten(fact) for fact in facts if fact)}"
    if status is None:
        return BillingError(message)
    kind = NotFoundError if _is_unknown_object(error) else RefusedError
    return kind(message, status, getattr(error, "param", None))


def _is_unknown_object(error: stripe.StripeError) -> bool:
    """Return whether Stripe itself, and not a proxy before it, reports an unknown object."""
    body = error.json_body.get("error") if isinstance(error.json_body, dict) else None
    return (
        error.http_status == 404
        and isinstance(body, dict)
        and (body.get("type"), body.get("code")) == ("invalid_request_error", "resource_missing")
    )


def _shorten(fact: object) -> str:
    """Return a part of a foreign response as one short line for the log."""
    text = str(fact)[:MAX_FACT_CHARS]
    return text if text.isprintable() else ascii(text)


def diff_fields(found: BaseModel, expected: Mapping[str, object]) -> list[str]:
    """Return a description of each field that differs from its expected value."""
    return [
        f"{name} is {_shorten(actual)}, expected {value}"
        for name, value in expected.items()
        if (actual := getattr(found, name)) != value
    ]


def parse_renewal(subscription: Subscription) -> SubscriptionStatus:
    """Return when an active subscription renews or ends."""
    ends_s = subscription.cancel_at
    if ends_s is None:
        # Stripe moved the period from the subscription to its items.
        ends_s = min((item.current_period_end for item in subscription.items.data), default=None)
    at = None if ends_s is None else ends_s * 1000
    is_last = subscription.cancel_at is not None or subscription.cancel_at_period_end
    return SubscriptionStatus(ends_at=at) if is_last else SubscriptionStatus(renews_at=at)


def format_status(status: str) -> str:
    """Return a Stripe status in words, for use in a sentence."""
    return status.replace("_", " ")
