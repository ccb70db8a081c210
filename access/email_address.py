"""E-mail addresses, checked by the email-validator library; nothing is looked up on the network."""

from email_validator import SPECIAL_USE_DOMAIN_NAMES, EmailNotValidError, validate_email

from schemas.errors import invalid_parameter_error

# Stands behind a special-use domain while the library looks at the rest of the address.
ORDINARY_SUFFIX = ".example"


def parse_contact_email(text: str, *, accepts_special_use: bool) -> str:
    """Return an address in its normal form; ApiError 400 where it is none."""
    try:
        return normalize_email(text, accepts_special_use=accepts_special_use)
    except ValueError as error:
        raise invalid_parameter_error(f"contact_email: {error}") from None


def normalize_email(text: str, *, accepts_special_use: bool) -> str:
    """Return an address in its normal form; ValueError says why it is none.

    Special-use domains (localhost, .test, .invalid and their like) reach nobody: they are taken
    only where no real money and no real mail is meant.
    """
    suffix = ORDINARY_SUFFIX if accepts_special_use and _is_special_use(text) else ""
    try:
        validated = validate_email(text + suffix, check_deliverability=False, strict=True)
    except EmailNotValidError as error:
        raise ValueError(
            f"is no e-mail address ({str(error).rstrip('.')}); accepted: one address such as "
            "agent@example.com."
        ) from None
    return validated.normalized.removesuffix(suffix)


def _is_special_use(text: str) -> bool:
    domain = text.rpartition("@")[2].lower()
    return any(domain == name or domain.endswith(f".{name}") for name in SPECIAL_USE_DOMAIN_NAMES)
