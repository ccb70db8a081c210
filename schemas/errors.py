"""The error body that both transports return, its exception, and the base of operator errors."""

import traceback
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from schemas.operator import Operator
from schemas.vocabulary import Billing, ErrorCode, Uri

if TYPE_CHECKING:
    from schemas.usage import QuotaUsage


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class HowToGetAccess(_Closed):
    """How to buy an API key, and its price."""

    steps: list[str] = Field(description="The purchase flow, in order, with absolute addresses.")
    plan: Literal["premium"]
    price_usd: dict[Billing, int] = Field(description="Price of one billing period in USD.")


class ErrorBody(_Closed):
    """The body of every error response."""

    error: ErrorCode = Field(description="Stable error code.")
    message: str = Field(description="What went wrong, what is accepted, what to do next.")
    how_to_get_access: HowToGetAccess | SkipJsonSchema[None] = Field(
        default=None,
        description="If authentication failed and keys are sold: how to buy one, and the price.",
    )
    docs: Uri = Field(description="URL of the manifest, which describes the whole API.")


class ApiError(Exception):
    """An error meant for the caller, with its HTTP status on REST.

    `quota` is the key's remaining quota. It is set if the key is live or was revoked. `outcome` is
    the label of the error in metrics, by default its code. If `names_operator`, callers see the
    operator's name and contact after the message.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        status: int,
        *,
        retry_after_s: int | None = None,
        quota: "QuotaUsage | None" = None,
        outcome: str | None = None,
        names_operator: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.retry_after_s = retry_after_s
        self.quota = quota
        self.outcome = outcome or code
        self.names_operator = names_operator

    @property
    def retry_headers(self) -> dict[str, str]:
        """The header that says when to repeat the request, none if that is not known."""
        return {} if self.retry_after_s is None else {"Retry-After": str(self.retry_after_s)}

    def describe(self, operator: Operator) -> str:
        """Return the message as the users of an operator see it."""
        return operator.complete(self.message) if self.names_operator else self.message


class NotBuiltError(ApiError):
    """The error `unavailable` until the first start has built the history.

    `percent` of the history is built, and `reason` is the message without what to do next.
    """

    def __init__(self, reason: str, retry_after_s: int, percent: int) -> None:
        message = f"{reason} Retry after {retry_after_s} seconds."
        super().__init__("unavailable", message, 503, retry_after_s=retry_after_s)
        self.reason = reason
        self.percent = percent


def forget_frames(error: Exception) -> None:
    """Drop what an error was raised from, before it is kept."""
    # The frames of a traceback hold the arguments of the request, and often the error again: a
    # cycle, which would stay in memory until a full collection.
    error.__traceback__ = error.__cause__ = error.__context__ = None


def invalid_parameter_error(message: str) -> ApiError:
    """Return a 400 error for a bad argument, body or path."""
    return ApiError("invalid_parameter", message, 400)


def unavailable_error(
    message: str, retry_after_s: int, *, names_operator: bool = False
) -> ApiError:
    """Return a 503 error for a request that can succeed after `retry_after_s` seconds."""
    return ApiError(
        "unavailable", message, 503, retry_after_s=retry_after_s, names_operator=names_operator
    )


def rate_limited_error(
    message: str,
    retry_after_s: int,
    *,
    quota: "QuotaUsage | None" = None,
    outcome: str | None = None,
) -> ApiError:
    """Return a 429 error, for a limit that is used up for now."""
    return ApiError(
        "rate_limited", message, 429, retry_after_s=retry_after_s, quota=quota, outcome=outcome
    )


def describe_failure(error: BaseException) -> dict[str, str]:
    """Return the type of a failure, and its message or its location, for the log.

    Only the messages of operator errors, such as those of a store, are free of values. Others can
    contain API keys and arguments, as local variables can, so neither is logged. structlog's
    console renderer would print locals if rich is installed.
    """
    if isinstance(error, OperatorError):
        return {"failure": type(error).__name__, "cause": str(error)}
    location = "".join(traceback.format_tb(error.__traceback__))
    return {"failure": type(error).__name__, "where": location}


class OperatorError(Exception):
    """Base class of operator errors; the message names the fault and its remedy."""


class ArgumentsError(OperatorError):
    """Wrong arguments of a command, which ends with status 2."""
