"""Reads the log of a command, and of a service in this process."""

import io
import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

import structlog
from structlog.typing import EventDict

from service.config.logs import LogFormat, LogLevel, log_to_standard_error

Event = dict[str, Any]


def parse_events(lines: Iterable[str]) -> list[Event]:
    """Return the events among the lines of standard error; the others are messages."""
    return [json.loads(line) for line in lines if line.startswith("{")]


def select_events(lines: Iterable[str], name: str) -> list[Event]:
    return [event for event in parse_events(lines) if event["event"] == name]


@contextmanager
def capture_log(level: LogLevel = "debug", log_format: LogFormat = "json") -> Iterator[io.StringIO]:
    """Log during the block as a command does that has these settings."""
    err, root = io.StringIO(), logging.getLogger()
    handlers = list(root.handlers)
    try:
        with redirect_stderr(err):
            log_to_standard_error(level, log_format)
            yield err
    finally:
        structlog.reset_defaults()
        root.handlers[:] = handlers


def drop_requests(logger: object, method: str, event: EventDict) -> EventDict:
    """Leave out the lines of requests; a processor for structlog's `capture_logs`."""
    # A service in this process logs all that it can, and so do the doubles that it calls.
    if event["event"] in ("request", "refused"):
        raise structlog.DropEvent
    return event
