"""The one error shape of SPEC.md, and the exception that carries it through both transports."""

import traceback
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from schemas.vocabulary import Billing, ErrorCode, Uri

if TYPE_CHECKING:
    from schemas.usage import QuotaUsage


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")


class HowToGetAccess(_Closed):
    """How an API key is bought, and what it costs."""

    steps: list[str] = Field(description="The purchase flow, in order, with absolute addresses.")
    plan: Literal["premium"]
    price_usd: dict[Billing, int] = Field(description="Price of one billing period in USD.")


class ErrorBody(_Closed):
    """What every failure returns."""

    error: ErrorCode = Field(description="Stable code of what went wrong.")
    message: str = Field(description="What went wrong, what is accepted, what to do next.")
    how_to_get_access: HowToGetAccess | SkipJsonSchema[None] = Field(
        default=None, description="On authentication failures: the purchase flow and its price."
    )
    docs: Uri = Field(description="Address of the manifest, which describes the whole API.")


class ApiError(Exception):
    """A refusal that a caller should read, with the HTTP status it has on the REST face.

    `quota` is that of the key, where a live or once live key was sent.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        status: int,
        *,
        retry_after_s: int | None = None,
        quota: "QuotaUsage | None" = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.status = status
        self.retry_after_s = retry_after_s
        self.quota = quota


def invalid_parameter_error(message: str) -> ApiError:
    """Return the refusal of one bad argument, body or path."""
    return ApiError("invalid_parameter", message, 400)


def unavailable_error(message: str, retry_after_s: int) -> ApiError:
    """Return the refusal of what will work later, with when to come back."""
    return ApiError("unavailable", message, 503, retry_after_s=retry_after_s)


def describe_failure(error: BaseException) -> dict[str, str]:
    """Return what the log may know of an unexpected failure: where, never with which values.

    Messages and locals (which structlog's console shows where rich is installed) can hold keys
    and arguments.
    """
    where = "".join(traceback.format_tb(error.__traceback__))
    return {"failure": type(error).__name__, "where": where}
