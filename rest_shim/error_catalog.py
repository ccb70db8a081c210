"""Every error response of the REST routes, as the OpenAPI document and the manifest describe it."""

from dataclasses import dataclass

from pydantic import BaseModel

from schemas.errors import ErrorBody
from schemas.jsonrpc import RpcFailure

QUOTA_HEADERS = ("X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset")


@dataclass(frozen=True, slots=True)
class Refusal:
    """One error response; `name` is its key among the components of the OpenAPI document."""

    name: str
    status: int
    description: str
    headers: tuple[str, ...] = ()
    body: type[BaseModel] = ErrorBody


INVALID_PARAMETER = Refusal(
    "InvalidParameter",
    400,
    "Invalid, unknown, empty or repeated parameter, or unknown ticker or indicator. The message "
    "names the accepted values.",
    QUOTA_HEADERS,
)
INVALID_ARGUMENT = Refusal(
    "InvalidArgument",
    400,
    "Invalid, empty or repeated parameter, or unknown ticker. Unknown parameters are ignored.",
)
NO_LIVE_KEY = Refusal(
    "NoLiveKey",
    401,
    "Missing or invalid API key. how_to_get_access says how to buy one.",
    ("WWW-Authenticate",),
)
KEY_REFUSED = Refusal(
    "KeyRefused",
    403,
    "Revoked key, or a key bought in test mode on a live server (how_to_get_access says how to buy "
    "another); or a foreign Origin.",
    QUOTA_HEADERS,
)
QUOTA_REACHED = Refusal(
    "QuotaReached",
    429,
    "Daily quota reached. Retry-After is the number of seconds until 00:00 UTC.",
    ("Retry-After", *QUOTA_HEADERS),
)
READ_UNAVAILABLE = Refusal(
    "ReadUnavailable",
    503,
    "Nothing has been computed yet, or the store is unavailable: a call that cannot be counted is "
    "refused. The message says when to retry.",
    ("Retry-After", *QUOTA_HEADERS),
)
READ_FAILED = Refusal(
    "ReadFailed",
    500,
    "Unexpected failure; details are in the operator's log.",
    ("Retry-After", *QUOTA_HEADERS),
)
UNAVAILABLE = Refusal(
    "Unavailable", 503, "Not available yet, or temporarily unavailable. Retry.", ("Retry-After",)
)

BODY_TOO_LARGE = Refusal("BodyTooLarge", 413, "The body exceeds 1 MiB.")
INVALID_BODY = Refusal("InvalidBody", 400, "Invalid body or field. The message names it.")
TOO_MANY_ATTEMPTS = Refusal(
    "TooManyAttempts", 429, "Too many submissions from this address.", ("Retry-After",)
)
UNKNOWN_CLAIM_TOKEN = Refusal(
    "UnknownClaimToken",
    404,
    "Unknown claim_token, or its checkout was cancelled or has expired.",
)
CLAIM_REDEEMED = Refusal(
    "ClaimRedeemed", 409, "The claim_token was already redeemed. The key is not recoverable."
)

RPC_VERSION = Refusal(
    "UnsupportedVersion", 400, "MCP-Protocol-Version is not supported.", body=RpcFailure
)
RPC_ACCEPT = Refusal("NotAcceptable", 406, "Accept excludes application/json.")
RPC_CONTENT_TYPE = Refusal("UnsupportedMediaType", 415, "The Content-Type is not JSON.")

FOREIGN_ORIGIN = Refusal("ForeignOrigin", 403, "The Origin is not allowed.")
WRONG_METHOD = Refusal("WrongMethod", 405, "The path does not accept this method.", ("Allow",))
FOREIGN_HOST = Refusal("ForeignHost", 421, "The Host is not allowed.")
INTERNAL_ERROR = Refusal(
    "InternalError", 500, "Unexpected failure; details are in the operator's log.", ("Retry-After",)
)

# Middleware and routing can refuse any request, so every endpoint lists these. Keyed reads have a
# wider 403, KEY_REFUSED, which includes a foreign Origin.
COMMON_REFUSALS = (WRONG_METHOD, FOREIGN_HOST)
OPEN_REFUSALS = (FOREIGN_ORIGIN, *COMMON_REFUSALS, INTERNAL_ERROR)
KEYED_REFUSALS = (
    INVALID_PARAMETER,
    NO_LIVE_KEY,
    KEY_REFUSED,
    QUOTA_REACHED,
    READ_UNAVAILABLE,
    READ_FAILED,
    *COMMON_REFUSALS,
)
KEY_REFUSALS = (NO_LIVE_KEY, KEY_REFUSED, QUOTA_REACHED)
