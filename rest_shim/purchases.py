"""The purchase routes, which are not open yet."""

from schemas.errors import ApiError, unavailable

RETRY_S = 86_400
NOT_OPEN = (
    "Purchases are not open on this deployment yet: its operator makes keys with "
    "`signals keys create`."
)


def not_open() -> ApiError:
    """Return the refusal of every purchase."""
    return unavailable(f"{NOT_OPEN} Ask the operator, or retry after {RETRY_S} seconds.", RETRY_S)
