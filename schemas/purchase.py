"""Request and response bodies of the purchase routes; optional fields are omitted, never null."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from schemas.result import Result
from schemas.vocabulary import Billing, Instant, Mode, Uri

# 254 characters is the longest address that SMTP can transport. The schema only names the format;
# access/contact.py checks it.
Email = Annotated[
    str,
    Field(max_length=254),
    WithJsonSchema({"type": "string", "format": "email", "maxLength": 254}),
]


def blank_to_none(text: str | None) -> str | None:
    """Strip surrounding whitespace; return None if nothing is left."""
    return (text or "").strip() or None


# No control characters: they could fake extra lines in the operator's terminal listings.
LINE_PATTERN = r"^[^\u0000-\u001f\u007f-\u009f\u2028\u2029]*$"
TEXT_PATTERN = r"^[^\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f]*$"
Line = Annotated[
    Annotated[str, Field(max_length=120, pattern=LINE_PATTERN)] | SkipJsonSchema[None],
    AfterValidator(blank_to_none),
]
Text = Annotated[
    Annotated[str, Field(max_length=1000, pattern=TEXT_PATTERN)] | SkipJsonSchema[None],
    AfterValidator(blank_to_none),
]
# Also sent to clients, in `next_step` of checkout and in how_to_get_access of errors.
CLAIM_POLL_INTERVAL_S = 10
CLAIM_POLL_DURATION_S = 300
# 43 characters are 32 random bytes in base64url without padding.
ClaimToken = Annotated[str, Field(pattern=r"^ct_[A-Za-z0-9_-]{43}$")]
ApiKey = Annotated[str, Field(pattern=r"^ek_[A-Za-z0-9_-]{43}$")]


class Body(BaseModel):
    """A JSON body, validated strictly: a misspelled field is an error, not ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class CheckoutBody(Body):
    """Request body of checkout."""

    contact_email: Email = Field(
        description="E-mail address that receives the receipt and billing notices."
    )
    billing: Billing = Field(default="monthly", description="Billing period. Default monthly.")
    agent_name: Line = Field(
        default=None, description="Name of the agent: one line, at most 120 characters."
    )


class ClaimBody(Body):
    """Request body of claim."""

    claim_token: str = Field(
        min_length=1,
        max_length=1000,
        description="The token that checkout returned: ct_ and 43 letters, digits, - or _.",
    )


class AccessRequestBody(Body):
    """Request body of access-request: redistribution, volume pricing or custom terms."""

    contact_email: Email = Field(description="E-mail address for the reply, which a human writes.")
    agent_name: Line = Field(
        default=None, description="Name of the agent: one line, at most 120 characters."
    )
    operator: Line = Field(
        default=None, description="Operator of the agent: one line, at most 120 characters."
    )
    use_case: Text = Field(
        default=None, description="How the readings will be used: at most 1000 characters."
    )
    expected_volume: Line = Field(
        default=None, description="Expected calls or users: one line, at most 120 characters."
    )


class Plan(Result):
    """The plan of a checkout."""

    tier: Literal["premium"]
    billing: Billing
    amount_usd: float = Field(description="Price of one billing period in USD.")


class NextStep(Result):
    """How to claim the API key after paying at checkout_url."""

    call: str = Field(description="Method and URL of the next call.")
    body_field: Literal["claim_token"] = Field(description="The one field of its body.")
    every_seconds: int = Field(
        description="Seconds between two claims while the status is pending."
    )
    for_seconds: int = Field(description="Seconds after which to stop claiming.")
    expires_at: Instant | SkipJsonSchema[None] = Field(
        default=None, description="When the claim token expires; absent if it does not."
    )


class CheckoutResponse(Result):
    """A checkout. The claim token is returned once: store it before you open checkout_url."""

    status: Literal["checkout_created"]
    mode: Mode | None = Field(description="live: a real payment; test: nothing is charged.")
    checkout_url: Uri = Field(description="Hosted payment page.")
    claim_token: ClaimToken
    plan: Plan
    next_step: NextStep


class KeyUsage(Result):
    """How to use the API key."""

    header: str = Field(description="Header to send with every call.")
    daily_limit: int = Field(description="Calls per UTC day.")
    quota_resets: str = Field(description="When the count returns to zero.")
    start_here: str = Field(description="A good first call.")


class ActiveClaim(Result):
    """The payment has settled: the API key, which no later response contains."""

    status: Literal["active"]
    mode: Mode | None
    api_key: ApiKey
    usage: KeyUsage
    store_this: str | SkipJsonSchema[None] = None
    docs: Uri | SkipJsonSchema[None] = None
    catalog: Uri | SkipJsonSchema[None] = None


class PendingClaim(Result):
    """The payment has not settled yet."""

    status: Literal["pending"]
    mode: Mode | None
    message: str
    retry_after_seconds: int = Field(description="Seconds to wait before claiming again.")


class ClaimResponse(
    RootModel[Annotated[ActiveClaim | PendingClaim, Field(discriminator="status")]]
):
    """The API key, or a pending status until the payment settles."""


class AccessRequestResponse(Result):
    """Confirmation of an access request; a human replies by e-mail."""

    status: Literal["received", "updated"]
    message: str
