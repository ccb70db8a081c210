"""Bodies and answers of the purchase routes; optional fields are left out, never null."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from schemas.result import Result
from schemas.vocabulary import Billing, Instant, Mode, Uri

Email = Annotated[
    str,
    Field(max_length=254),
    WithJsonSchema({"type": "string", "format": "email", "maxLength": 254}),
]


def blank_to_none(text: str | None) -> str | None:
    """Return a text without the spaces around it, None where nothing is left."""
    return (text or "").strip() or None


# Without control characters, which would forge lines in an operator's listing.
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
CLAIM_POLL_INTERVAL_S = 10
CLAIM_POLL_DURATION_S = 300
ClaimToken = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_-]+$")]
ApiKey = Annotated[str, Field(pattern=r"^ek_[A-Za-z0-9_-]{43}$")]


class Body(BaseModel):
    """A JSON body, validated strictly: a misspelt field is refused, not dropped."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class CheckoutBody(Body):
    """What checkout needs to know."""

    contact_email: Email = Field(
        description="E-mail address that receives the receipt and billing notices."
    )
    billing: Billing = Field(default="monthly", description="Billing period. Default monthly.")
    agent_name: Line = Field(
        default=None, description="What to call the buyer: one line, at most 120 characters."
    )


class ClaimBody(Body):
    """What a claim presents."""

    claim_token: ClaimToken = Field(
        description="The token that checkout returned: 1 to 200 letters, digits, - and _."
    )


class AccessRequestBody(Body):
    """Who asks for redistribution, volume pricing or custom terms, and for what."""

    contact_email: Email = Field(description="E-mail address that a human replies to.")
    agent_name: Line = Field(
        default=None, description="Name of the agent: one line, at most 120 characters."
    )
    operator: Line = Field(
        default=None, description="Who runs the agent: one line, at most 120 characters."
    )
    use_case: Text = Field(
        default=None, description="What the readings are for: at most 1000 characters."
    )
    expected_volume: Line = Field(
        default=None, description="Calls or users expected: one line, at most 120 characters."
    )


class Plan(Result):
    """What is bought."""

    tier: Literal["premium"]
    billing: Billing
    amount_usd: float = Field(description="Price of one billing period in USD.")


class NextStep(Result):
    """How to claim the key once checkout_url is paid."""

    call: str = Field(description="Method and address of the next call.")
    body_field: Literal["claim_token"] = Field(description="The one field of its body.")
    every_seconds: int = Field(description="Delay between two claims while pending.")
    for_seconds: int = Field(description="How long to go on claiming.")
    expires_at: Instant | SkipJsonSchema[None] = Field(
        default=None, description="When the claim token lapses; absent where it does not."
    )


class CheckoutResponse(Result):
    """A checkout; the claim token is shown once, store it before opening checkout_url."""

    status: Literal["checkout_created"]
    mode: Mode | None = Field(description="live is a real payment, test is not.")
    checkout_url: Uri = Field(description="Hosted payment page.")
    claim_token: ClaimToken
    plan: Plan
    next_step: NextStep


class KeyUsage(Result):
    """How the key is used."""

    header: str = Field(description="The header to send.")
    daily_limit: int = Field(description="Calls a day.")
    quota_resets: str = Field(description="When the count starts anew.")
    start_here: str = Field(description="A first call to make.")


class ActiveClaim(Result):
    """A settled payment: the API key, returned exactly once."""

    status: Literal["active"]
    mode: Mode | None
    api_key: ApiKey
    usage: KeyUsage
    store_this: str | SkipJsonSchema[None] = None
    docs: Uri | SkipJsonSchema[None] = None
    catalog: Uri | SkipJsonSchema[None] = None


class PendingClaim(Result):
    """A payment that has not settled yet."""

    status: Literal["pending"]
    mode: Mode | None
    message: str
    retry_after_seconds: int = Field(description="Delay before claiming again.")


class ClaimResponse(
    RootModel[Annotated[ActiveClaim | PendingClaim, Field(discriminator="status")]]
):
    """The key, or that the payment has not settled yet."""


class AccessRequestResponse(Result):
    """That a request was taken down; a human replies by e-mail."""

    status: Literal["received", "updated"]
    message: str
