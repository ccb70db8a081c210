"""Secrets that are logged by mistake are masked in all values of all lines."""

import io
import logging
from collections.abc import Iterator
from contextlib import redirect_stderr

import pytest
import structlog

from service.config.logs import LIBRARIES, log_to_standard_error

pytestmark = pytest.mark.clause("operation")

TOKENS = [f"{kind}_" + "A-_z" * 10 for kind in ("ct", "sl", "ss")]
OTHERS = ["sk_live_51Abc", "rk_test_51Abc", "whsec_abc"]


def logged(**facts: object) -> str:
    """Return the log line of an event."""
    err = io.StringIO()
    try:
        with redirect_stderr(err):
            log_to_standard_error()
            structlog.get_logger("tests").info("happened", **facts)
    finally:
        structlog.reset_defaults()
    return err.getvalue()


@pytest.mark.parametrize("secret", ["ek_" + "A-z_9" * 8 + "aZ0", *TOKENS, *OTHERS])
def test_a_secret_is_masked_in_any_value(secret):
    line = logged(
        alone=secret,
        within=f"Authorization: Bearer {secret}, twice {secret}",
        listed=[secret, "x"],
        failure=ValueError(secret),
        quoted=f'{{"claim_token":"{secret}"}}',
    )
    hidden = secret.rpartition("_")[2] if secret in OTHERS else secret[3:]
    assert hidden not in line
    assert line.count("***") == 6


def test_other_values_stay_unchanged():
    line = logged(rows=3, late=["BTC", "WEEK_X"], why="direct_ask is no token", none=None)
    for part in ("rows=3", "late=\"['BTC', 'WEEK_X']\"", 'why="direct_ask is no token"'):
        assert part in line
    assert "***" not in line
    assert "level=info" in line


@pytest.mark.parametrize("letter", ["\n", "\r", "\x00", "\x1b", "\x7f", "\x85", "\u2028", "\u202e"])
def test_control_characters_are_escaped(letter):
    text = f"{letter}level=error event=forged{letter}"
    line = logged(text=text, listed=[text], failure=ValueError(text), alone=letter)
    assert line.endswith("\n")
    assert line.rstrip("\n").isprintable()
    assert len(line.splitlines()) == 1


@pytest.fixture
def libraries() -> Iterator[list[logging.Logger]]:
    """Restore the loggers of libraries after the test."""
    loggers = [logging.getLogger(name) for name in LIBRARIES]
    before = [(logger.handlers, logger.propagate) for logger in loggers]
    yield loggers
    for logger, (handlers, propagate) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate


def test_a_librarys_traceback_becomes_one_line_without_values(libraries):
    err = io.StringIO()
    try:
        with redirect_stderr(err):
            log_to_standard_error()
            for logger in libraries:
                fail(logger.getChild("error"), "a@example.org")
    finally:
        structlog.reset_defaults()
    lines = err.getvalue().splitlines()
    assert len(lines) == len(libraries) == 3
    for line in lines:
        assert 'said="It failed"' in line
        assert "failure=ValueError" in line
        assert "in fail" in line
        assert "example.org" not in line


def fail(logger: logging.Logger, value: str) -> None:
    """Log as libraries do, with values in later lines of the message and of the exception."""
    try:
        raise ValueError(value)
    except ValueError:
        logger.exception("It failed\nfuture: %s", value)
