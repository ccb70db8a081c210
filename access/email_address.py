"""Validates e-mail addresses with email-validator, without network lookups."""

from email_validator import SPECIAL_USE_DOMAIN_NAMES, EmailNotValidError, validate_email

from schemas.errors import invalid_parameter_error

# The library rejects special-use domains. Appending this suffix to one lets it validate the rest of
# the address; its own list does not contain .example.
ORDINARY_SUFFIX = ".example"
# The library accepts a top-level domain of one letter, and none of those exists.
MIN_TOP_LEVEL_CHARS = 2


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
    suffix = ORDINARY_SUFFIX if accepts_special_use and _is_special_use(text) else ""
    try:
        validated = validate_email(text + suffix, check_deliverability=False, strict=True)
        if len(validated.ascii_domain.rpartition(".")[2]) < MIN_TOP_LEVEL_CHARS:
            raise EmailNotValidError("Its top-level domain does not exist.")
    except EmailNotValidError as error:
        raise ValueError(
            f"is not a valid e-mail address ({str(error).rstrip('.')}); accepted: one address such "
            "as agent@example.com."
        ) from None
    return validated.normalized.removesuffix(suffix)


def _is_special_use(text: str) -> bool:
    domain = text.rpartition("@")[2].lower()
    return any(domain.endswith(f".{name}") for name in SPECIAL_USE_DOMAIN_NAMES)
