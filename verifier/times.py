"""Times as the service writes them: ISO 8601 in UTC with three decimals and Z. Pure."""

import re
from datetime import UTC, datetime

# From 1900 on, so that a duration can be subtracted.
SERVED_TIME = re.compile(
    r"(?:19|[2-9][0-9])[0-9]{2}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z"
)


def parse_served_time(text: object) -> datetime:
    """Parse a time as the service writes it; ValueError if it is written differently.

    Texts of this form compare like the times, so they are compared without parsing.
    """
    if not isinstance(text, str) or SERVED_TIME.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a time such as 2026-01-31T00:03:00.000Z")
    return datetime.fromisoformat(text)


def format_time(time: datetime) -> str:
    """Format a time as the service does."""
    text = time.astimezone(UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
