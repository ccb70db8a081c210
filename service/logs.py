"""Logs on standard error: one line an event, in which no key and no claim token stays readable."""

import re
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

SECRET = re.compile(r"\b(ek_|ct_|[sr]k_(?:test|live)_|whsec_)[A-Za-z0-9_-]+")


def log_to_standard_error() -> None:
    """Send every event there, stamped with level and time."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            mask_secrets,
            structlog.processors.LogfmtRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )


def mask_secrets(logger: object, method: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
    """Mask keys, claim tokens and Stripe's secrets wherever they stand: a net, nobody logs them."""
    return {name: _masked(value) for name, value in event.items()}


def _masked(value: object) -> object:
    """Return a value as it is where its text shows no secret, else that text without it."""
    text = value if isinstance(value, str) else repr(value)
    masked = SECRET.sub(r"\1***", text)
    return value if masked == text else masked
