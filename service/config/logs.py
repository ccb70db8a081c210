"""Logs on standard error: one line an event, in which no key and no token stays readable."""

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from schemas.errors import describe_failure

SECRET_PATTERN = re.compile(r"\b(ek_|ct_|sl_|ss_|[sr]k_(?:test|live)_|whsec_)[A-Za-z0-9_-]+")
LIBRARIES = ("uvicorn", "asyncio", "asyncpg")


def log_to_standard_error() -> None:
    """Send every event there, stamped with level and time."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            mask_secrets,
            escape_control_characters,
            structlog.processors.LogfmtRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
    for name in LIBRARIES:
        library = logging.getLogger(name)
        library.handlers, library.propagate = [_EventHandler(logging.WARNING)], False


class _EventHandler(logging.Handler):
    """Makes an event of what a library logs: its first line, for others quote values, and where."""

    def emit(self, record: logging.LogRecord) -> None:
        failure = record.exc_info[1] if record.exc_info else None
        facts = describe_failure(failure) if failure else {}
        first_line = record.getMessage().partition("\n")[0]
        structlog.get_logger("libraries").log(record.levelno, record.name, said=first_line, **facts)


def mask_secrets(logger: object, method: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
    """Mask keys, tokens and Stripe's secrets wherever they stand: a net, nobody logs them."""
    return {name: _mask_value(value) for name, value in event.items()}


def _mask_value(value: object) -> object:
    """Return a value as it is where its text shows no secret, else that text without it."""
    text = value if isinstance(value, str) else repr(value)
    masked = SECRET_PATTERN.sub(r"\1***", text)
    return value if masked == text else masked


def escape_control_characters(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> dict[str, Any]:
    """Write out what would end a line or steer a terminal; the renderer does so for newlines."""
    return {name: _escape_value(value) for name, value in event.items()}


def _escape_value(value: object) -> object:
    """Return a value as it is where its text is printable, else that text made so."""
    text = str(value)
    escaped = "".join(
        letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1] for letter in text
    )
    return value if escaped == text else escaped
