"""Logs to standard error, one line per event, with keys and tokens masked."""

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

from schemas.errors import describe_failure

# API keys and all tokens begin with a prefix of their own so that this pattern finds them.
SECRET_PATTERN = re.compile(r"\b(ek_|ct_|sl_|ss_|[sr]k_(?:test|live)_|whsec_)[A-Za-z0-9_-]+")
LIBRARIES = ("uvicorn", "asyncio", "asyncpg")


def log_to_standard_error() -> None:
    """Log every event as one logfmt line with its level and time."""
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
    """Turns a library's log record into an event with its first line and the failing place."""

    def emit(self, record: logging.LogRecord) -> None:
        failure = record.exc_info[1] if record.exc_info else None
        facts = describe_failure(failure) if failure else {}
        # Later lines of a message can quote values such as e-mail addresses.
        first_line = record.getMessage().partition("\n")[0]
        structlog.get_logger("libraries").log(record.levelno, record.name, said=first_line, **facts)


def mask_secrets(logger: object, method: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
    """Mask API keys, tokens and Stripe's secrets in all values of an event."""
    # A safety net: no code logs a secret on purpose.
    return {name: _mask_value(value) for name, value in event.items()}


def _mask_value(value: object) -> object:
    """Return the value itself, or its text with secrets masked if it has any."""
    text = value if isinstance(value, str) else repr(value)
    masked = SECRET_PATTERN.sub(r"\1***", text)
    return value if masked == text else masked


def escape_control_characters(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> dict[str, Any]:
    """Escape control characters in all values of an event."""
    # Clients choose some of the text, and it could steer the operator's terminal. The renderer
    # escapes newlines itself.
    return {name: _escape_value(value) for name, value in event.items()}


def _escape_value(value: object) -> object:
    """Return the value itself, or its text with control characters escaped if it has any."""
    text = str(value)
    escaped = "".join(
        letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1] for letter in text
    )
    return value if escaped == text else escaped
