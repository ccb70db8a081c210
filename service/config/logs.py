"""Logs to standard error: one line per event, the time first, with keys and tokens masked."""

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, Literal

import structlog
from structlog.typing import Processor

from schemas.errors import describe_failure

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["auto", "json", "text"]

# API keys and all tokens begin with a prefix of their own so that this pattern finds them. Those of
# OAuth have 43 characters after it, and a refresh token as many again after a point.
SECRET_PATTERN = re.compile(
    r"\b(ek_|ct_|sl_|ss_|[sr]k_(?:test|live)_|whsec_|(?:ac|at|rt)_(?=[\w-]{43}))"
    r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]{43})?"
)
FIRST_FIELDS = ("timestamp", "level", "event")


def log_to_standard_error(level: LogLevel, log_format: LogFormat) -> None:
    """Log the events of a level and above; `auto` is text on a terminal, else JSON lines."""
    is_terminal = sys.stderr.isatty()
    # On a terminal, it quotes every text that could pass for another field.
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(colors=is_terminal, sort_keys=False)
        if log_format == "text" or (log_format == "auto" and is_terminal)
        else structlog.processors.JSONRenderer()
    )
    min_level = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            clean_values,
            lambda _, __, event: {**{name: event[name] for name in FIRST_FIELDS}, **event},
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(min_level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
    )
    root = logging.getLogger()
    for handler in [known for known in root.handlers if isinstance(known, _EventHandler)]:
        root.removeHandler(handler)
    # Never below warnings: the payment library's debug lines quote e-mail addresses.
    root.addHandler(_EventHandler(max(min_level, logging.WARNING)))


class _EventHandler(logging.Handler):
    """Turns a library's log record into an event with its first line and the failing place."""

    def emit(self, record: logging.LogRecord) -> None:
        failure = record.exc_info[1] if record.exc_info else None
        facts = describe_failure(failure) if failure else {}
        # Later lines of a message can quote values such as e-mail addresses.
        first_line = record.getMessage().partition("\n")[0]
        # structlog knows no levels between the named ones.
        level = min(record.levelno // 10 * 10, logging.CRITICAL)
        structlog.get_logger("libraries").log(level, record.name, said=first_line, **facts)


def clean_values(logger: object, method: str, event: MutableMapping[str, Any]) -> dict[str, Any]:
    """Mask API keys and tokens in all values of an event, and escape control characters."""
    return {name: _clean_value(value) for name, value in event.items()}


def _clean_value(value: object) -> object:
    """Return a value that JSON has, with its texts cleaned."""
    if value is None or isinstance(value, (int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [_clean_value(item) for item in value]
    text = str(value)
    # A safety net: no code logs a secret on purpose. Each prefix has an underscore.
    masked = SECRET_PATTERN.sub(r"\1***", text) if "_" in text else text
    if masked.isprintable():
        return masked
    # Clients choose some of the text, and it could steer the operator's terminal, also when a JSON
    # line is decoded there. The renderers escape newlines themselves.
    return "".join(
        letter if letter.isprintable() or letter == "\n" else ascii(letter)[1:-1]
        for letter in masked
    )
