"""The error responses of several endpoints, as the OpenAPI document and the manifest describe them.

Those of a single endpoint stand in the table of endpoints. The contract's table of errors is made
of `ERROR_MEANINGS`.
"""

from dataclasses import dataclass
from typing import NamedTuple

from pydantic import BaseModel

from schemas.errors import ErrorBody
from schemas.vocabulary import ErrorCode

QUOTA_HEADERS = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")


@dataclass(frozen=True, slots=True)
class Refusal:
    """One error response; `name` is its key among the components of the OpenAPI document.

    `errors` are the values of `error` that it can have.
    """

    name: str
    status: int
    description: str
    headers: tuple[str, ...] = ()
    body: type[BaseModel] = ErrorBody
    errors: tuple[ErrorCode, ...] = ("invalid_parameter",)


class ErrorMeaning(NamedTuple):
    """What a status and a value of `error` mean together."""

    status: int
    error: ErrorCode
    cause: str


# The contract's list of `error` values is closed, so several statuses share invalid_parameter. The
# pair identifies the cause.
ERROR_MEANINGS = (
    ErrorMeaning(400, "invalid_parameter", "An argument, body or header is invalid."),
    ErrorMeaning(400, "unknown_ticker", "A ticker does not exist."),
    ErrorMeaning(400, "unknown_indicator", "An indicator does not exist."),
    ErrorMeaning(401, "missing_key", "The call needs an API key."),
    ErrorMeaning(401, "invalid_key", "The key is malformed or unknown."),
    ErrorMeaning(403, "invalid_parameter", "The Origin is not allowed."),
    ErrorMeaning(403, "revoked_key", "The key was revoked or has expired."),
    ErrorMeaning(403, "not_provisioned", "The key belongs to another billing mode."),
    ErrorMeaning(404, "invalid_parameter", "The path or claim token does not exist."),
    ErrorMeaning(405, "invalid_parameter", "The path has no such method."),
    ErrorMeaning(406, "invalid_parameter", "Accept excludes JSON."),
    ErrorMeaning(
        409,
        "invalid_parameter",
        "The claim token was redeemed, or its subscription must be paid first.",
    ),
    ErrorMeaning(413, "invalid_parameter", "The body exceeds 64 KiB."),
    ErrorMeaning(414, "invalid_parameter", "The path or query is too long."),
    ErrorMeaning(415, "invalid_parameter", "The body is not JSON."),
    ErrorMeaning(421, "invalid_parameter", "The Host is not the service's."),
    ErrorMeaning(
        429,
        "rate_limited",
        "The quota is used up, or there are too many calls or attempts.",
    ),
    ErrorMeaning(431, "invalid_parameter", "A header is too long."),
    ErrorMeaning(500, "unavailable", "Unexpected failure."),
    ErrorMeaning(503, "unavailable", "Data, store or billing are not available."),
)


NO_LIVE_KEY = Refusal(
    "NoLiveKey",
    401,
    "Missing or invalid API key. The message says how to get one.",
    ("WWW-Authenticate",),
    errors=("missing_key", "invalid_key"),
)
UNAVAILABLE = Refusal(
    "Unavailable",
    503,
    "Not available yet, or temporarily unavailable. Retry.",
    ("Retry-After",),
    errors=("unavailable",),
)

INVALID_BODY = Refusal("InvalidBody", 400, "Invalid body or field. The message names it.")
TOO_MANY_ATTEMPTS = Refusal(
    "TooManyAttempts",
    429,
    "Too many submissions from this address.",
    ("Retry-After",),
    errors=("rate_limited",),
)

# Middleware and routing can refuse any request, so every endpoint lists these. The 403 of keyed
# reads is wider, and includes a foreign Origin.
COMMON_REFUSALS = (
    Refusal("WrongMethod", 405, "The path does not accept this method.", ("Allow",)),
    Refusal("TargetTooLong", 414, "The path exceeds 1 KiB, or with its query 8 KiB."),
    Refusal("ForeignHost", 421, "The Host is not allowed."),
    Refusal("HeaderTooLong", 431, "A header exceeds 4 KiB, or the head 16 KiB."),
)
OPEN_REFUSALS = (
    Refusal("ForeignOrigin", 403, "The Origin is not allowed."),
    *COMMON_REFUSALS,
    Refusal(
        "InternalError",
        500,
        "Unexpected failure; details are in the operator's log.",
        ("Retry-After",),
        errors=("unavailable",),
    ),
)
KEY_REFUSALS = (
    NO_LIVE_KEY,
    Refusal(
        "KeyRefused",
        403,
        "Revoked key; or a key of another billing mode than the server's; or an Origin that is not "
        "allowed.",
        QUOTA_HEADERS,
        errors=("revoked_key", "not_provisioned", "invalid_parameter"),
    ),
    Refusal(
        "QuotaReached",
        429,
        "Daily quota reached: Retry-After is the number of seconds until 00:00 UTC. Or too many "
        "calls at the same time, which are not counted: Retry-After is 1.",
        ("Retry-After", *QUOTA_HEADERS),
        errors=("rate_limited",),
    ),
)
KEYED_REFUSALS = (
    Refusal(
        "InvalidParameter",
        400,
        "Invalid, unknown, empty or repeated parameter, or unknown ticker or indicator. The "
        "message names the accepted values.",
        QUOTA_HEADERS,
        errors=("invalid_parameter", "unknown_ticker", "unknown_indicator"),
    ),
    *KEY_REFUSALS,
    Refusal(
        "ReadUnavailable",
        503,
        "Nothing has been computed yet, or the store is unavailable: a call that cannot be "
        "counted is refused. The message says when to retry.",
        ("Retry-After", *QUOTA_HEADERS),
        errors=("unavailable",),
    ),
    Refusal(
        "ReadFailed",
        500,
        "Unexpected failure; details are in the operator's log.",
        ("Retry-After", *QUOTA_HEADERS),
        errors=("unavailable",),
    ),
    *COMMON_REFUSALS,
)
