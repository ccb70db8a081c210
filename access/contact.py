"""Contact addresses, checked without network lookups, and requests for custom terms."""

from email_validator import SPECIAL_USE_DOMAIN_NAMES, EmailNotValidError, validate_email

from access.throttle import Throttle
from schemas.errors import invalid_parameter_error, unavailable_error
from schemas.purchase import AccessRequestBody, AccessRequestResponse
from schemas.vocabulary import Clock
from store.access_rows import AccessRequestRow
from store.sql.access_store import AccessStore

# A request takes up to 1.5 KB, so all of them take 15 MB. New ones are refused when the store is
# full: to delete the oldest ones instead would let anyone erase requests that no one has read.
MAX_REQUESTS = 10_000
FULL_RETRY_S = 86_400


async def submit_access_request(
    store: AccessStore,
    throttle: Throttle,
    clock: Clock,
    accepts_special_use_email: bool,
    body: AccessRequestBody,
    address: str,
) -> AccessRequestResponse:
    """Store a request, replacing an earlier one of the same e-mail address.

    `address` is the client's IP address, and `clock` returns epoch ms. Raise ApiError 400 for a bad
    e-mail address, 429 if the client made too many requests, 503 if MAX_REQUESTS are stored.
    """
    email = parse_contact_email(
        body.contact_email, accepts_special_use=accepts_special_use_email
    ).lower()
    # Only valid bodies count: typing errors harm no one.
    await throttle.take_attempt(address)
    now = clock()
    request = AccessRequestRow(
        contact_email=email,
        agent_name=body.agent_name,
        operator=body.operator,
        use_case=body.use_case,
        expected_volume=body.expected_volume,
        created_at=now,
        updated_at=now,
    )
    result = await store.put_access_request(request, MAX_REQUESTS)
    if result == "full":
        raise unavailable_error(
            "Your request was not stored, because too many requests wait for an answer. "
            f"Retry after {FULL_RETRY_S} seconds.",
            FULL_RETRY_S,
        )
    # The response repeats nothing that was stored: the sender need not own the address.
    message = (
        "Your request was received; a human replies by e-mail."
        if result == "received"
        else "Your earlier request was replaced by this one; a human replies by e-mail."
    )
    return AccessRequestResponse(status=result, message=message)


def parse_contact_email(text: str, *, accepts_special_use: bool) -> str:
    """Return the normalized address; raise ApiError 400 if it is not valid."""
    try:
        return normalize_email(text, accepts_special_use=accepts_special_use)
    except ValueError as error:
        raise invalid_parameter_error(f"contact_email: {error}") from None


def normalize_email(text: str, *, accepts_special_use: bool) -> str:
    """Return the normalized address; raise ValueError if it is not valid.

    Domains below a special-use name (.test, .invalid and others) receive no mail. Accept them only
    if neither real money nor real mail is involved. A domain needs a dot in any case.
    """
    domain = text.rpartition("@")[2].lower()
    is_special_use = any(domain.endswith(f".{name}") for name in SPECIAL_USE_DOMAIN_NAMES)
    # The library rejects special-use domains. Appending this suffix to one lets it validate the
    # rest of the address; its own list does not contain .example.
    suffix = ".example" if accepts_special_use and is_special_use else ""
    try:
        validated = validate_email(text + suffix, check_deliverability=False, strict=True)
        # It accepts a top-level domain of one letter, and none of those exists.
        if len(validated.ascii_domain.rpartition(".")[2]) < 2:
            raise EmailNotValidError("Its top-level domain does not exist.")
    except EmailNotValidError as error:
        raise ValueError(
            f"is not a valid e-mail address ({str(error).rstrip('.')}); accepted: one address such "
            "as agent@example.com."
        ) from None
    return validated.normalized.removesuffix(suffix)
